"""The loop's signals, with real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.waiting import limit

from ddp_run.supervise import loop as loop_module
from ddp_run.supervise.loop import Loop, Wakeup

WAITS_FOR_A_CHILD = """
import signal, subprocess
from ddp_run.supervise.loop import Loop, reap
with Loop([signal.SIGCHLD]) as loop:
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    while not (ended := reap()):
        loop.wait()
    print(ended == [(child.pid, 3)])
"""


def _ignored() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})


@pytest.mark.parametrize("inherited", [_ignored, _blocked])
def test_children_are_heard_of_whatever_effect_of_sigchld_was_inherited(inherited: Callable[[], None]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_A_CHILD],
        preexec_fn=inherited,
        capture_output=True,
        text=True,
        timeout=limit(20),
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("deaths", [1_000, 70_000], ids=["a socket's worth", "a pipe's worth"])
def test_no_signal_is_lost_behind_many_others(deaths: int) -> None:
    own = os.getpid()
    with Loop([signal.SIGCHLD, signal.SIGTERM]) as loop:
        for _ in range(deaths):  # one turn of the loop takes long meanwhile
            os.kill(own, signal.SIGCHLD)
        os.kill(own, signal.SIGTERM)
        os.kill(own, signal.SIGCHLD)
        caught = loop.wait(0)
        assert caught.count(signal.SIGTERM) == 1
        assert signal.SIGCHLD in caught
        assert loop.wait(0) == []


@pytest.mark.parametrize("within_s,times", [(3600.0, 1), (0.0, 2)])
def test_sigterm_twice_within_a_while_is_one(monkeypatch: pytest.MonkeyPatch, within_s: float, times: int) -> None:
    """As SLURM sends it at a time limit; Ctrl-C twice is two."""
    monkeypatch.setattr(loop_module, "_ONE_SIGTERM_S", within_s)
    caught: list[Wakeup] = []
    with Loop([signal.SIGTERM, signal.SIGINT]) as loop:
        for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), signum)
            caught += loop.wait(0)
    assert caught == [signal.SIGTERM] * times + [signal.SIGINT] * 2
