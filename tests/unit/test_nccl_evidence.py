"""NCCL's own words reach a live verdict, wherever they were written: a file of its own, or the rank's stdout."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_evidence import exited, hello, run_started

from ddp_run.evidence.gather import gather
from ddp_run.judge.diagnose import judge
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import AttemptStarted, Event, MonotonicNs

# The forms are of NCCL's src/debug.cc and of torch's ProcessGroupNCCL.cpp and NCCLUtils.hpp.
ERROR = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.barrier()
torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:1970, {code}, NCCL version 2.21.5
{name}: Call to CUDA function failed.
"""
ABORT = """[rank1]:[E ProcessGroupNCCL.cpp:1] Process group watchdog thread terminated with NCCL error: {code}
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  NCCL error: {code}, NCCL version 2.21.5
"""
CUDA = {"code": "unhandled cuda error", "name": "ncclUnhandledCudaError"}
SYSTEM = {"code": "unhandled system error", "name": "ncclSystemError"}
BY = "node-a:101:133 [1] "
LATER = "[2026-11-22 09:00:00] " + BY
OUT_OF_MEMORY = "include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'"
NO_ROOM = (
    "misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888),"
    " error: No space left on device (28)"
)
UNREACHABLE = "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<43033> failed : No route to host"
MEMLOCK = "misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"


def verdict(folder: Path, code: int, **files: str) -> Verdict:
    for rank in (0, 1):
        (folder / "attempt_0" / f"rank_{rank}").mkdir(parents=True)
    for name, text in files.items():
        (folder / "attempt_0" / "rank_1" / f"{name}.log").write_text(text)
    events: list[Event] = [run_started(), AttemptStarted(MonotonicNs(1), 0, (), None), hello(0), hello(1)]
    return judge(gather(folder, [*events, exited(20, 1, code), exited(30, 0, -15)], 0))


@pytest.mark.parametrize(
    ("error", "warning", "cause"),
    [
        (CUDA, OUT_OF_MEMORY, "cuda-oom"),
        (SYSTEM, NO_ROOM, "shm-exhausted"),
        (SYSTEM, UNREACHABLE, "nccl-network"),
        (SYSTEM, MEMLOCK, "memlock-limit"),
    ],
)
@pytest.mark.parametrize("by", [BY, LATER])
@pytest.mark.parametrize("end", ["raised", "aborted"])
@pytest.mark.parametrize("place", ["nccl", "stdout"])
def test_its_warning_says_why(
    tmp_path: Path, error: dict[str, str], warning: str, cause: str, by: str, end: str, place: str
) -> None:
    code, text = (1, ERROR.format(**error)) if end == "raised" else (-6, ABORT.format(**error))
    found = verdict(tmp_path, code, stderr=text, **{place: f"\n{by}{warning}\n"})
    assert (found.cause, found.first_failure and found.first_failure.rank) == (cause, 1)
    quoted = [(quote.source, quote.line) for quote in found.evidence]
    assert (f"attempt_0/rank_1/{place}.log", 2) in quoted


def test_what_it_warned_of_is_no_cause_of_another_end(tmp_path: Path) -> None:
    raised = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nValueError: bad\n'
    assert verdict(tmp_path, 1, stderr=raised, nccl=f"{BY}{OUT_OF_MEMORY}\n").cause == "python-exception"


def test_what_it_warned_of_is_no_cause_of_another_abort(tmp_path: Path) -> None:
    aborted = "free(): invalid pointer\n"
    assert verdict(tmp_path, -6, stderr=aborted, nccl=f"{BY}{OUT_OF_MEMORY}\n").cause == "native-abort"
