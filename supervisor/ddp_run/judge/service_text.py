"""Exceptions of remote services' clients: no answer, rejected credentials, missing object. Pure.

Object stores, hubs, databases and trackers have an exception class for each. If one class covers all, an HTTP status or
the service's own code tells them apart. A sign starts with the exception's name, because a program that only prints a
handled exception puts other words before it. Sources: the exceptions defined by httpx, aiohttp, botocore,
google-api-core, google-auth, azure-core, azure-identity, redis, psycopg, grpc, openai, datasets, modelscope and mlflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddp_run.judge.signs import Sign, like


@dataclass(frozen=True, slots=True)
class _Client:
    """A package with distinctive exception classes: the prefix of their names, and patterns for each meaning."""

    module: str
    no_answer: str = ""
    refused: str = ""
    missing: str = ""


_MODELS = ("openai.", "anthropic.", "litellm.")
_OPEN = (*_MODELS, "grpc.", "huggingface_hub.", "gdown.exceptions.")
"""Errors of these clients do not show whether a name is wrong, the service is down, or the caller was rejected."""
_CLIENTS = (
    *(
        _Client(module, r"(?:Connect|Read|Write|RemoteProtocol|Proxy)Error|(?:Connect|Read|Write|Pool)Timeout")
        for module in ("httpx.", "httpx2.", "httpcore.", "httpcore2.")
    ),
    _Client(
        "aiohttp.client_exceptions.",
        r"Client(?:Connect(?:ion|or)\w{0,40}|Proxy\w{0,40}|OS|Payload)Error|ServerDisconnectedError"
        r"|(?:Server|Connection|Socket)TimeoutError",
    ),
    _Client(
        "botocore.exceptions.",
        r"(?:Endpoint)?ConnectionError|ConnectionClosedError|(?:Connect|Read)TimeoutError|ProxyConnectionError"
        r"|SSLError|HTTPClientError|IncompleteReadError|ResponseStreamingError",
        r"(?:No|Partial)CredentialsError|CredentialRetrievalError|ProfileNotFound|UnauthorizedSSOTokenError"
        r"|SSOTokenLoadError|TokenRetrievalError|NoAuthTokenError",
    ),
    _Client(
        "google.api_core.exceptions.",
        r"ServiceUnavailable|TooManyRequests|RetryError|DeadlineExceeded|GatewayTimeout|BadGateway|InternalServerError",
        r"Forbidden|Unauthorized|Unauthenticated|PermissionDenied",
        r"NotFound(?=: 404 [^\n]{0,1000}(?:No such object|bucket does not exist))",
    ),
    _Client("google.auth.exceptions.", r"TransportError", r"RefreshError|DefaultCredentialsError"),
    _Client(
        "azure.core.exceptions.",
        r"Service(?:Request|Response)(?:Timeout)?Error|IncompleteReadError",
        r"ClientAuthenticationError",
        r"ResourceNotFoundError",
    ),
    _Client("azure.identity.", "", r"CredentialUnavailableError|AuthenticationRequiredError"),
    _Client(
        "redis.exceptions.",
        r"(?:Connection|Timeout|BusyLoading)Error",
        r"Authentication(?:WrongNumberOfArgs)?Error|NoPermissionError",
    ),
    *(
        _Client(module, r"API(?:Connection|Timeout)Error|RateLimitError", r"AuthenticationError|PermissionDeniedError")
        for module in _MODELS
    ),
    _Client("ssl.", r"SSL(?:EOF|ZeroReturn|CertVerification)?Error"),
    _Client(
        "urllib3.exceptions.",
        r"(?:NewConnection|NameResolution|ConnectTimeout|ReadTimeout|MaxRetry|Protocol|Proxy|SSL)Error|IncompleteRead",
    ),
    _Client(
        "requests.exceptions.",
        r"(?:Connection|Proxy|SSL|ChunkedEncoding)Error|(?:Connect|Read)Timeout|InvalidProxyURL",
    ),
    _Client("grpc.", r"\w{0,40}RpcError(?=: [\s\S]{0,400}?StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED))"),
    _Client(
        "tritonclient.utils.",
        r"InferenceServerException(?=: \[StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED))",
    ),
    _Client("fsspec.exceptions.", r"FSTimeoutError"),
    _Client("pymongo.errors.", r"ServerSelectionTimeoutError|AutoReconnect|NetworkTimeout|ConnectionFailure"),
    _Client("kafka.errors.", r"NoBrokersAvailable|KafkaTimeoutError|KafkaConnectionError"),
    _Client("gdown.exceptions.", "FileURLRetrievalError"),
    _Client("clearml.backend_api.", "", r"LoginError|MissingConfigError"),
    _Client("wandb.errors.", "", "AuthenticationError"),
    _Client("tensorflow_datasets.", "", "", "DatasetNotFoundError"),
    _Client(
        "oss2.exceptions.", r"RequestError|ServerError", r"AccessDenied|InvalidAccessKeyId", r"NoSuchKey|NoSuchBucket"
    ),
    _Client("neptune.exceptions.", "NeptuneConnectionLostException", r"Neptune(?:Missing|Invalid)ApiTokenException"),
    _Client("zarr.errors.", "", "", r"(?:Path|Group|Array|Node)NotFoundError"),
    _Client("modelscope.hub.errors.", r"FileDownloadError", r"NotLoginException", r"NotExistError"),
    *(
        _Client(
            module,
            "",
            r"DatasetNotFoundError(?=: Dataset '[^'\n]{1,300}' is a gated dataset)",
            r"DatasetNotFoundError|DataFilesNotFoundError|EmptyDatasetError",
        )
        for module in ("datasets.exceptions.", "datasets.data_files.")
    ),
    _Client(
        "huggingface_hub.", "", r"GatedRepoError|RepositoryNotFoundError", r"(?:Remote)?(?:Entry|Revision)NotFoundError"
    ),
)
_WHY = r"\b(?:: (?P<why>[^\n]{0,120}))?"


def _of_classes(kind: str) -> Iterator[Sign]:
    for client in _CLIENTS:
        classes: str = getattr(client, kind)
        if classes:
            pattern = rf"^{re.escape(client.module)}(?:\w+\.){{0,4}}(?:{classes}){_WHY}"
            yield Sign(client.module, pattern, likely=client.module in _OPEN)


_RAISED = r"^[\w.]{1,200}(?:Error|Exception): [^\n]{0,600}?"
_REQUEST = r"(?i:\b(?:https?|api|request|server|url|response|service)\b)"
_REASON = r"[ :\-]{1,3}(?:Unauthorized|Forbidden|Too Many|Internal Server|Bad Gateway|Service Un|Gateway Time|\{)"


def _of_statuses(status: str) -> Iterator[Sign]:
    """An HTTP status in an exception of any class, if the words before it call it one and others indicate a request.

    Only likely: a number in a message says so.
    """
    for words in ("rror code", "returned error ", "(error ", "HTTP response code: ", "tatus code"):
        said = rf"{re.escape(words)}[:=]? ?(?:{status})\b"
        yield Sign(words, rf"{_RAISED}(?:{_REQUEST}[^\n]{{0,300}}?{said}|{said}{_REASON})", likely=True)
    yield like(rf"ClientResponseError: (?:{status}), ", likely=True)  # aiohttp's


def _of_amazon(codes: str, group: str = "what") -> Sign:
    """An error code of S3 or a compatible service."""
    return Sign("An error occurred (", rf"An error occurred \((?P<{group}>{codes})\) when calling")


NO_ANSWER: tuple[Sign, ...] = (
    *_of_classes("no_answer"),
    *_of_statuses(r"5\d\d|429"),
    _of_amazon(
        r"SlowDown|ServiceUnavailable|InternalError|InternalFailure|RequestTimeout|Throttling\w{0,20}|BadGateway"
        r"|TooManyRequests\w{0,20}|RequestLimitExceeded|50[0-4]|429",
        "why",
    ),
    like(r"AWS Error (?P<why>NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE)\b"),  # Arrow
    like(r"connection to server (?:at|on) [^\n]{1,300} failed: (?!FATAL)"),
    like(r"Failed to resolve '(?P<host>[\w.\-]{1,200})'"),  # urllib3's
    Sign("Server Disconnected", types=("ConnectionError",)),  # datasets, of aiohttp
    like(r"IncompleteRead\(\d{1,18} bytes read"),  # http.client, urllib3
    Sign("Consistency check failed: file should be of size", types=("OSError",)),  # huggingface_hub
    Sign("we cannot find the requested files in the cached path"),
    Sign("Please reduce your request rate", types=("OSError",)),  # s3fs
    like(r"Can't connect to MySQL server on '(?P<host>[\w.\-]{1,200})"),
)
REFUSED: tuple[Sign, ...] = (
    *_of_classes("refused"),
    *_of_statuses(r"40[13]"),
    *(
        Sign(words, rf"^(?![\w.]{{0,200}}Proxy){_RAISED[1:]}(?<!Tunnel connection failed: ){words}")
        for words in ("401 Unauthorized", "403 Forbidden")
    ),
    like(rf"{_RAISED}Invalid API key"),
    Sign("API key must be ", types=("ValueError",)),  # wandb
    like(r"AWS Error (?P<what>ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH)"),
    like(r"^PermissionError: (?:Access Denied|Forbidden)", ("PermissionError",)),
    # gRPC's codes, also used by tensorstore and mlflow
    *(
        Sign(f"{code}: ", rf"^[\w.]{{1,200}}: {code}: [^\n]{{0,120}}")
        for code in ("PERMISSION_DENIED", "UNAUTHENTICATED")
    ),
    Sign("password authentication failed for user "),  # PostgreSQL
    like(r"Access denied for user '[^'\n]{1,100}'@"),  # MySQL
    Sign("Could not find kaggle.json"),
    like(r"S3 operation failed; code: (?P<what>AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch)"),  # MinIO
    like(r"api_key client option must be set[^\n]{0,160}"),  # openai
)
MISSING: tuple[Sign, ...] = (
    *_of_classes("missing"),
    _of_amazon(r"NoSuchKey|NoSuchBucket|404"),
    like(r"S3 operation failed; code: (?P<what>NoSuchKey|NoSuchBucket)"),
    like(r"AWS Error (?P<what>NO_SUCH_KEY|NO_SUCH_BUCKET|RESOURCE_NOT_FOUND)"),
    like(r"^[\w.]{1,200}: NOT_FOUND: Error opening [^\n]{0,200}"),  # tensorstore
    Sign("Revision Not Found for url"),
    Sign("is not a valid git identifier (branch name"),  # transformers
)
