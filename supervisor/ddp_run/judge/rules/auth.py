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
from ddp_run.judge.signs import Sign, ended_by, like, meaning, said_last
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
_SAID = meaning(
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
    Sign("Invalid username or password"),
    Sign("Invalid user token."),
    # requests, httpx, urllib, reqwest
    like(rf"(?P<status>40[13]) Client Error(?!: rate limit)(?:[^\n]*?url: {_URL})?"),
    like(rf"Client error '(?P<status>40[13])[^']*' for url '{_URL}"),
    like(rf"HTTP status client error \((?P<status>40[13]) [^)]{{1,40}}\) for url \({_URL}"),
    like(r"HTTP Error (?P<status>40[13])(?!: rate limit)"),
    # wandb
    Sign("API key you provided is either invalid or missing"),
    like(r"permission denied to upsert\w*"),
    Sign("It appears that you do not have permission to access the requested resource"),
    like(r"(?:returned error 401: |W&B API: |message\": ?\")user is not logged in"),
    *meaning(
        like(r"Token is required \([^)]{0,200}\), but no token found"),
        Sign("LocalTokenNotFoundError", types=("LocalTokenNotFoundError",)),
        Sign("api_key not configured (no-tty)"),
        Sign("No API key configured. Use `wandb login`"),
        Sign("Unable to locate credentials", types=("NoCredentialsError",)),
        Sign("Your default credentials were not found"),
        Sign("Could not automatically determine credentials"),
        Sign("Partial credentials found"),
        Sign("DefaultAzureCredential failed to retrieve a token"),
        cause="{who} has no credentials for {by}",
    ),
    # Amazon, Google, Azure
    like(
        r"An error occurred \((?P<what>401|403|AccessDenied(?:Exception)?|ExpiredToken(?:Exception)?"
        r"|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken"
        r"|UnrecognizedClientException|InvalidClientTokenId)\) when calling"
    ),
    Sign("does not have storage."),
    Sign("AuthorizationPermissionMismatch"),
    # registries of containers, Kubernetes
    like(r"pull access denied for \S{1,300}"),
    Sign("requested access to the resource is denied"),
    Sign("unauthorized: authentication required"),
    like(rf"URL {_URL}\S* returned error code: (?P<status>40[13])\b"),
    like(r"unexpected status(?: code \S{1,400})?: (?P<status>40[13]) "),
    *service_text.REFUSED,
    like(rf"fatal: Authentication failed for '(?:{_URL})?"),  # git
    cause="{who} was rejected by {by}: {said}",
)
_OF_TOOLS = meaning(
    Sign("Permission denied (publickey"),
    like(rf"could not read Username for '{_URL}"),
    Sign("fatal error: Unable to locate credentials", cause="{who} has no credentials for {by}"),
    Sign("This request is not authorized to perform this"),
    Sign("Error from server (Forbidden): "),  # kubectl
    cause="{who} was rejected by {by}: {said}",
)
SIGNS = (*_SAID, *_OF_TOOLS)
_SERVICES = (
    (
        "the Hugging Face Hub",
        re.compile(
            r"huggingface(?:\.co|_hub)|gated repo|a gated dataset|LocalToken|Token is required|GatedRepo|user token"
        ),
        (
            "hf auth whoami   # on the failed node: which login, if any (older: huggingface-cli whoami)",
            'test -n "$HF_TOKEN" && echo set   # in the job\'s environment: is a token set?',
            'curl -sI -H "Authorization: Bearer $HF_TOKEN" https://huggingface.co/{repository} | head -n 1'
            "   # 200: readable; otherwise open the page: is the name right, are its terms accepted?",
        ),
    ),
    (
        "wandb",
        re.compile(r"wandb\.|/wandb/|wandb login|api_key not configured|No API key configured|upsert"),
        (
            'test -n "$WANDB_API_KEY" && echo set   # in the job\'s environment; or: wandb login',
            "export WANDB_MODE=offline   # to train now and `wandb sync` later",
        ),
    ),
    (
        "AWS",
        re.compile(r"\baws\.|amazonaws|/botocore/|An error occurred \(|NoCredentials|locate credentials"),
        ("aws sts get-caller-identity   # on the failed node: who am I?",),
    ),
    (
        "Google Cloud",
        re.compile(
            r"google(?:apis)?\.|/google/(?:auth|cloud|api_core)/|storage\.|default credentials|determine credentials"
        ),
        ("gcloud auth application-default print-access-token >/dev/null && echo ok   # on the failed node",),
    ),
    ("Azure", re.compile(r"\bazure\.|/azure/|Azure|AuthorizationPermission"), ()),
)
"""What shows each in a host's name, in a message, or in the files of a traceback; and how to ask it."""


def match(death: Death, attempt: Evidence) -> Finding | None:
    """The exception or the lines with which a service rejects the caller."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = ended_by(death, _SAID) or said_last(death, _OF_TOOLS)
    if hit is None:
        return None
    shown = f"{hit['host'] or hit.traceback}\n{hit.match[0]}"
    by, advice = next(((by, advice) for by, told, advice in _SERVICES if told.search(shown)), (None, ()))
    # A server may refuse everybody, whatever credentials they have.
    sure: Confidence | None = "likely" if hit["status"] == "403" and by is None else None
    said = hit["what"] or (f"HTTP {hit['status']}" if hit["status"] else hit.match[0][:120])
    asked = tuple(hit.fill(each, death) for each in advice if hit["repository"] or "{repository}" not in each)
    cause = hit.says(death, by=by or hit["host"] or "a server", said=said)
    return hit.finding(RULE, death, cause, asked or _ask(hit["host"]), confidence=sure)


def _ask(host: str | None) -> tuple[str, ...]:
    return (f"curl -sSI https://{host}   # does it require a login, or is there a proxy in between?",) if host else ()
