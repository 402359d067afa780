"""The line at which a rank crashed, from what faulthandler wrote."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.test_evidence import exited, hello, run_started
from tests.waiting import limit

from ddp_run import explain
from ddp_run.evidence.gather import gather
from ddp_run.judge.diagnose import judge
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import AttemptStarted, Event, MonotonicNs

PROGRAM = """import faulthandler, os, sys, threading
import ctypes
faulthandler.enable(open(sys.argv[1], "w"), all_threads=True)
waits = threading.Event()
def rest():
    waits.wait()
def step(how):
    if how == "abort":
        os.abort()
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), int(how))
threading.Thread(target=rest, daemon=True).start()
step(sys.argv[2])
"""


def verdict(folder: Path, code: int) -> Verdict:
    (folder / "attempt_0" / "rank_0").mkdir(parents=True, exist_ok=True)
    events: list[Event] = [run_started(), AttemptStarted(MonotonicNs(1), 0, (), None), hello(0), hello(1)]
    return judge(gather(folder, [*events, exited(20, 1, code), exited(30, 0, -15)], 0))


def crashed(folder: Path, how: str) -> Verdict:
    """A real process that dies of a signal while another of its threads waits in the user's code."""
    rank = folder / "attempt_0" / "rank_1"
    rank.mkdir(parents=True)
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "train.py"), str(rank / "stacks.txt"), how]
    with (rank / "stderr.log").open("w") as stderr:
        done = subprocess.run(command, stderr=stderr, timeout=limit(60), check=False)
    return verdict(folder, done.returncode)


FLOATING_POINT = "Floating-point exception" if sys.version_info >= (3, 13) else "Floating point exception"


@pytest.mark.parametrize(
    ("how", "cause", "said", "line"),
    [
        ("abort", "native-abort", "Aborted", 9),
        ("segfault", "segfault", "Segmentation fault", 11),
        (str(int(signal.SIGFPE)), "unknown", FLOATING_POINT, 12),
        (str(int(signal.SIGBUS)), "unknown", "Bus error", 12),
    ],
)
def test_the_users_line(tmp_path: Path, how: str, cause: str, said: str, line: int) -> None:
    found = crashed(tmp_path, how)
    first = found.first_failure
    raised = first.exception if first is not None else None
    assert found.cause == cause
    assert raised is not None
    assert (raised.type, raised.message, raised.line, raised.function) == ("Fatal Python error", said, line, "step")
    assert raised.file == str(tmp_path / "train.py")
    assert f"train.py:{line}" in (found.title or "")
    shown = [quote.text for quote in found.evidence if quote.source == "attempt_0/rank_1/stacks.txt"]
    assert any(text.endswith(f'train.py", line {line} in step') for text in shown)


def test_a_crash_in_a_thread_of_no_python_code_has_no_line(tmp_path: Path) -> None:
    rank = tmp_path / "attempt_0" / "rank_1"
    rank.mkdir(parents=True)
    said = "Fatal Python error: Segmentation fault\n\nThread 0x00007f01 (most recent call first):\n"
    (rank / "stacks.txt").write_text(f'{said}  File "/home/me/train.py", line 7 in rest\n')
    first = verdict(tmp_path, -11).first_failure
    assert first is not None
    assert first.exception is None or first.exception.file is None


def test_in_a_pasted_log() -> None:
    text = """step 1
[rank1]: Fatal Python error: Segmentation fault
[rank1]:
[rank1]: Thread 0x00007f01 (most recent call first):
[rank1]:   File "/home/me/data.py", line 7 in rest
[rank1]:
[rank1]: Current thread 0x00007f02 (most recent call first):
[rank1]:   File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
[rank1]:   File "/home/me/train.py", line 12 in step
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 71)
"""
    first = explain(text).first_failure
    assert first is not None
    assert first.exception is not None
    assert (first.exception.file, first.exception.line) == ("/home/me/train.py", 12)


WATCHED = """import faulthandler, os, sys, threading, time
how, last = sys.argv[1:]
def left():
    faulthandler.dump_traceback(all_threads=True)
    print(last, file=sys.stderr, flush=True)
    os._exit(5)
def step():
    time.sleep(60)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("loading", file=sys.stderr, flush=True)
if how == "timeout":
    faulthandler.dump_traceback_later(0.3, exit=True)
else:
    threading.Timer(0.3, left).start()
step()
"""
STEP = "in step (train.py:8)"


@pytest.mark.parametrize(
    ("how", "last", "code", "title", "shown"),
    [
        pytest.param("timeout", "", 1, f"exited with code 1 while its main thread was {STEP}", 2, id="own"),
        pytest.param("thread", "", 5, f"exited with code 5 while its main thread was {STEP}", 2, id="thread"),
        pytest.param("thread", "out of time", 5, "exited with code 5 and printed no error", 1, id="said more"),
    ],
)  # fmt: skip
def test_a_rank_that_a_watchdog_ended_below_the_stacks_of_its_threads(
    tmp_path: Path, how: str, last: str, code: int, title: str, shown: int
) -> None:
    rank = tmp_path / "attempt_0" / "rank_1"
    rank.mkdir(parents=True)
    (tmp_path / "train.py").write_text(WATCHED)
    command = [sys.executable, str(tmp_path / "train.py"), how, last]
    with (rank / "stderr.log").open("w") as stderr:
        done = subprocess.run(command, stderr=stderr, timeout=limit(60), check=False)
    assert done.returncode == code
    found = verdict(tmp_path, code)
    assert found.title == f"rank 1 {title}"
    assert len(found.evidence) == shown
    assert found.evidence[-1].text.endswith("line 8 in step" if shown == 2 else last)


def test_a_program_may_print_the_stack_of_the_crashed_thread_alone(tmp_path: Path) -> None:
    rank = tmp_path / "attempt_0" / "rank_1"
    rank.mkdir(parents=True)
    (tmp_path / "train.py").write_text(PROGRAM.replace("open(sys.argv[1], 'w')", "").replace("True", "False", 1))
    command = [sys.executable, str(tmp_path / "train.py"), str(rank / "stderr.log"), "7"]
    done = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=limit(60), check=False)
    assert done.returncode == -signal.SIGBUS
    assert verdict(tmp_path, done.returncode).title == "rank 1 was killed by SIGBUS in step (train.py:12)"
