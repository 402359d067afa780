"""Who runs, who is below whom, and who is signalled: real processes, also those that hide from simple looks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.headless import HEADLESS
from tests.waiting import wait_until

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.process_look import process
from ddp_run.supervise.ranks import read_exit_status
from ddp_run.values import process_table


@pytest.fixture
def headless() -> Iterator[tuple[int, int]]:
    """Its pid, and its child's."""
    with subprocess.Popen([sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE, env={"A": "1"}) as started:
        assert started.stdout is not None
        pid, child = map(int, started.stdout.readline().split())
        wait_until(lambda: b") Z " in Path(f"/proc/{pid}/stat").read_bytes(), "the exit of its main thread")
        yield pid, child
        os.kill(child, signal.SIGKILL)
        started.kill()


def test_a_process_without_its_main_thread_has_not_ended(headless: tuple[int, int]) -> None:
    pid, child = headless
    assert process_table.is_alive(pid)
    assert read_exit_status(pid, None) is None, "it may yet exit with any code"
    assert process_table.children(pid) == [child]
    assert {pid, child} <= (process_table.below(os.getpid()) or {}).keys()
    assert process_table.environs([pid]) == {pid: {"A": "1"}}
    wait_until(lambda: process(pid).asleep, "a sleep of its other thread")
    assert process(pid).state is ProcessState.SLEEPING


def test_kernels_without_lists_of_children(headless: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid, child = headless
    listed = process_table.below(os.getpid())
    monkeypatch.setattr(process_table, "_CHILDREN", Path("/proc/none"))
    assert process_table.children(pid) == [child]
    assert process_table.below(os.getpid()) == listed
    assert listed is not None
    assert {pid, child} <= listed.keys()
    assert process_table.below(os.getpid(), [pid]) == {each: at for each, at in listed.items() if each not in headless}


def test_a_number_that_came_again_gets_no_signal() -> None:
    """Neither where the process is known by its start, nor by its pidfd."""
    with subprocess.Popen(["true"]) as before, subprocess.Popen(["sleep", "600"]) as stranger:
        ended = os.pidfd_open(before.pid)
        before.wait()
        at = process_table.began(stranger.pid)
        assert at is not None
        assert process_table.send({stranger.pid: at - 1}, signal.SIGKILL) == ()
        assert not process_table.send_one(stranger.pid, signal.SIGKILL, ended)
        os.close(ended)
        assert process_table.send({stranger.pid: at}, 0) == (stranger.pid,)
        assert stranger.poll() is None
        assert process_table.send_one(stranger.pid, signal.SIGKILL)
