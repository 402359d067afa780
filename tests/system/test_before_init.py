"""Jobs that stand or work before init_process_group. Their ranks import no torch: that is not needed to stand."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .conftest import Launcher, assert_replay_agrees

BATON = """
import importlib.util, os, subprocess, sys, time
rank = int(os.environ["RANK"])
folder = importlib.util.find_spec("torch").submodule_search_locations[0]  # without its import
spec = importlib.util.spec_from_file_location("torch.utils.file_baton", folder + "/utils/file_baton.py")
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
baton = module.FileBaton(sys.argv[1] + "/lock")
"""
STANDS = """
def poll(path):
    while not os.path.exists(path):
        time.sleep(0.05)  # poll
if rank == 0:
    baton.wait()  # lock
elif rank == 1:
    poll("/nowhere/ready")
elif rank == 2:
    time.sleep(1000)  # sleep
elif rank == 3:
    subprocess.run(["sleep", "1000"])  # child
"""
BUILDS = """
if baton.try_acquire():
    work = f"import os\\nwhile not os.path.exists({sys.argv[1]!r} + '/go'): pass"
    subprocess.run([sys.executable, "-c", work])
    baton.release()
else:
    baton.wait()
"""
WORKS = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    time.sleep(0.1)
    sum(range(2_000_000))
"""
WITHOUT_PYTHON = """
case $RANK in
  0) sleep 1000; true ;;
  1) exec sleep 1000 ;;
esac
"""


def _place(program: Path, mark: str) -> str:
    lines = program.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
    return f"program.py:{number} in {'poll' if mark == 'poll' else '<module>'}"


def test_a_job_that_stands_before_init_says_who_waits_where_and_for_what(ddp: Launcher) -> None:
    program, lock = ddp.script(BATON + STANDS), ddp.cwd / "lock"
    lock.touch()
    os.utime(lock, (0, lock.stat().st_mtime - 7500))
    outcome = ddp("--nproc-per-node", "5", "--hang-timeout", "5", program, ddp.cwd)
    verdict, (stall, *_) = outcome.verdict, outcome.named("StallSeen")
    assert (outcome.code, verdict["outcome"], verdict["cause"], verdict["phase"]) == (
        124,
        "hung",
        "hang",
        "before-init",
    )
    assert (stall["hung"], stall["culprits"], stall["waiting"]) == (False, [], [])
    for words in (
        f"rank 0 waits for the lock file {lock} (made 2h05m ago; no process here has it open) at "
        f"{_place(program, 'lock')}",
        f"rank 1 sleeps in a loop at {_place(program, 'poll')}",
        f"rank 2 sleeps at {_place(program, 'sleep')}",
        f"rank 3 waits for a child process (sleep 1000) at {_place(program, 'child')}",
        "; rank 4 exited with code 0 ",
    ):
        assert words in stall["said"]
    assert f"if no build is running elsewhere, remove it: rm {lock}" in stall["quotes"]
    assert any(quote["text"] == f"rank 2: sleeps at {_place(program, 'sleep')}" for quote in verdict["evidence"])


@pytest.mark.slow_system
def test_a_rank_that_builds_while_the_others_wait_for_its_lock_file_is_let_be(ddp: Launcher) -> None:
    program = ddp.script(BATON + BUILDS)
    running = ddp.start("--nproc-per-node", "3", "--hang-timeout", "5", program, ddp.cwd)
    (stall,) = running.wait_for("StallSeen")
    (ddp.cwd / "go").touch()
    outcome = running.wait()
    assert (outcome.code, stall["hung"], len(outcome.named("StallSeen"))) == (0, False, 1)
    assert "wait for the lock file" in stall["said"]
    assert "(held by rank " in stall["said"]
    assert_replay_agrees(outcome)


@pytest.mark.slow_system
def test_a_job_that_works_before_init_is_not_told_of(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node", "2", "--hang-timeout", "5", ddp.script(WORKS), "40")
    assert (outcome.code, outcome.named("StallSeen")) == (0, [])


@pytest.mark.slow_system
def test_programs_without_python_that_stand_are_told_of_as_far_as_can_be_seen(ddp: Launcher) -> None:
    script = ddp.script(WITHOUT_PYTHON, "run.sh")
    running = ddp.start("--nproc-per-node", "2", "--no-python", "sh", script)
    (stall,) = running.wait_for("StallSeen")
    said = "rank 0 waits for a child process (sleep 1000); rank 1 sleeps, "
    assert (stall["said"].startswith(said), stall["hung"]) == (True, False)
    running.signal(signal.SIGTERM)
    outcome = running.wait()
    assert (outcome.code, outcome.verdict["outcome"], outcome.verdict["phase"]) == (143, "interrupted", None)
    assert any(note.startswith(f"before that, no progress: {said}") for note in outcome.verdict["notes"])
    ended = ddp("--nproc-per-node", "2", "--hang-timeout", "5", "--no-python", "sh", script)
    assert (ended.code, ended.verdict["outcome"], ended.verdict["cause"]) == (124, "hung", "hang")
