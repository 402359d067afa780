"""Download failed or remote service unreachable.

## What happened
The program requested something from the network (weights, a dataset, a tracking server, an object store) and got no
response, or an error that the server is busy or broken. The connections between the ranks are fine.
## How to recognise it
`Max retries exceeded with url`, `Read timed out`, `<urlopen error …>`, `We couldn't connect to
'https://huggingface.co'`, `LocalEntryNotFoundError`, `Couldn't reach … on the Hub`, `Cannot connect to host …`, `503
Server Error`, `429 Client Error: Too Many Requests`, `Could not resolve host` (git, curl), `dial tcp …: i/o timeout`
(images of containers), `CERTIFICATE_VERIFY_FAILED`; `redis.exceptions.ConnectionError` and what other clients raise
without an answer; `SlowDown` and other codes of a busy object store; often deep in a chain that ends with an `OSError`
from transformers. A name that does not resolve during rendezvous is `rendezvous-dns`; a rejected token is `auth`.
## What to do
Compute nodes often have no internet access: download on a login node to a shared folder (`huggingface-cli download`),
then set `HF_HUB_OFFLINE=1` and `HF_HOME` to that folder. If a proxy is needed, set `HTTPS_PROXY` on every node, and
list the nodes' own names in `NO_PROXY`. Let one rank download while the others wait: many ranks at once get HTTP 429.
"""

from __future__ import annotations

import re

from ddp_run.evidence.launcher_exceptions import tells_of_a_program
from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LEAVING
from ddp_run.judge import service_text
from ddp_run.judge.signs import URL, Hit, Sign, in_exception, in_last_words, like, meaning, said_last
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP206",
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="servers and networks often recover after a while"),
    wins_over=(("file-not-found", "the file is missing because its download failed"),),
)
FRAMES = re.compile(r"/wandb/|/(?:huggingface_hub|urllib3|requests|httpx|httpcore|aiohttp|botocore)/")
_CERTIFICATE = Sign(
    "CERTIFICATE_VERIFY_FAILED",
    r"host='(?P<host>[\w.\-]+)'[^\n]{0,1000}CERTIFICATE_VERIFY_FAILED|CERTIFICATE_VERIFY_FAILED[^\n]{0,120}",
    cause="{who} does not trust the certificate of {to}",
    retry=Retry(helps=False, reason="the certificate will still be untrusted"),
)
_GIT = like(rf"fatal: unable to access '{URL}': (?P<why>[^\n]{{0,120}})")
_SAID = meaning(
    _GIT,
    _CERTIFICATE,
    # requests and urllib3
    like(r"(?:host='(?P<host>[\w.\-]+)', port=(?P<port>\d+)[^\n]{0,40}?)?Max retries exceeded with url"),
    like(r"ConnectionPool\(host='(?P<host>[\w.\-]+)', port=(?P<port>\d+)\): Read timed out\."),
    Sign("Remote end closed connection without response"),
    # urllib
    like(
        r"<urlopen error (?P<why>(?:\[Errno (?!2\]|20\]|21\]|13\])-?\d+\]|timed out"
        r"|\[SSL|_ssl|EOF|Remote|retrieval)[^>]{0,300})>"
    ),
    *meaning(  # the words of urllib, requests and httpx for a status
        like(r"HTTP Error (?P<status>5\d\d|429|403(?=: rate limit exceeded))[^\n]{0,80}"),
        like(rf"(?P<status>50[0234]) Server Error[^\n]*?(?:url: {URL}|$)"),
        like(rf"(?P<status>429) Client Error[^\n]*?(?:url: {URL}|$)"),
        like(rf"(?P<status>403) Client Error: rate limit exceeded[^\n]*?(?:url: {URL}|$)"),  # GitHub's
        like(rf"Server error '(?P<status>5\d\d)[^']*' for url '{URL}"),
        like(rf"Client error '(?P<status>429)[^']*' for url '{URL}"),
        cause="{who} got HTTP {status} from {to}",
    ),
    like(rf"error sending request for url \({URL}"),  # reqwest, in programs written in Rust
    like(r"Cannot connect to host (?P<host>[\w.\-]+):(?P<port>\d+) ssl"),  # aiohttp
    # Hugging Face
    like(rf"We couldn't connect to '{URL}"),
    Sign("LocalEntryNotFoundError", types=("LocalEntryNotFoundError",)),
    *meaning(
        Sign("outgoing traffic has been disabled"),
        Sign("offline mode is enabled"),
        cause="{who} needs a Hugging Face Hub file that is not in the cache, and offline mode is on",
        advice=("env | grep -E 'HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|HF_HOME'   # offline on purpose? which cache?",),
        retry=Retry(helps=False, reason="the file will still be missing in offline mode"),
    ),
    like(rf"Couldn't reach (?P<what>'[^'\n]+' on the Hub|{URL})[^\n]{{0,80}}", cause="{who} could not reach {what}"),
    *("CAS service error", "An error occurred while downloading using `hf_transfer`"),
    "An error happened while trying to locate the file on the Hub",
    *(
        Sign(name, rf"{name}(?:: (?P<why>[^\n]{{0,100}}))?", (name,))
        for name in (
            *("ConnectError", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"),  # httpx
            "ServerDisconnectedError",  # aiohttp
        )
    ),
    Sign("retrieval incomplete: got only"),  # urllib
    Sign("CondaHTTPError: HTTP 000"),
    # object stores and trackers
    like(rf"Could not connect to the endpoint URL: \"{URL}"),
    like(rf"(?:Connect|Read) timeout on endpoint URL:? \"?{URL}"),
    like(r"Run initialization has timed out after [\d.]+ sec"),
    *service_text.NO_ANSWER,
)
_OF_TOOLS = (
    like(r"dial tcp \S{1,300}[^\n]{0,200}: (?P<why>i/o timeout|connect: [a-z ]{1,40}|no such host)"),
    like(rf"URL {URL}\S* returned error code: (?P<status>429|5\d\d)", cause="{who} got HTTP {status} from {to}"),
    # pip's; it tries again, and then only says that it found no version
    like(r"Retry\(total=\d+[^\n]{0,200}after connection broken by '(?P<why>[^\n]{1,200})'"),
    like(r"(?P<why>Could not resolve host: (?P<host>[\w.\-]{1,255}))"),
    like(r"unable to resolve host address [`'\u2018](?P<host>[\w.\-]{1,255})"),  # wget
    like(rf"E: Failed to fetch {URL}"),  # apt
    like(r"(?P<why>net/http: (?:request canceled|TLS handshake timeout)[^\n]{0,100})"),
    Sign("toomanyrequests: "),  # registries of containers
    like(r"curl: \((?:5|7|16|28|35|52|56|92)\) (?P<why>[^\n]{1,100})"),
)
"""Groups `url`, `host`, `status`, `why`."""
SIGNS = (*_SAID, *_OF_TOOLS)
SYMPTOMS = (Sign("see how to run the library in offline mode at"),)
"""The end of transformers' message, alone."""
_HERE = re.compile(r"(?:localhost|127\.|0\.0\.0\.0)")
_TRIES_AGAIN = "Retrying (Retry("
"""From urllib3, which pip bundles."""
# etcd's client, which torch's rendezvous may use, also uses urllib3.
_RENDEZVOUS = re.compile(r"etcd|torch/distributed/elastic/rendezvous|kubernetes/client")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match an HTTP client without an answer, or a server's error."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = in_exception(death, _SAID) if death.exception is not None else in_last_words(death, _SAID, LEAVING)
    if hit is None or (hit.exception is None and _TRIES_AGAIN in hit.text):
        hit = said_last(death, _OF_TOOLS)
    if hit is None and death.exception is not None and tells_of_a_program(death.exception):
        hit = in_last_words(death, (_GIT,), LEAVING)
    if hit is None or _RENDEZVOUS.search(hit.traceback):
        return None
    host = _host(hit)
    if host is not None and _HERE.match(host):  # a server of the job itself, which has its own reason
        return None
    why = hit["why"] or (hit.match[0] if host is None else "")
    known = hit.exception is not None and why == hit.exception.type.rpartition(".")[2]
    shown = f": {why.strip()[:120]}" if why and not known else ""
    to = host or "a server"
    cause = hit.says(death, to=to) or f"{death.who} could not reach {to}{shown}"
    return hit.finding(RULE, death, cause, _advice(hit, host))


def _host(hit: Hit) -> str | None:
    """Return the host, which the program's own line may show."""
    shown = re.search(r"['\"]https?://(?:[^/@\s]*@)?([\w.\-]+)", hit.traceback)
    return hit["host"] or (shown[1] if shown is not None else None)


def _advice(hit: Hit, host: str | None) -> tuple[str, ...]:
    port = f":{hit['port']}" if hit["port"] not in (None, "80", "443") else ""
    url = f"https://{host}{port}" if host else "https://huggingface.co"
    ask = f"curl -sSI --max-time 10 {url}   # on the failed node: is there internet access?"
    if hit.sign == _CERTIFICATE:
        signer = f"curl -sSIv --max-time 10 {url}   # who signed the certificate? a TLS-intercepting proxy has its own"
        trust = "export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt REQUESTS_CA_BUNDLE=$SSL_CERT_FILE"
        return (signer, trust) if host else (trust,)
    if hit["status"] == "429":
        return ("if int(os.environ['LOCAL_RANK']) == 0: download()   # then dist.barrier(): one download per node",)
    if host is None and "/huggingface_hub/" not in hit.traceback:
        return ("env | grep -i proxy   # on the failed node: is a proxy needed, and set?",)
    if host is None or "huggingface" in host:
        return (ask, "export HF_HUB_OFFLINE=1   # if everything is in the cache already (HF_HOME)")
    return (ask, "env | grep -i proxy   # is a proxy needed, and set?")
