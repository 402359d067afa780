"""Signals to ddp-run: who gets them, how often, and what comes back."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.process_look import state
from tests.waiting import wait_until

from .conftest import DDP_RUN, Launcher, disposition

# Every rank notes each signal it gets in its own stdout, and ends as its argument says.
LISTEN = """
import os, signal, sys, time
ends = sys.argv[1]
def on(signum, frame):
    print("got", signal.Signals(signum).name, flush=True)
    if ends == "by-itself" or signum in (signal.SIGUSR1, signal.SIGUSR2): return
    time.sleep(0.3)
    sys.exit(int(ends))
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), on)
print("listening", flush=True)
while True: time.sleep(0.1)
"""
DEAF = "import time; print('listening', flush=True)\nwhile True: time.sleep(1)\n"


def texts(folder: Path | None) -> list[str]:
    assert folder is not None
    return [path.read_text() for path in sorted(folder.glob("attempt_0/rank_*/stdout.log"))]


@pytest.mark.parametrize(
    "signum,ends,code,before",
    [
        (signal.SIGTERM, "85", 85, signal.SIG_DFL),
        (signal.SIGINT, "0", 130, signal.SIG_IGN),
        pytest.param(signal.SIGINT, "0", 130, signal.SIG_DFL, marks=pytest.mark.slow_system),
        pytest.param(signal.SIGTERM, "0", 143, signal.SIG_IGN, marks=pytest.mark.slow_system),
        pytest.param(signal.SIGHUP, "0", 129, signal.SIG_DFL, marks=pytest.mark.slow_system),
    ],
)
def test_a_stop_signal_reaches_each_rank_once(
    ddp: Launcher, signum: signal.Signals, ends: str, code: int, before: signal.Handlers
) -> None:
    """Also one that was ignored: a shell script ignores INT and QUIT in what it starts with `&`."""
    with disposition(signum, before):
        running = ddp.start("--nproc-per-node", 2, ddp.script(LISTEN), ends)
    running.wait_for_text("listening", 2)
    running.signal(signum)
    outcome = running.wait()
    running.assert_nothing_left()
    assert outcome.code == code
    assert [text.count(f"got {signum.name}") for text in texts(outcome.folder)] == [1, 1]
    assert outcome.verdict["outcome"] == "interrupted"
    assert outcome.last_line["outcome"] == "interrupted"


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow_system)])
def test_ranks_that_handle_no_signal_die_of_a_stop_and_a_notice_is_kept_from_them(
    ddp: Launcher, signum: signal.Signals
) -> None:
    running = ddp.start("--nproc-per-node", 2, ddp.script(DEAF))
    running.wait_for_text("listening", 2)
    running.signal(signal.SIGUSR1)
    running.wait_for("Noted")
    assert running.process.poll() is None
    assert running.events("RankExited") == [], "the notice would kill them"
    running.signal(signum)
    assert running.wait().code == 128 + signum
    running.assert_nothing_left()


def test_the_second_signal_kills_at_once(ddp: Launcher) -> None:
    running = ddp.start("--nproc-per-node", 2, "--shutdown-timeout", 3600, ddp.script(LISTEN), "by-itself")
    running.wait_for_text("listening", 2)
    stop = subprocess.Popen([DDP_RUN, "stop"], cwd=running.cwd, stdout=subprocess.PIPE, text=True)
    running.wait_for_text("got SIGINT", 2)
    waiting = "ddp-run: stopping: waiting up to 3598 s for ranks 0-1 to end; Ctrl-C again kills them"
    wait_until(lambda: waiting in running.console(), "who is waited for")
    running.signal(signal.SIGINT)
    outcome = running.wait()
    assert outcome.code == 130
    running.assert_nothing_left()
    assert stop.communicate()[0].rstrip() == outcome.stderr.splitlines()[-1]
    assert stop.returncode == 0


def test_ranks_that_stay_are_killed_by_ddp_run_where_the_agent_does_not(ddp: Launcher) -> None:
    """The agent is stopped by the first rank that it signals."""
    stops = ddp.script(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGSTOP))\n"
        "print('listening', flush=True)\nwhile True: time.sleep(1)\n"
    )
    running = ddp.start("--nproc-per-node", 2, "--shutdown-timeout", 5, stops)
    running.wait_for_text("listening", 2)
    running.signal(signal.SIGTERM)
    outcome = running.wait()
    assert outcome.code == 143
    kills = [event for event in outcome.named("SignalSent") if event["signum"] == signal.SIGKILL]
    assert kills[0]["target"] == "job"
    running.assert_nothing_left()


@pytest.mark.parametrize("signum", [signal.SIGUSR1, pytest.param(signal.SIGUSR2, marks=pytest.mark.slow_system)])
def test_notices_reach_the_ranks_and_end_nothing_and_nohup_is_respected(ddp: Launcher, signum: signal.Signals) -> None:
    with disposition(signal.SIGHUP, signal.SIG_IGN):  # what nohup does
        running = ddp.start("--nproc-per-node", 2, "--shutdown-timeout", 3600, ddp.script(LISTEN), "by-itself")
    running.wait_for_text("listening", 2)
    running.signal(signal.SIGHUP)
    running.signal(signum)
    running.wait_for_text(f"got {signum.name}", 2)  # whoever took the second has had the first
    assert running.process.poll() is None
    assert not any("SIGHUP" in text for text in texts(running.folder))
    assert subprocess.call([DDP_RUN, "stop", "--kill"], cwd=running.cwd) == 0
    assert running.wait().code == 130


def test_a_signal_before_any_rank_exists(ddp: Launcher) -> None:
    running = ddp.start(ddp.script(DEAF))
    running.wait_for("AgentStarted")
    running.signal(signal.SIGTERM)
    outcome = running.wait()
    assert outcome.code == 143
    assert outcome.verdict["outcome"] == "interrupted"
    running.assert_nothing_left()


def test_ctrl_z_stops_the_whole_job_fg_continues_it_and_ranks_that_stay_are_killed_after_the_grace(
    ddp: Launcher,
) -> None:
    running = ddp.start("--nproc-per-node", 2, "--shutdown-timeout", 1, ddp.script(LISTEN), "by-itself")
    pids = running.pids(2)
    running.wait_for_text("listening", 2)
    running.signal(signal.SIGTSTP)
    # a process that was stopped shows it only when it would have run again
    job = (running.process.pid, *pids)
    wait_until(lambda: {state(pid) for pid in job} == {ProcessState.STOPPED}, "ddp-run and its ranks to stop")
    running.signal(signal.SIGCONT)
    wait_until(lambda: all(state(pid) is not ProcessState.STOPPED for pid in pids), "the ranks to go on")
    assert running.process.poll() is None
    running.signal(signal.SIGTERM)
    outcome = running.wait()
    assert outcome.code == 143
    assert [text.count("got SIGTERM") for text in texts(outcome.folder)] == [1, 1]
    assert [event["code"] for event in outcome.named("RankExited")] == [-signal.SIGKILL] * 2


@pytest.mark.slow_system
def test_a_quit_that_was_ignored_is_taken(ddp: Launcher) -> None:
    with disposition(signal.SIGQUIT, signal.SIG_IGN):
        running = ddp.start(ddp.script(LISTEN), "0")
    running.wait_for_text("listening")
    running.signal(signal.SIGQUIT)
    assert running.wait().code == 128 + signal.SIGQUIT
    running.assert_nothing_left()
