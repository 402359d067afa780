"""Remote services in the words of their clients' classes, and exceptions of others that only look like them."""

from __future__ import annotations

import pytest

from ddp_run import explain

CAUSES: tuple[tuple[str, str, str], ...] = (
    # no answer
    ("redis.exceptions.ConnectionError", "Error 111 connecting to redis-0:6379. Connection refused.", "hub-network"),
    ("mytool.redis.exceptions.ConnectionError", "Error 111 connecting.", "python-exception"),
    ("httpx.ReadError", "", "hub-network"),
    ("tarfile.ReadError", "not a gzip file", "python-exception"),
    ("shutil.ReadError", "/data/a.zip is not a zip file", "python-exception"),
    ("botocore.exceptions.ConnectionClosedError", "Connection was closed before we received a response", "hub-network"),
    (
        "botocore.exceptions.ParamValidationError",
        "Parameter validation failed: Invalid bucket name",
        "python-exception",
    ),
    ("google.api_core.exceptions.TooManyRequests", "429 GET https://storage.example/b/x/o: rate", "hub-network"),
    (
        "google.api_core.exceptions.NotFound",
        "404 GET https://s.example/b/x?alt=media: No such object: b/x",
        "file-not-found",
    ),
    ("google.api_core.exceptions.NotFound", "404 Endpoint `projects/p/endpoints/1` not found.", "python-exception"),
    ("azure.core.exceptions.ServiceRequestError", "<connection>: Failed to establish a new connection", "hub-network"),
    ("openai.APIConnectionError", "Connection error.", "hub-network"),
    ("openai.BadRequestError", "Error code: 400 - {'message': 'context length'}", "python-exception"),
    ("psycopg2.OperationalError", 'connection to server at "db" (10.0.0.9), port 5432 failed: refused', "hub-network"),
    ("psycopg2.errors.UndefinedTable", 'relation "runs" does not exist', "python-exception"),
    ("http.client.IncompleteRead", "IncompleteRead(12 bytes read)", "hub-network"),
    (
        "botocore.exceptions.ClientError",
        "An error occurred (SlowDown) when calling the PutObject operation",
        "hub-network",
    ),
    (
        "botocore.exceptions.ClientError",
        "An error occurred (ValidationError) when calling the X operation",
        "python-exception",
    ),
    (
        "mlflow.exceptions.MlflowException",
        "API request to endpoint /api failed with error code 503 != 200.",
        "hub-network",
    ),
    ("RuntimeError", "the solver ended with error code 503", "python-exception"),
    ("RuntimeError", "kernel launch returned error 401", "python-exception"),
    # a refusal
    ("mlflow.exceptions.MlflowException", "API request to endpoint /api failed with error code 401 != 200.", "auth"),
    ("wandb.errors.errors.CommError", 'failed to upsert bucket: returned error 403: {"data":{}}', "auth"),
    ("PermissionError", "Access Denied", "auth"),
    ("PermissionError", "[Errno 13] Permission denied: '/data/Access Denied'", "permission-denied"),
    ("botocore.exceptions.ProfileNotFound", "The config profile (research) could not be found", "auth"),
    ("ValueError", 'PERMISSION_DENIED: Error opening "zarr" driver: Error reading gs://b/x', "auth"),
    ("ValueError", "a state called PERMISSION_DENIED: unknown", "python-exception"),
    ("datasets.exceptions.DatasetNotFoundError", "Dataset 'a/b' is a gated dataset on the Hub.", "auth"),
    ("datasets.exceptions.DatasetNotFoundError", "Revision 'v2' doesn't exist for dataset 'a/b'.", "file-not-found"),
    ("huggingface_hub.errors.RepositoryNotFoundError", "404 Client Error. (Request ID: Root=1)", "auth"),
    ("huggingface_hub.errors.RevisionNotFoundError", "404 Client Error. (Request ID: Root=1)", "file-not-found"),
    ("openai.AuthenticationError", "Error code: 401 - {'error': {'code': 'invalid_api_key'}}", "auth"),
    ("neptune.exceptions.NeptuneMissingApiTokenException", "", "auth"),
    ("neptune.exceptions.NeptuneMissingProjectNameException", "", "python-exception"),
    ("httpx.HTTPStatusError", "Client error '403 Forbidden' for url 'https://hub.example/x'", "auth"),
    ("httpx.ProxyError", "403 Forbidden", "hub-network"),
    ("OSError", "Tunnel connection failed: 403 Forbidden", "python-exception"),
    ("minio.error.S3Error", "S3 operation failed; code: AccessDenied, message: Access Denied.", "auth"),
    ("ValueError", "API key must be 40 characters long, yours was 36", "auth"),
    ("KeyError", "'API key'", "python-exception"),
    # nothing there
    ("oss2.exceptions.NoSuchKey", "{'status': 404}", "file-not-found"),
    ("zarr.errors.GroupNotFoundError", "group not found at path ''", "file-not-found"),
    ("zarr.errors.ContainsArrayError", "An array exists in store 'x' at path 'y'.", "python-exception"),
    (
        "botocore.errorfactory.NoSuchKey",
        "An error occurred (NoSuchKey) when calling the GetObject operation",
        "file-not-found",
    ),
)
GIT = """Cloning into 'model'...
fatal: unable to access 'https://hub.example/x/y/': Could not resolve host: hub.example
Traceback (most recent call last):
  File "/home/user/train.py", line 3, in <module>
    subprocess.run(['git', 'clone', url], check=True)
  File "/usr/lib/python3.10/subprocess.py", line 526, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['git', 'clone', 'x']' returned non-zero exit status 128.
"""


PRINTED: tuple[tuple[str, str], ...] = (
    (
        "2025-03-01 10:00:00 | ERROR | loader:33 - failed to load: [Errno 2] No such file or directory: '/x'",
        "file-not-found",
    ),
    ("INFO using no cache: [Errno 2] No such file or directory: '/x'", "unknown"),
    ("[ERROR] config file not found: /configs/a.yaml", "file-not-found"),
    ("ERROR could not create the folder: [Errno 13] Permission denied: '/mnt/out'", "permission-denied"),
    ("ERROR:root:failed to save: [Errno 5] Input/output error", "filesystem-error"),
    ("wandb: ERROR The API key you provided is either invalid or missing.", "auth"),
)


@pytest.mark.parametrize(("line", "cause"), PRINTED)
def test_printed_in_place_of_a_traceback(line: str, cause: str) -> None:
    ended = "srun: error: n1: task 0: Exited with exit code 1\n"
    found = explain(f"step 1\n{line}\n{ended}")
    assert (found.cause, found.confidence) == (cause, "unknown" if cause == "unknown" else "likely")
    if cause in ("file-not-found", "permission-denied", "filesystem-error"):
        assert explain(f"{line}\n" + "step 1\n" * 20 + ended).cause == "unknown"


def test_a_wrapper_is_not_the_reason() -> None:
    place = 'Traceback (most recent call last):\n  File "/env/lib/python3.11/site-packages/transformers/a.py", line 1\n'
    raised = f"{place}OSError: Can't load config for 'bert-base'. Make sure that it is a correct name\n"
    assert explain(raised).cause == "file-not-found"
    assert (
        explain(f"{place}PermissionError: [Errno 13] Permission denied: '/.cache'\n{raised}").cause != "file-not-found"
    )


@pytest.mark.parametrize(("kind", "message", "cause"), CAUSES)
def test_cause(kind: str, message: str, cause: str) -> None:
    place = '  File "/venv/lib/python3.11/site-packages/client/api.py", line 10, in ask\n    raise error\n'
    text = f"Traceback (most recent call last):\n{place}{kind}{': ' * bool(message)}{message}\n"
    assert explain(text).cause == cause


def test_a_program_that_got_no_answer() -> None:
    assert explain(GIT).cause == "hub-network"
    refused = GIT.replace("Could not resolve host: hub.example", "The requested URL returned error: 500")
    assert explain(refused).cause == "hub-network"
    assert explain(refused.replace("fatal: unable", "warning: was unable")).cause == "python-exception"


def test_a_class_that_leaves_something_open_is_not_certain() -> None:
    model = 'Traceback (most recent call last):\n  File "/app/evaluate.py", line 3, in ask\n    ask()\n'
    assert explain(f"{model}openai.APIConnectionError: Connection error.\n").confidence == "likely"
    assert explain(f"{model}redis.exceptions.TimeoutError: Timeout connecting to server\n").confidence == "certain"
