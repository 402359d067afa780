"""Process or thread limit reached.

## What happened
The user or the container reached its limit of processes and threads, and the kernel refused to create another.
## How to recognise it
`can't start new thread`; `[Errno 11] Resource temporarily unavailable` from `fork`; `libgomp: Thread creation failed`;
`OpenBLAS blas_thread_init: pthread_create failed … RLIMIT_NPROC`; `what():  Resource temporarily unavailable`; in the
kernel log `cgroup: fork rejected by pids controller`. Each rank starts threads for OpenMP, BLAS, data workers and NCCL:
on a host with many cores that adds up to thousands.
## What to do
Use fewer threads per rank (`OMP_NUM_THREADS`, `OPENBLAS_NUM_THREADS`, `RAYON_NUM_THREADS`), fewer DataLoader workers,
or a higher limit: `ulimit -u` for the user, `pids.max` of the cgroup for a container (`docker run --pids-limit -1`).
"""

from __future__ import annotations

import re
import signal

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, anywhere, ended_by, in_last_words, in_whole_log, like, quotes, said_last
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP906",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the limit will still be too low"),
)
_AGAIN = "Resource temporarily unavailable"
_SAID: tuple[Sign, ...] = (
    Sign("can't start new thread"),
    like(rf"libgomp: Thread creation failed: {_AGAIN}"),
    like(rf"OpenBLAS.{{0,200}}pthread_create failed for thread \d+ of \d+: {_AGAIN}"),
    Sign("System unable to allocate necessary resources for OMP thread"),
    like(rf"^RuntimeError: {_AGAIN}$", likely=True),  # std::system_error: of std::thread
    like(rf"what\(\):\s+(?:thread(?: constructor failed)?: )?{_AGAIN}"),
    like(rf"fork: (?:retry: )?{_AGAIN}"),
    like(rf"code: 11, kind: WouldBlock, message: \"{_AGAIN}\""),
)
_FORK = (Sign(_AGAIN, types=("BlockingIOError", "OSError")),)
_FORKED = re.compile(r"in _execute_child|_fork_exec|popen_(?:fork|spawn_posix|forkserver)\.py|os\.fork|forkserver\.py")
_REJECTED = (Sign("fork rejected by pids controller"),)
_OF_LSF = (like(r"TERM_(?:THREAD|PROCESS)LIMIT: "),)
SIGNS = (*_SAID, *_FORK, *_REJECTED, *_OF_LSF)
_ADVICE = (
    "ulimit -u; cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current   # the limits and current use",
    "ps -eLf --no-headers | awk '{print $1}' | sort | uniq -c   # threads per user",
    "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 RAYON_NUM_THREADS=1   # fewer threads per rank",
)


def _follows(death: Death) -> bool:
    """OpenBLAS raises SIGINT if it cannot start its threads, or the import of its module fails."""
    return death.exception is not None and death.exception.type in ("KeyboardInterrupt", "ImportError")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the kernel's refusal as reported by Python, OpenMP, BLAS, C++ and Rust."""
    if death.exception is None and death.code in (-signal.SIGKILL, -signal.SIGTERM):
        return None
    hit = ended_by(death, _SAID) or (in_whole_log(attempt, _OF_LSF) if death.exception is None else None)
    hit = hit or said_last(death, _REJECTED)
    if hit is None and _follows(death):
        hit = in_last_words(death, _SAID)
    if hit is None:
        hit = ended_by(death, _FORK)
        if hit is None or not _FORKED.search(hit.traceback):
            return None
    kernel = anywhere(attempt.kernel, _REJECTED)
    by = "this job's pids cgroup is full" if kernel is not None else "process and thread limit reached"
    cause = f"{death.who} could not start another process or thread: {by}"
    return hit.finding(RULE, death, cause, _ADVICE, also=quotes(kernel))
