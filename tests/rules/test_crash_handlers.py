"""Crashes in the words of handlers that libraries install: glog's, which Paddle uses, folly's and absl's; and the line
by which a verdict cites how a rank ended."""

from __future__ import annotations

import pytest

from ddp_run import explain

STEP = "epoch 1 step 20 loss 0.31\n"
GLOG = (
    '{0}*** Aborted at 1700000000 (unix time) try "date -d @1700000000" if you are using GNU date ***\n'
    "PC: @     0x7f10aa00b0c0 (unknown)\n"
    "*** {1} (@0x10) received by PID 4711 (TID 0x7f10aa7fc700) from PID 16; stack trace: ***\n"
    "    @     0x7f10aa00a390 (unknown)\n"
)
FOLLY = (
    "*** Signal {0} ({1}) (0x10) received by PID 4711 (pthread TID 0x7f10) (linux TID 4711) "
    "(code: address not mapped to object), stack trace: ***\n    @ 0000000000a1 step\n"
)
PADDLE = (
    "----------------------\nError Message Summary:\n----------------------\n"
    "FatalError: `{0}` is detected by the operating system.\n"
    '  [TimeInfo: *** Aborted at 1700000000 (unix time) try "date -d @1700000000" if you are using GNU date ***]\n'
    "  [SignalInfo: *** {1} (@0x10) received by PID 4711 (TID 0x7f10aa7fc700) from PID 4700 ***]\n"
)
RAISED = (
    'Traceback (most recent call last):\n  File "/app/fit.py", line 71, in <module>\n    main()\n'
    "ValueError: bad batch\n"
)
BOX = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
fit.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_08:00:00
  host      : gpu1
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 4711
============================================================
"""


@pytest.mark.parametrize(
    ("text", "cause", "code"),
    [
        pytest.param(GLOG.format("", "SIGSEGV"), "segfault", 139, id="glog"),
        pytest.param(GLOG.format("[1,3]<stderr>:", "SIGABRT"), "native-abort", 134, id="glog, SIGABRT"),
        pytest.param(FOLLY.format(11, "SIGSEGV"), "segfault", 139, id="folly"),
        pytest.param(PADDLE.format("Segmentation fault", "SIGSEGV"), "segfault", 139, id="Paddle"),
        pytest.param(PADDLE.format("Illegal instruction", "SIGILL"), "illegal-instruction", 132, id="Paddle, SIGILL"),
        pytest.param(PADDLE.format("Termination signal", "SIGTERM"), "preempted-sigterm", 143, id="Paddle, SIGTERM"),
        pytest.param("*** SIGSEGV received at time=1700000000 on cpu 6 ***\n", "segfault", 139, id="absl"),
        pytest.param("*** SIGILL received at time=1700000000 on cpu 6 ***\n", "illegal-instruction", 132, id="absl's"),
        pytest.param(
            "fit.sh: line 3: 71 Illegal instruction (core dumped) python fit.py\n",
            *("illegal-instruction", 132),
            id="a shell's",
        ),
        pytest.param(
            "[7.1] traps: python[71] trap invalid opcode ip:7f1 sp:7ff error:0 in libfit.so[7f10+9]\n",
            *("illegal-instruction", None),
            id="the kernel's",
        ),
    ],
)
def test_a_librarys_handler_tells_the_signal(text: str, cause: str, code: int | None) -> None:
    found = explain(STEP + text)
    assert (found.cause, found.exit_code) == (cause, code)
    assert [quote.text.strip() in text for quote in found.evidence] == [True]


def test_an_illegal_instruction_names_the_library() -> None:
    found = explain(STEP + "[7.1] traps: python[71] trap invalid opcode ip:7f1 sp:7ff error:0 in libfit.so[7f10+9]\n")
    assert found.title == "a rank met an illegal instruction of libfit.so"


@pytest.mark.parametrize(
    "told", [PADDLE.format("Termination signal", "SIGTERM"), "fit.sh: line 3:  71 Terminated    python fit.py\n"]
)
def test_who_is_told_to_end_after_an_exception_did_not_fail(told: str) -> None:
    found = explain(STEP + RAISED + told)
    assert (found.cause, found.confidence) == ("python-exception", "certain")
    assert explain(STEP + told).cause == "preempted-sigterm"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (BOX, "  exitcode  : -11 (pid: 4711)"),
        (
            "E1130 08:00:00.000000 99 torch/distributed/elastic/multiprocessing/api.py:874] "
            "failed (exitcode: -11) local_rank: 1 (pid: 4711) of binary: /usr/bin/python3\n",
            None,
        ),
        (
            "mpirun noticed that process rank 1 with PID 4711 on node gpu1 exited on signal 11 (Segmentation fault).\n",
            None,
        ),
    ],
)
def test_a_verdict_cites_the_line_that_tells_of_the_end(text: str, line: str | None) -> None:
    found = explain(STEP + text)
    assert found.cause == "segfault"
    assert [quote.text for quote in found.evidence] == [line or text.rstrip("\n")]
