"""Whether a rank works, by values and by real processes."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import wait_until

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.kernel_wait import holder_of
from ddp_run.observe.movement import Movement, close_look
from ddp_run.observe.process_look import ProcessLook, process, used
from ddp_run.observe.stack_text import Frame, Stack
from ddp_run.record.events import LocalRank, MonotonicNs, Rank, RankStarted

S = 1_000_000_000
SLEEPS = ProcessLook(ProcessState.SLEEPING)


def started(pid: int, at: int = 100) -> RankStarted:
    return RankStarted(MonotonicNs(at * S), Rank(0), LocalRank(0), 0, pid, 1, 1, "")


@pytest.mark.parametrize(
    ("program", "works"),
    [
        ("while True: pass", True),
        ("import subprocess; subprocess.run([sys.executable, '-c', 'while True: pass'])", True),
        ("while True: time.sleep(0.001); sys.stdout.write('x' * 9999)", True),
        ("while True: time.sleep(0.05); os.path.exists('/nowhere')", False),
        ("while True: time.sleep(0.05); print('still waiting')", False),
    ],
)
def test_what_counts_as_work(program: str, works: bool) -> None:
    """Two seconds of the movement's own clock, which here are over when the process has shown what it does."""
    movement = Movement()
    words = [sys.executable, "-uc", f"import os, sys, time; print(file=sys.stderr, flush=True)\n{program}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == b"\n"
        rank = started(child.pid)
        movement.sample(MonotonicNs(200 * S), [rank])
        cpu_s, io_bytes = used(child.pid)

        def shown() -> bool:
            now = used(child.pid)
            return now[0] - cpu_s > 0.3 or now[1] - io_bytes > 1 << 18

        wait_until(shown if works else lambda: process(child.pid).naps > 9, "what it does")
        movement.sample(MonotonicNs(200 * S + S // 2), [rank])  # too soon to tell
        assert movement.last(rank) == 100 * S
        movement.sample(MonotonicNs(202 * S), [rank])
        assert movement.last(rank) == (202 if works else 100) * S
        for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
            subprocess.run(["kill", pid], check=True)
        child.kill()


def test_another_start_of_a_rank_has_not_worked_yet() -> None:
    movement = Movement()
    movement.moved(7, MonotonicNs(150 * S))
    assert (movement.last(started(7)), movement.last(started(8, 120))) == (150 * S, 120 * S)


def test_a_rank_that_wakes_to_sleep_again_naps() -> None:
    stack = Stack((Frame("/home/user/train.py", 3, "f"),))

    def naps(before: ProcessLook, now: ProcessLook) -> bool:
        return close_look(Rank(0), (stack, before), (stack, now), 1.6, {}).naps

    asleep = replace(SLEEPS, asleep=True)
    assert naps(asleep, replace(asleep, naps=2))
    assert naps(asleep, replace(SLEEPS, state=ProcessState.RUNNING, naps=2))
    assert not naps(asleep, replace(asleep, switches=40))  # other threads do
    assert not naps(asleep, replace(asleep, naps=30, cpu_s=0.2))
    assert not naps(SLEEPS, replace(SLEEPS, naps=30))


def test_a_rank_whose_child_wants_to_run_works() -> None:
    driven = replace(SLEEPS, driven=True)
    assert close_look(Rank(0), (None, driven), (None, driven), 1.6, {}).works
    assert not close_look(Rank(0), (None, driven), (None, SLEEPS), 1.6, {}).works


def test_who_has_a_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    assert holder_of(str(lock), ()) is None
    with subprocess.Popen(["sleep", "60"], stdin=lock.open()) as opened:
        assert holder_of(str(lock), ()) == opened.pid
        assert holder_of(str(lock), (opened.pid,)) is None
        with subprocess.Popen(["flock", str(lock), "sleep", "60"]) as locks:
            wait_until(lambda: holder_of(str(lock), ()) == locks.pid, "the lock")
            with lock.open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            children = Path(f"/proc/{locks.pid}/task/{locks.pid}/children")
            wait_until(children.read_text, "flock starts its command, with the lock held")
            subprocess.run(["kill", *children.read_text().split()], check=True)
        opened.kill()
    with pytest.raises(OSError):
        holder_of(f"{lock}x", ())
