"""Credentials missing or rejected.

## What happened
A remote service (the Hugging Face Hub, wandb, an object store) found no valid login for this job, or the login lacks
the permission.
## How to recognise it
`401 Client Error`, `403 Client Error`, `GatedRepoError`, `You are trying to access a gated repo`, `Repository Not Found
… make sure you are authenticated`, `api_key not configured (no-tty)`, `Unable to locate credentials`, `ExpiredToken`,
`AccessDenied`, `PERMISSION_DENIED`, `password authentication failed for user`, `Invalid API key`. The Hub also returns
401 for a repository that does not exist: check the spelling first.
## What to do
Set the token on every node and inside the container: `HF_TOKEN`, `WANDB_API_KEY`, `AWS_ACCESS_KEY_ID` and
`AWS_SECRET_ACCESS_KEY`. A login saved in your home folder on the login node does not help if the job runs with a
different home. For a gated model, accept its terms once on its page.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge import service_text
from ddp_run.judge.signs import Hit, Sign, ended_by, like, meaning, said_last
from ddp_run.judge.start_text import REFUSED
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP207",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same credentials will be rejected again"),
    wins_over=(("permission-denied", "a service that wants credentials denied access, not the file system"),),
)
FRAMES = re.compile(
    r"/wandb/(?:sdk/)?(?:lib/apikey|wandb_login|util)\.py|/huggingface_hub/_login\.py"
    r"|/huggingface_hub/utils/_(?:http|errors)\.py \S*raise_for_status"
)
_URL = (
    r"(?P<url>https?://(?:[^/@\s]{1,200}@)?(?P<host>[^\s/:'\"?<>]{1,255})(?::\d{1,5})?"
    r"(?:/(?:api/(?:models|datasets|spaces)/|datasets/)?(?P<repository>[\w.\-]{1,100}/[\w.\-]{0,99}[\w\-]))?[^\s'\"?<>]*+)"
)
"""Group `repository`: `owner/name`, if it is the Hub's."""
_NOT_FOUND, _HIDDEN = "{who} could not find ", " on the Hub: it is private, or the name is misspelled"
_SAID: tuple[Sign, ...] = (
    # Hugging Face
    *meaning(
        like(rf"You are trying to access a gated repo(?:\.\s+Make sure to have access to it at {_URL})?"),
        like(rf"Cannot access gated repo for url {_URL}"),
        Sign("GatedRepoError", types=("GatedRepoError",)),
        cause="{who} has no access to the gated repository{ {repository}} on the Hub",
    ),
    *meaning(
        like(rf"Repository Not Found for url: {_URL}", cause=f"{_NOT_FOUND}repository {{repository}}{_HIDDEN}"),
        Sign("If you are trying to access a private or gated repo", cause=f"{_NOT_FOUND}a repository{_HIDDEN}"),
        likely=True,
    ),
    Sign("Token is required (", r"Token is required \([^)]{0,200}\), but no token found"),
    Sign("LocalTokenNotFoundError", types=("LocalTokenNotFoundError",)),
    Sign("Invalid username or password"),
    Sign("Invalid user token."),
    # requests, httpx, urllib
    like(rf"(?P<status>40[13]) Client Error(?!: rate limit)(?:[^\n]*?url: {_URL})?"),
    like(rf"Client error '(?P<status>40[13])[^']*' for url '{_URL}"),
    like(rf"HTTP status client error \((?P<status>40[13]) [^)]{{1,40}}\) for url \({_URL}"),  # reqwest, in Rust
    like(r"HTTP Error (?P<status>40[13])(?!: rate limit)"),
    # wandb
    Sign("api_key not configured (no-tty)"),
    Sign("No API key configured. Use `wandb login`"),
    Sign("wandb.errors.AuthenticationError"),
    Sign("wandb.errors.errors.AuthenticationError"),
    Sign("API key you provided is either invalid or missing"),
    like(r"permission denied to upsert\w*"),
    Sign("It appears that you do not have permission to access the requested resource"),
    like(r"(?:returned error 401: |W&B API: |message\": ?\")user is not logged in"),
    # Amazon, Google, Azure
    Sign("Unable to locate credentials", types=("NoCredentialsError",)),
    Sign("Partial credentials found"),
    like(
        r"An error occurred \((?P<what>401|403|AccessDenied(?:Exception)?|ExpiredToken(?:Exception)?"
        r"|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken"
        r"|UnrecognizedClientException|InvalidClientTokenId)\) when calling"
    ),
    Sign("Your default credentials were not found"),
    Sign("Could not automatically determine credentials"),
    Sign("Anonymous caller does not have storage."),
    like(r"does not have storage\.objects\.\w+ access"),
    Sign("AuthorizationPermissionMismatch"),
    Sign("DefaultAzureCredential failed to retrieve a token"),
    # registries of containers, Kubernetes
    like(r"pull access denied for \S{1,300}"),
    Sign("requested access to the resource is denied"),
    Sign("unauthorized: authentication required"),
    like(rf"URL {_URL}\S* returned error code: (?P<status>40[13])\b"),
    like(r"unexpected status(?: code \S{1,400})?: (?P<status>40[13]) "),
    Sign("Error from server (Forbidden): "),
    *service_text.REFUSED,
    # git
    like(rf"fatal: Authentication failed for '(?:{_URL})?"),
)
SIGNS = (*_SAID, *REFUSED)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """The exception or the lines with which a service rejects the caller."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = ended_by(death, _SAID) or said_last(death, REFUSED)
    if hit is None:
        return None
    service = _service(hit)
    # A server may refuse everybody, whatever credentials they have.
    for_all = hit["status"] == "403" and service in ("", hit["host"])
    sure: Confidence | None = "likely" if for_all else None
    cause = hit.says(death) or f"{death.who} {_cause(hit, service)}"
    return hit.finding(RULE, death, cause, _advice(hit, service), confidence=sure)


def _service(hit: Hit) -> str:
    """Return the service that rejected the credentials: by host, by words, by the packages in the traceback."""
    host, said = hit["host"], hit.match[0]
    for service, shown, package in (
        (
            "hugging face",
            r"gated repo|is a gated dataset|LocalToken|Token is required|GatedRepo|user token",
            r"huggingface_hub/",
        ),
        ("wandb", r"wandb|api_key not configured|No API key configured|upsert", r"/wandb/"),
        ("aws", r"An error occurred \(|NoCredentials|Partial credentials|locate credentials", r"/botocore/"),
        ("google", r"storage\.|default credentials|determine credentials", r"/google/(?:auth|cloud|api_core)/"),
        ("azure", r"Azure|AuthorizationPermission", r"/azure/"),
    ):
        by_host = host is not None and service.replace(" ", "") in host
        if by_host or re.search(shown, said) or (host is None and re.search(package, hit.traceback)):
            return service
    return host or ""


def _cause(hit: Hit, service: str) -> str:
    named = {"hugging face": "the Hugging Face Hub", "aws": "AWS", "google": "Google Cloud", "azure": "Azure"}
    by = named.get(service, service) or "a server"
    if hit["status"] or hit["what"]:
        return f"was rejected by {by}: {hit['what'] or 'HTTP ' + str(hit['status'])}"
    if re.search(
        r"not configured|o API key|locate credentials|not found|no token found|determine cred|requires an API key"
        r"|must be set|MissingApiToken|MissingConfig",
        hit.match[0],
    ):
        return f"has no credentials for {by}"
    return f"was rejected by {by}: {hit.match[0][:120]}"


def _advice(hit: Hit, service: str) -> tuple[str, ...]:
    if service == "hugging face":
        repository = hit["repository"]
        return (
            "hf auth whoami   # on the failed node: which login, if any (older: huggingface-cli whoami)",
            'test -n "$HF_TOKEN" && echo set   # in the job\'s environment: is a token set?',
            *(
                (
                    f'curl -sI -H "Authorization: Bearer $HF_TOKEN" https://huggingface.co/{repository} | head -n 1'
                    "   # 200: readable; otherwise open the page: is the name right, are its terms accepted?",
                )
                if repository
                else ()
            ),
        )
    if service == "wandb":
        return (
            'test -n "$WANDB_API_KEY" && echo set   # in the job\'s environment; or: wandb login',
            "export WANDB_MODE=offline   # to train now and `wandb sync` later",
        )
    if service == "aws":
        return ("aws sts get-caller-identity   # on the failed node: who am I?",)
    if service == "google":
        return ("gcloud auth application-default print-access-token >/dev/null && echo ok   # on the failed node",)
    host = hit["host"]
    return (f"curl -sSI https://{host}   # does it require a login, or is there a proxy in between?",) if host else ()
