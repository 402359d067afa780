"""Jobs that really hang, and jobs that only take long, with three ranks each.

Most take half a minute and are not run by default: `scripts/test -m slow_system tests/system/test_hangs.py`. How soon a
hang is told of: tests/bench/bench_hangs.py.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import pytest

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.process_look import state
from tests.waiting import wait_until

from .conftest import Launcher, Outcome, Running, assert_replay_agrees, cases

STALL = Path(__file__).parents[1] / "faults" / "stall.py"
STANDING_S = 23.0
"""Longer than the patience of ddp-run, by so much that it would say something if it did."""


@dataclass(frozen=True)
class Hang:
    """`ranks`: whom the others wait for. `hung`: whether it is called a hang at once; a sleep may end, a lock not."""

    ranks: tuple[int, ...] = (1,)
    cause: str = "hang"
    hung: bool = True
    said: str = ""
    has_stack: bool = True


HANGS = {
    "branch": Hang((0,), "collective-mismatch", said="rank 0 entered barrier"),
    "batches": Hang(cause="collective-mismatch", said="rank 1 entered barrier"),
    "spin": Hang(hung=False, said="rank 1 is running at"),
    "lock": Hang(said="rank 1 waits for a lock"),
    "queue": Hang(said="rank 1 waits for a lock or a thread"),
    "c-sleep": Hang(hung=False, said="rank 1 sleeps at"),
    "gil": Hang(hung=False, said="rank 1 is running and holds the GIL at"),
    "gil-lock": Hang(said="rank 1 waits for a lock"),
    "stop": Hang(said="rank 1 is stopped (SIGSTOP)", has_stack=False),
    "worker": Hang(hung=False, said="rank 1 waits for data at"),
    "dataset": Hang(hung=False, said="/pipe at stall.py"),
    "no-init": Hang(said="ranks 0,2 wait for it to join a process group"),
    "order": Hang(cause="collective-mismatch", said="rank 1 entered broadcast"),
    "shape": Hang(cause="collective-mismatch", said="rank 1 entered all_reduce of [4]"),
    "leave": Hang(cause="peer-died", said="rank 1 exited with code 0", has_stack=False),
    "subgroups": Hang((0, 1), said="rank 2 is ahead"),
    "save-pipe": Hang(hung=False, said="rank 1 is saving"),
    "process": Hang(hung=False, said="rank 1 waits for a child process (sleep 1000) at"),
    "recv": Hang(said="rank 1 waits in recv"),
    "thread-lock": Hang(said="rank 1 waits for a lock"),
    "handle": Hang(said="ranks 0,2 wait for it in all_reduce"),
    "poll": Hang(hung=False, said="rank 1 sleeps in a loop at"),
    "leave-poll": Hang((), hung=False, said="ranks 0,2 sleep in a loop at", has_stack=False),
}
WITHOUT_A_RECORDER = HANGS | {
    "branch": Hang((0,), said="rank 0 waits in barrier"),
    "batches": Hang(said="rank 1 waits in barrier"),
    "order": Hang(said="rank 1 waits in broadcast"),
    "subgroups": Hang((), said="rank 2 waits in backward", has_stack=False),
    "handle": Hang((), hung=False, said="ranks 0,2 wait for a lock", has_stack=False),
    # One of the threads without a name may be what opens the lock.
    **{kind: replace(HANGS[kind], hung=False) for kind in ("lock", "queue", "gil-lock", "thread-lock")},
}
"""What can be told where torch neither records gloo's collectives nor names its threads (2.4, 2.5), with the usual
patience."""
SLOW = {
    "evaluate": "rank 0 is running at stall.py",
    "save": "rank 0 ",
    "compile": "rank 0 is compiling at stall.py",
    "download": "rank 0 is fetching from the network at stall.py",
    "debugger": "rank 0 is in a debugger at stall.py",
    "stopped": "all ranks are stopped (SIGSTOP)",
    "suspended": None,
    "data": "rank 0 waits for data at stall.py",
    "pause": "ranks 0-2 sleep at stall.py",
    "accumulate": "",
    "late-init": "rank 1 is running at stall.py",
    "startup": "ranks 0-2 sleep at stall.py",
    "wait-for-file": "rank 0 sleeps ",
    "timer": "rank 0 waits for a lock or a thread at stall.py",
    "upload": "rank 0 waits for a child process (sleep ",
}
"""What must be said of it (`save` also makes what it saves); null: nothing, empty: anything or nothing."""
TOLD = (
    "evaluate",
    "save",
    "compile",
    "download",
    "debugger",
    "data",
    "late-init",
    "wait-for-file",
    "stopped",
    "suspended",
)
"""They go on when the test has seen what is said of them; the others after a time."""


def start(kind: str, *words: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    seconds = STANDING_S if SLOW.get(kind, "") is None else 2 * STANDING_S
    return ("--nproc-per-node", "3", *options, str(STALL), "--kind", kind, "--seconds", str(seconds), *words)


def _gloo_is_recorded() -> bool:
    return not version("torch").startswith(("2.4.", "2.5."))


def names_its_threads() -> bool:
    """Whether torch does: else any of them may be what opens a lock, and waiting for one is not called a hang soon."""
    return _gloo_is_recorded()  # of the releases that were run, those that lack one lack the other


def _line(kind: str) -> int:
    lines = STALL.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {kind}"))


@pytest.mark.slow_system
@pytest.mark.parametrize("kind", HANGS)
def test_hang(ddp: Launcher, kind: str) -> None:
    wanted = (HANGS if _gloo_is_recorded() else WITHOUT_A_RECORDER)[kind]
    outcome = ddp(*start(kind, options=("--hang-timeout", "5")))
    if kind == "shape" and outcome.code != 124:  # gloo aborts the rank that is sent more than it expects
        assert (outcome.code, outcome.verdict["cause"]) == (128 + signal.SIGABRT, wanted.cause)
        return
    assert_told(outcome, kind, wanted)


def test_hang_of_a_training_by_hand(ddp: Launcher) -> None:
    wanted = (HANGS if _gloo_is_recorded() else WITHOUT_A_RECORDER)["branch"]
    assert_told(ddp(*start("branch", "--by-hand", options=("--hang-timeout", "5"))), "branch", wanted)


def assert_told(outcome: Outcome, kind: str, wanted: Hang) -> None:
    """The job was ended because of the hang, and all that was said of it is as wanted."""
    verdict = outcome.verdict
    assert (outcome.code, verdict["outcome"], verdict["cause"]) == (124, "hung", wanted.cause)
    if wanted.ranks:
        assert verdict["first_failure"]["rank"] in wanted.ranks
    else:
        assert verdict["first_failure"] is None
    seen = outcome.named("StallSeen")
    for stall in seen:
        assert (stall["cause"], set(stall["culprits"])) == (wanted.cause, set(wanted.ranks))
    first = seen[0]
    assert first["hung"] is wanted.hung
    assert wanted.said in first["said"]
    if wanted.has_stack:
        assert any(f"stall.py:{_line(kind)} in" in quote for quote in first["quotes"])
        assert any(f'stall.py", line {_line(kind)} in' in quote["text"] for quote in verdict["evidence"])


@pytest.mark.parametrize("kind", cases(SLOW, ()))
def test_what_only_takes_long(ddp: Launcher, kind: str) -> None:
    said = SLOW[kind]
    outcome = _gone_on(ddp, kind)
    assert outcome.code == 0, outcome.stderr
    seen = outcome.named("StallSeen")
    assert [stall["said"] for stall in seen if stall["hung"]] == []
    if said is None:
        assert seen == []
    elif said:
        assert said in seen[0]["said"]
        assert outcome.named("StallEnded")


def _gone_on(ddp: Launcher, kind: str) -> Outcome:
    """How the job ended after its pause."""
    told = kind in TOLD
    go = ddp.cwd / "go"
    running = ddp.start(*start(kind, *(("--until", str(go)) if told else ())))
    if kind in ("stopped", "suspended"):
        running.wait_for_text("training", 3)
        _stop(running, kind)
    elif told:
        running.wait_for("StallSeen")
        go.touch()
    if told:
        if SLOW[kind]:
            running.wait_for("StallEnded")
        go.with_suffix(".end").touch()
    outcome = running.wait()
    running.assert_nothing_left()
    assert_replay_agrees(outcome)
    return outcome


def _stop(running: Running, kind: str) -> None:
    """Stop the ranks until that is said, or the whole job for longer than it would take to be said."""
    if kind == "suspended":
        running.signal(signal.SIGTSTP)
        wait_until(lambda: state(running.process.pid) is ProcessState.STOPPED, "ddp-run to stop itself")
        time.sleep(STANDING_S)
        running.signal(signal.SIGCONT)
        return
    pids = running.pids(3)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    running.wait_for("StallSeen")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
