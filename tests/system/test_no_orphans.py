"""kill -9 of anybody, in every phase: nothing of the job lives on, and the files can be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.headless import HEADLESS
from tests.waiting import limit, wait_until

from .conftest import DDP_RUN, TRAIN, Launcher, Running, carriers, cases

# Each rank has a child of its own, which outlives it where nobody cares.
CHILDREN = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["sh", "-c", "setsid sleep 300 & exit 0"]).wait()
print("ready", flush=True)
if sys.argv[1] == "raise" and os.environ["RANK"] == "1": raise ValueError("fault")
if sys.argv[1] == "end":
    subprocess.Popen([sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE).stdout.readline()
    sys.exit(0)
number = 0
while sys.argv[1] == "count":
    print(number, flush=True)
    number += 1
    time.sleep(0.001)
time.sleep(300)
""".replace("HEADLESS", repr(HEADLESS))


def kill(running: Running, whom: str) -> None:
    if whom == "supervisor":
        pid = running.process.pid
    elif whom == "agent":
        pid = running.wait_for("AgentStarted")[0]["pid"]
    else:
        pid = running.wait_for("RankStarted")[0]["pid"]
    os.kill(pid, signal.SIGKILL)


def assert_journal_is_readable(running: Running) -> None:
    assert running.folder is not None
    for line in (running.folder / "events.jsonl").read_text().splitlines():
        assert json.loads(line)["event"]


def wait_for_children(running: Running) -> None:
    running.wait_for_text("ready", 2)
    assert running.folder is not None
    run_id = running.folder.name
    wait_until(lambda: len([each for each in carriers(run_id) if "sleep" in each]) == 4, "four children")


@pytest.mark.parametrize("whom", ["agent", "rank"])
def test_ranks_and_their_children_end_with_whoever_is_killed(ddp: Launcher, whom: str) -> None:
    running = ddp.start("--nproc-per-node", 2, "--shutdown-timeout", 2, ddp.script(CHILDREN), "stay")
    wait_for_children(running)
    kill(running, whom)
    running.assert_nothing_left()
    outcome = running.wait()
    assert outcome.code == {"agent": 75, "rank": 137}[whom]
    assert_journal_is_readable(running)


# bash starts it in the process that then becomes ddp-run, so it is ddp-run's child.
BACKGROUND = 'sleep 300 & echo $! > background; exec "$@"'


@pytest.fixture(scope="module")
def killed(shared_ddp: Launcher) -> Iterator[Running]:
    """A job whose ddp-run was killed while its ranks wrote, and of which nothing is left; in a script."""
    words = ("--nproc-per-node", 2, "--shutdown-timeout", 2, shared_ddp.script(CHILDREN), "count")
    running = shared_ddp.start(*words, within=("bash", "-c", BACKGROUND, "script"))
    wait_for_children(running)
    running.wait_for_text("\n50\n", 2)
    kill(running, "supervisor")
    running.process.wait(limit(60))
    running.assert_nothing_left()
    yield running
    os.kill(int((running.cwd / "background").read_text()), signal.SIGKILL)


def test_ranks_and_their_children_end_with_ddp_run(killed: Running) -> None:
    assert killed.process.returncode == -signal.SIGKILL
    assert_journal_is_readable(killed)


def test_files_of_a_killed_supervisor_hold_everything(killed: Running) -> None:
    assert killed.folder is not None
    for rank in (0, 1):
        ready, *lines = (killed.folder / f"attempt_0/rank_{rank}/stdout.log").read_text().splitlines()
        assert ready == "ready"
        assert lines == [str(i) for i in range(len(lines))], "an unbroken count"


def test_what_a_script_put_into_the_background_is_let_be(killed: Running) -> None:
    """The keeper ended the job alone. Where it ends by itself: below."""
    background = int((killed.cwd / "background").read_text())
    assert Path(f"/proc/{background}/cmdline").read_bytes().startswith(b"sleep")


@pytest.mark.slow_system
def test_what_a_script_put_into_the_background_is_let_be_at_the_end(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node", 2, ddp.script(CHILDREN), "end", within=("bash", "-c", BACKGROUND, "script"))
    background = int((ddp.started[0].cwd / "background").read_text())
    try:
        assert outcome.code == 0
        assert Path(f"/proc/{background}/cmdline").read_bytes().startswith(b"sleep")
    finally:
        os.kill(background, signal.SIGKILL)


@pytest.mark.parametrize("whom", cases(("supervisor", "agent", "rank"), ("supervisor",)))
def test_data_loader_workers_end_too(ddp: Launcher, whom: str) -> None:
    words = (TRAIN, "--by-hand", "--workers", 2, "--steps", 10000, "--step-s", 0.05)
    running = ddp.start("--shutdown-timeout", 2, *words)
    running.wait_for_text("step 2")
    assert running.folder is not None
    run_id = running.folder.name
    wait_until(lambda: len(carriers(run_id)) >= 4, "the agent, a rank and its two workers")
    kill(running, whom)
    running.assert_nothing_left()
    running.wait()
    assert_journal_is_readable(running)


@pytest.mark.parametrize("moment_s", [0.0, 0.05, 0.3, 1.0])
def test_the_supervisor_killed_while_it_starts(ddp: Launcher, moment_s: float) -> None:
    running = ddp.start("--nproc-per-node", 2, ddp.script(CHILDREN), "stay")
    running.wait_for("RunStarted")
    time.sleep(moment_s)
    kill(running, "supervisor")
    running.process.wait(limit(60))
    running.assert_nothing_left()


def test_a_keeper_that_is_killed_is_replaced(ddp: Launcher) -> None:
    running = ddp.start("--nproc-per-node", 1, ddp.script(CHILDREN), "stay")
    running.wait_for_text("ready")

    def keepers() -> list[int]:
        found = []
        for pid in Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split():
            with suppress(OSError):
                found += [int(pid)] if b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
        return found

    (first,) = wait_until(keepers, "the keeper")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: [pid for pid in keepers() if pid != first], "another keeper")
    kill(running, "supervisor")
    running.process.wait(limit(60))
    running.assert_nothing_left()


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0,
    reason="may not take /proc away",
)
def test_without_proc_a_job_ends_as_ever(ddp: Launcher) -> None:
    within = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"']
    program = "import os, sys; print('a line'); sys.exit(3 * int(os.environ['RANK']))"
    running = ddp.start("--nproc-per-node", 2, ddp.script(program), within=within)
    outcome = running.wait()
    running.assert_nothing_left()
    assert outcome.code == 3, outcome.stderr
    assert outcome.verdict["first_failure"]["rank"] == 1


def test_the_agent_killed_while_it_starts(ddp: Launcher) -> None:
    running = ddp.start("--nproc-per-node", 2, ddp.script(CHILDREN), "stay")
    kill(running, "agent")
    outcome = running.wait()
    assert outcome.code == 75
    assert outcome.verdict["first_failure"] is None
    running.assert_nothing_left()


@pytest.mark.parametrize("ending,code", [pytest.param("raise", 1, marks=pytest.mark.slow_system), ("end", 0)])
def test_children_of_ranks_that_ended_by_themselves_are_ended(ddp: Launcher, ending: str, code: int) -> None:
    """Of a rank that raised, in the gate: test_secrets.py."""
    outcome = ddp("--nproc-per-node", 2, "--shutdown-timeout", 2, ddp.script(CHILDREN), ending)
    assert outcome.code == code
    ended = [event for event in outcome.named("SignalSent") if event["target"] in ("leftovers", "job")]
    assert ended, "four children were alive when their ranks had ended"


def test_the_supervisor_killed_while_the_job_winds_down(ddp: Launcher) -> None:
    stubborn = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + (
        "if os.environ['RANK'] == '1': time.sleep(1); raise ValueError('fault')\ntime.sleep(300)\n"
    )
    running = ddp.start("--nproc-per-node", 2, "--shutdown-timeout", 60, ddp.script(stubborn))
    running.wait_for("RankExited")
    kill(running, "supervisor")
    running.process.wait(limit(60))
    running.assert_nothing_left()


LAST_LINE = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.stderr.write("".join(f"line {number} of a rank\\n" for number in range(20_000)))
    sys.exit(7)
time.sleep(300)
"""
LATE = "until [ -s ddp-run-logs/latest/verdict.json ]; do sleep 0.1; done; sleep 1; tee err.log >&2"


PIPELINE = "sed -u s/^/=/ | tee err.log >&2"


@pytest.mark.parametrize("reader", [LATE, pytest.param(PIPELINE, marks=pytest.mark.slow_system)])
def test_what_a_shell_put_below_ddp_run_reads_its_last_line(ddp: Launcher, reader: str) -> None:
    """bash starts these in the process that then becomes ddp-run, so they are its children. One reads late."""
    script = ddp.script(LAST_LINE)
    line = f"exec {DDP_RUN} --nproc-per-node 2 {script} 2> >({reader})"
    done = subprocess.run(
        ["bash", "-c", line], cwd=ddp.cwd, env=ddp.environ({}), capture_output=True, text=True, timeout=limit(120)
    )
    assert done.returncode == 7
    assert "verdict outcome=failed" in done.stderr.splitlines()[-1]
    assert done.stderr.count(" of a rank\n") == 20_000
    assert (ddp.cwd / "err.log").read_text() == done.stderr
    (events,) = ddp.cwd.glob("ddp-run-logs/2*/events.jsonl")
    assert '"leftovers"' not in events.read_text()
