"""Logs in which what comes last only tells of another program, thread or rank, whose own words say why."""

from __future__ import annotations

import pytest
from tests.unit.test_crash_beside_lost_peers import box

from ddp_run import explain

REFUSED = """usage: pretrain.py [-h] [--bf16] [--steps STEPS]
pretrain.py: error: argument --bf16: ignored explicit argument 'true'
Traceback (most recent call last):
  File "/home/me/sweep.py", line 7, in <module>
    subprocess.run(command, check=True)
  File "/usr/lib/python3.12/subprocess.py", line 577, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['/usr/bin/python3', '-m', 'pretrain', '--bf16=true']' returned non-zero exit \
status 2.
"""
PRINTED = """Model: UNet, batch 64
Training error: CUDA error: an illegal memory access was encountered
RuntimeError: the training ended with exit code 1
"""
WATCHDOG = """terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: [Rank 2] \
Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, NumelIn=4, NumelOut=4, \
Timeout(ms)=600000) ran for 600041 milliseconds before timing out.
""" + box((1, -6), (2, -6))
ETCD = """[ERROR] 2026-01-01 00:00:00,000 client: Failed to get list of machines from http://etcd:2379/v2: MaxRetry
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/urllib3/connection.py", line 159, in _new_conn
  File "/opt/lib/python3.11/socket.py", line 745, in getaddrinfo
socket.gaierror: [Errno -2] Name or service not known
"""
TRIED = "".join(
    f"node-{node}:18:18 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying ({times}/34) "
    "after sleep for 3000 msec\n"
    for times in (30, 31)
    for node in (1, 2)
)
TOKENIZER = """Traceback (most recent call last):
  File "/home/me/train.py", line 40, in <module>
    tokens = SentencePieceProcessor(model_file=path)
OSError: Not found: "data/1024.model": No such file or directory Error #2
"""
WINDOWS = """Traceback (most recent call last):
  File "/home/me/serve.py", line 149, in <module>
    raise OSError(err.errno, 'error while attempting '
OSError: [Errno 10048] error while attempting to bind on address ('127.0.0.1', 8188): only one usage of each address
"""
PLAN = """[E] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion failed.Trying to \
load an engine created with incompatible serialization version. Check that)
[!] Could not deserialize engine. See log for details.
"""
THREADS = """epoch 4 done
Exception in thread Thread-1:
Exception in thread Thread-3:

Traceback (most recent call last):
Traceback (most recent call last):
  File "/usr/lib/python3.10/threading.py", line 1016, in _bootstrap_inner
  File "/usr/lib/python3.10/threading.py", line 1016, in _bootstrap_inner
    self.run()
    self.run()
  File "/usr/lib/python3.10/multiprocessing/connection.py", line 136, in _check_closed
  File "/usr/lib/python3.10/multiprocessing/connection.py", line 136, in _check_closed
    raise OSError("handle is closed")
OSError: handle is closed
    raise OSError("handle is closed")
OSError: handle is closed
"""
PACKAGE = """Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/transformers/utils/quantization_config.py", line 769, in post_init
    version("optimum")
  File "/usr/lib/python3.12/importlib/metadata/__init__.py", line 399, in from_name
    raise PackageNotFoundError(name)
importlib.metadata.PackageNotFoundError: No package metadata was found for optimum
"""
MODEL = """2026-01-01 16:17:07,504 - serve - ERROR - base.py:55 - ValueError: The checkpoint you are trying to load \
has model type `gpt9_moe` but Transformers does not recognize this architecture. This could be because of an issue with
the checkpoint, or because your version of Transformers is out of date.
"""
DEMANDED = """Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/transformers/integrations/bitsandbytes.py", line 536, in _validate
RuntimeError: CUDA is required but not available for bitsandbytes. Please consider installing another version of it.
"""
LINKED = """Traceback (most recent call last):
  File "/env/lib/python3.10/site-packages/horovod/tensorflow/mpi_ops.py", line 45, in _load_library
tensorflow.python.framework.errors_impl.NotFoundError: libmpi.so.12: cannot open shared object file: No such file or \
directory
"""
EIGHT = WATCHDOG.partition("torch.distributed.elastic")[0] + box(
    (5, -6), *((rank, -6) for rank in (0, 1, 2, 3, 4, 6, 7))
)
SILENT = """[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.56 GiB. GPU 3 has a total \
capacity of 184.31 GiB of which 67.28 GiB is free.
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 10, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.10/site-packages/torch/distributed/run.py", line 918, in main
    run(args)
  File "/opt/venv/lib/python3.10/site-packages/torch/distributed/launcher/api.py", line 138, in __call__
    return launch_agent(self._config, self._entrypoint, list(args))
  File "/opt/venv/lib/python3.10/site-packages/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
""" + box((7, 1))
SOURCED = "/var/spool/slurmd/job7/slurm_script: line 6: /opt/env.sh: No such file or directory\n"
ADAPTER = "Error loading adapter: Can't find 'adapter_config.json' at '/home/me/checkpoints'\n"
CLAP = """error: a value is required for '--model-id <MODEL_ID>' but none was supplied

For more information, try '--help'.
"""
IN_A_LIBRARY = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    model = build(config)
  File "/env/lib/python3.12/site-packages/somewhere/build.py", line 9, in build
    raise RuntimeError("the plan does not hold")
RuntimeError: the plan does not hold
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(PACKAGE, "import-error", id="a package that is not installed"),
        pytest.param(MODEL, "version-mismatch", id="a model that the library does not know"),
        pytest.param(DEMANDED, "cuda-unavailable", id="a library that asks for a GPU"),
        pytest.param(LINKED, "import-error", id="a library's own class for a library that is missing"),
        pytest.param(EIGHT, "nccl-timeout-hang", id="a long summary behind the watchdog's words"),
        pytest.param(SILENT, "cuda-oom", id="an exception of another rank than the first, which has no words"),
        pytest.param(SOURCED, "file-not-found", id="a shell's words"),
        pytest.param(ADAPTER, "file-not-found", id="an adapter's folder"),
        pytest.param(CLAP, "bad-arguments", id="a program in Rust"),
        pytest.param(REFUSED, "bad-arguments", id="a program that a script started refused its arguments"),
        pytest.param(PRINTED, "illegal-memory-access", id="an error that the program printed"),
        pytest.param(WATCHDOG, "nccl-timeout-hang", id="the watchdog of another rank than the first"),
        pytest.param(ETCD, "rendezvous-dns", id="etcd's client"),
        pytest.param(TRIED, "nccl-network", id="connections that NCCL tries again and again"),
        pytest.param(TOKENIZER, "file-not-found", id="a library's own class"),
        pytest.param(WINDOWS, "port-in-use", id="another system's number"),
        pytest.param(PLAN, "version-mismatch", id="an engine of another version"),
    ],
)
def test_the_words_of_who_failed(text: str, cause: str) -> None:
    found = explain(text)
    assert found.cause == cause, found.title


def test_why_a_started_program_failed_is_unknown_without_its_words() -> None:
    only = "".join(REFUSED.splitlines(keepends=True)[2:])
    found = explain(only)
    assert (found.cause, found.confidence) == ("unknown", "unknown")


def test_threads_that_end_at_once_end_no_program() -> None:
    assert explain(THREADS).confidence != "certain"


def test_what_a_library_raised_may_have_a_reason_with_a_name() -> None:
    found = explain(IN_A_LIBRARY)
    assert (found.cause, found.confidence) == ("python-exception", "likely")
    own = IN_A_LIBRARY.replace("/env/lib/python3.12/site-packages/somewhere", "/home/me")
    assert explain(own).confidence == "certain"
