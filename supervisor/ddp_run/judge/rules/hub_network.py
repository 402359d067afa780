"""Download failed or remote service unreachable.

## What happened
The program requested something from the network (weights, a dataset, a tracking server, an object store) and got no
response, or an error that the server is busy or broken. The connections between the ranks are fine.
## How to recognise it
`Max retries exceeded with url`, `Read timed out`, `<urlopen error …>`, `We couldn't connect to
'https://huggingface.co'`, `LocalEntryNotFoundError`, `Couldn't reach … on the Hub`, `Cannot connect to host …`, `503
Server Error`, `429 Client Error: Too Many Requests`, `Could not connect to the endpoint URL`, `Could not resolve host`
(git, curl), `dial tcp …: i/o timeout` and `toomanyrequests` (images of containers), `CERTIFICATE_VERIFY_FAILED`;
`redis.exceptions.ConnectionError` and what other clients of databases, object stores and trackers raise without an
answer;
`SlowDown` and other codes of a busy object store; often deep in a chain that ends with an `OSError` from transformers.
A name that does not resolve during rendezvous is `rendezvous-dns`; a rejected token is `auth`.
## What to do
Compute nodes often have no internet access: download on a login node to a shared folder (`huggingface-cli download`),
then set `HF_HUB_OFFLINE=1` and `HF_HOME` to that folder. If a proxy is needed, set `HTTPS_PROXY` on every node, and
list the nodes' own names in `NO_PROXY`. Let one rank download while the others wait: many ranks at once get HTTP 429.
"""

from __future__ import annotations

import re

from ddp_run.evidence.exception_chain import tells_of_a_program
from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LEAVING
from ddp_run.judge import service_text
from ddp_run.judge.signs import URL, Hit, Sign, in_exception, in_last_words, like, said_last
from ddp_run.judge.start_text import UNREACHABLE
from ddp_run.judge.verdict import Area, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP206",
    name="hub-network",
    title="Download failed or remote service unreachable",
    area=Area.NETWORK,
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="servers and networks often recover after a while"),
    since="0.1",
    wins_over=(("file-not-found", "the file is missing because its download failed"),),
)
FRAMES = re.compile(r"/wandb/|/(?:huggingface_hub|urllib3|requests|httpx|httpcore|aiohttp|botocore)/")
_STATUS = r"(?P<status>5\d\d|429)"
_OFFLINE = "outgoing traffic has been disabled"
_OFFLINE_MODE = "offline mode is enabled"
_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
_RESET = frozenset({"ConnectionError", "ProtocolError", "ChunkedEncodingError", "IncompleteRead", "RemoteDisconnected"})
_HTTPX = frozenset({"ConnectError", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"})
_GIT = like(rf"fatal: unable to access '{URL}': (?P<why>[^\n]{{0,120}})")
_SAID: tuple[Sign, ...] = (
    _GIT,
    Sign(_CERTIFICATE, rf"host='(?P<host>[\w.\-]+)'[^\n]{{0,1000}}{_CERTIFICATE}|{_CERTIFICATE}[^\n]{{0,120}}"),
    # requests and urllib3
    like(r"(?:host='(?P<host>[\w.\-]+)', port=(?P<port>\d+)[^\n]{0,40}?)?Max retries exceeded with url"),
    Sign("Read timed out.", r"ConnectionPool\(host='(?P<host>[\w.\-]+)', port=(?P<port>\d+)\): Read timed out\."),
    like(r"\('Connection aborted\.', (?P<why>[^\n]{0,100})", _RESET),
    like(r"Connection broken: (?P<why>[^\n]{0,100})", _RESET),
    Sign("Remote end closed connection without response"),
    # urllib
    like(
        r"<urlopen error (?P<why>(?:\[Errno (?!2\]|20\]|21\]|13\])-?\d+\]|timed out"
        r"|\[SSL|_ssl|EOF|Remote|retrieval)[^>]{0,300})>"
    ),
    like(rf"HTTP Error (?:{_STATUS}|403: rate limit exceeded)[^\n]{{0,80}}"),
    Sign("retrieval incomplete: got only"),
    # the words of requests and httpx for a status
    *(
        Sign(f"{status} Server Error", rf"(?P<status>{status}) Server Error[^\n]*?(?:url: {URL}|$)")
        for status in (500, 502, 503, 504)
    ),
    like(rf"(?P<status>429) Client Error[^\n]*?(?:url: {URL}|$)"),
    like(rf"(?P<status>403) Client Error: rate limit exceeded[^\n]*?(?:url: {URL}|$)"),  # GitHub's
    like(rf"Server error '(?P<status>5\d\d)[^']*' for url '{URL}"),
    like(rf"Client error '(?P<status>429)[^']*' for url '{URL}"),
    # reqwest, in programs written in Rust
    like(rf"error sending request for url \({URL}"),
    # httpx, aiohttp
    *(Sign(name, rf"{name}(?:: (?P<why>[^\n]{{0,100}}))?", frozenset({name})) for name in sorted(_HTTPX)),
    like(r"Cannot connect to host (?P<host>[\w.\-]+):(?P<port>\d+) ssl"),
    Sign("ServerDisconnectedError", types=("ServerDisconnectedError",)),
    # Hugging Face
    like(rf"We couldn't connect to '{URL}"),
    Sign("LocalEntryNotFoundError", types=("LocalEntryNotFoundError",)),
    Sign("An error happened while trying to locate the file on the Hub"),
    Sign(_OFFLINE),
    Sign(_OFFLINE_MODE, rf"Cannot (?:reach|access) {URL}[^\n]{{0,300}}{_OFFLINE_MODE}|{_OFFLINE_MODE}"),
    like(r"Couldn't reach (?P<what>'[^'\n]+' on the Hub|https?://[^\s?]+)[^\n]{0,80}"),
    Sign("CAS service error"),
    Sign("An error occurred while downloading using `hf_transfer`"),
    # object stores and trackers
    like(rf"Could not connect to the endpoint URL: \"{URL}"),
    like(rf"(?:Connect|Read) timeout on endpoint URL: \"?{URL}"),
    like(r"Run initialization has timed out after [\d.]+ sec"),
    Sign("CondaHTTPError: HTTP 000"),
    *service_text.NO_ANSWER,
)
SIGNS = (*_SAID, *UNREACHABLE)
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
        hit = said_last(death, UNREACHABLE)
    if hit is None and death.exception is not None and tells_of_a_program(death.exception):
        hit = in_last_words(death, (_GIT,), LEAVING)
    if hit is None or (hit.exception is not None and _RENDEZVOUS.search(hit.exception.traceback)):
        return None
    sure = service_text.as_sure(hit)
    return hit.finding(RULE, death, _cause(death, hit), _advice(hit), confidence=sure, retry=_retry(hit))


def _host(hit: Hit) -> str | None:
    if hit["host"]:
        return hit["host"]
    found = re.match(r"https?://(?:[^/@\s]*@)?([^/:\s]+)", hit["url"] or hit["what"] or "")
    if found is None and hit.exception is not None:  # the program's own line may show the URL
        found = re.search(r"['\"]https?://(?:[^/@\s]*@)?([\w.\-]+)", hit.exception.traceback)
    return found[1] if found else None


def _cause(death: Death, hit: Hit) -> str:
    host = _host(hit)
    to = host or "a server"
    raised = hit.exception
    if hit.sign.words in (_OFFLINE, _OFFLINE_MODE):
        return f"{death.who} needs a Hugging Face Hub file that is not in the cache, and offline mode is on"
    if hit.sign.words == _CERTIFICATE:
        return f"{death.who} does not trust the certificate of {to}"
    if hit["status"]:
        return f"{death.who} got HTTP {hit['status']} from {to}"
    if hit["what"]:
        return f"{death.who} could not reach {hit['what']}"
    why = hit["why"] or (hit.match[0] if host is None else "")
    shown = f": {why.strip()[:120]}" if why and (raised is None or why != raised.type.rpartition(".")[2]) else ""
    return f"{death.who} could not reach {to}{shown}"


def _advice(hit: Hit) -> tuple[str, ...]:
    host = _host(hit)
    url = (
        f"https://{host}{':' + hit['port'] if hit['port'] not in (None, '80', '443') else ''}"
        if host
        else "https://huggingface.co"
    )
    ask = f"curl -sSI --max-time 10 {url}   # on the failed node: is there internet access?"
    if hit.sign.words in (_OFFLINE, _OFFLINE_MODE):
        return ("env | grep -E 'HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|HF_HOME'   # offline on purpose? which cache?",)
    if hit.sign.words == _CERTIFICATE:
        signer = f"curl -sSIv --max-time 10 {url}   # who signed the certificate? a TLS-intercepting proxy has its own"
        return (
            *((signer,) if host else ()),
            "export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt REQUESTS_CA_BUNDLE=$SSL_CERT_FILE",
        )
    if hit["status"] == "429":
        return ("if int(os.environ['LOCAL_RANK']) == 0: download()   # then dist.barrier(): one download per node",)
    if host is None and "/huggingface_hub/" not in (hit.exception.traceback if hit.exception is not None else ""):
        return ("env | grep -i proxy   # on the failed node: is a proxy needed, and set?",)
    if host is None or "huggingface" in host:
        return (ask, "export HF_HUB_OFFLINE=1   # if everything is in the cache already (HF_HOME)")
    return (ask, "env | grep -i proxy   # is a proxy needed, and set?")


def _retry(hit: Hit) -> Retry | None:
    if hit.sign.words in (_OFFLINE, _OFFLINE_MODE):
        return Retry(helps=False, reason="the file will still be missing in offline mode")
    if hit.sign.words == _CERTIFICATE:
        return Retry(helps=False, reason="the certificate will still be untrusted")
    return None
