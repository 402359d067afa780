"""Retries: by cause, with a fresh port each, attempts kept apart; and the agent's own restarts."""

from __future__ import annotations

import json
import signal
import socket

import pytest

from tests.ports import unused_port

from .conftest import TRAIN, Launcher, Outcome, assert_replay_agrees, cases

# Fails in its first runs, as counted in a file per rank; writes the port it was given.
FLAKY = """
import os, signal, sys
path, fail = f"{sys.argv[1]}.{os.environ['RANK']}", int(sys.argv[2])
with open(path, "a+") as file:
    file.seek(0); count = len(file.read()); file.write("x")
print("port", os.environ["MASTER_PORT"], "attempt", count, flush=True)
if count < fail and os.environ["RANK"] == "0": os.kill(os.getpid(), signal.SIGKILL)
"""


# Before each attempt fails, rank 1 says in rank 0's name that it did, with a time before all others; and again for the
# attempt before. An agent's environment has the socket.
FORGER = """
import json, os, socket, sys, time
agent = os.getsid(os.getppid())
known = json.loads(open(f"/proc/{agent}/environ").read().split("DDP_RUN_AGENT=")[1].partition("\\0")[0])
forged = f"forged.{known['attempt']}"
if os.environ["RANK"] == "1":
    for attempt in (known["attempt"], known["attempt"] - 1):
        for code in (9, -11):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.connect(known["socket"])
                who = {"rank": 0, "restart": 0, "folder": f"attempt_{attempt}/rank_0"}
                channel.send(json.dumps({"event": "failed", "at": 1, "code": code, "exception": None, **who}).encode())
    open(forged, "w").close()
while not os.path.exists(forged): time.sleep(0.01)
"""


def test_a_retry_cures_what_it_can_and_keeps_every_attempt(ddp: Launcher) -> None:
    """What is said in another rank's name counts for nothing."""
    words = ("--nproc-per-node", 2, "--max-retries", 3, ddp.script(FORGER + FLAKY), ddp.cwd / "count", 1)
    outcome = ddp(*words, env={"DDP_RUN_WARM": ""})  # a warm agent's environment in /proc lacks the socket
    assert outcome.code == 0, outcome.stderr
    assert outcome.named("RankFailed") == []
    assert sum("ignored a message from process" in event["text"] for event in outcome.named("Noted")) == 2, (
        "once an attempt"
    )
    assert [event["exit_code"] for event in outcome.named("AttemptEnded")] == [137, 0]
    assert outcome.verdict["attempts"] == 2
    assert outcome.folder is not None
    assert sorted(path.name for path in outcome.folder.glob("attempt_*")) == ["attempt_0", "attempt_1"]
    for attempt in (0, 1):
        text = (outcome.folder / f"attempt_{attempt}/rank_0/stdout.log").read_text()
        assert text.endswith(f"attempt {attempt}\n")
    assert outcome.stderr.count("retrying now") == 1


@pytest.mark.slow_system
def test_ports_differ_between_attempts_where_the_user_fixed_one(ddp: Launcher) -> None:
    port = unused_port()
    outcome = ddp(
        "--nproc-per-node", 2, "--master-port", port, "--max-retries", 2, ddp.script(FLAKY), ddp.cwd / "count", 2
    )
    assert outcome.code == 0, outcome.stderr
    assert outcome.folder is not None
    ports = [path.read_text().split()[1] for path in sorted(outcome.folder.glob("attempt_*/rank_0/stdout.log"))]
    assert ports[0] == str(port)
    assert len(set(ports)) == 3
    assert [event["port"] for event in outcome.named("AttemptStarted")] == [int(each) for each in ports]


@pytest.fixture(scope="module")
def used_up(shared_ddp: Launcher) -> Outcome:
    """A job whose one retry fails too, and which says so in JSON."""
    words = ("--log-format", "json", "--max-retries", 1)
    return shared_ddp(*words, shared_ddp.script(FLAKY), shared_ddp.cwd / "count", 9)


def test_retries_end_when_they_are_used_up(used_up: Outcome) -> None:
    assert used_up.code == 137
    assert used_up.verdict["attempts"] == 2
    assert used_up.last_line["attempts"] == "2"


def test_json_messages(used_up: Outcome) -> None:
    lines = [line for line in used_up.stderr.splitlines() if not line.startswith("[rank")]
    assert lines[-1].startswith("ddp-run: verdict ")
    told = [json.loads(line) for line in lines[:-1]]
    assert any(each["event"] == "verdict" for each in told)


@pytest.mark.slow_system
def test_max_retries_from_the_plain_variable(ddp: Launcher) -> None:
    outcome = ddp(ddp.script(FLAKY), ddp.cwd / "count", 1, env={"MAX_RETRIES": "1"})
    assert outcome.code == 0
    assert outcome.verdict["attempts"] == 2


HOPELESS = {
    "import-error": "import torch_of_tomorrow",
    "syntax-or-usage": "def broken(:",
    "bad-arguments": "import argparse; argparse.ArgumentParser().parse_args(['--what'])",
    "python-exception": "raise ValueError('the data are wrong')",
}


@pytest.mark.parametrize("cause", cases(HOPELESS, ()))
def test_what_no_retry_can_cure_is_not_retried(ddp: Launcher, cause: str) -> None:
    """In the gate: test_exit_codes.py."""
    program = HOPELESS[cause]
    outcome = ddp("--nproc-per-node", 2, "--max-retries", 3, ddp.script(program))
    assert outcome.verdict["cause"] == cause
    assert outcome.verdict["attempts"] == 1
    assert outcome.code == (2 if cause == "bad-arguments" else 1)


@pytest.mark.slow_system
def test_retry_always_tries_even_that(ddp: Launcher) -> None:
    outcome = ddp("--max-retries", 1, "--retry", "always", ddp.script("raise ValueError('the data are wrong')"))
    assert outcome.verdict["attempts"] == 2


@pytest.mark.slow_system
def test_retry_never(ddp: Launcher) -> None:
    outcome = ddp("--max-retries", 1, "--retry", "never", ddp.script(FLAKY), ddp.cwd / "count", 9)
    assert outcome.verdict["attempts"] == 1


# Holds the agent, and only it, until the port is stolen: Python imports this module wherever it starts.
HELD_AGENT = """
import os, sys, time
while "torch.distributed.run" in sys.orig_argv and not os.path.exists(os.environ["STOLEN"]): time.sleep(0.01)
"""


@pytest.mark.parametrize("given", cases(("option", "variable"), ("option",)))
def test_a_stolen_port_leads_to_another_one_and_costs_no_retry(ddp: Launcher, given: str) -> None:
    """The thief holds it until the run is over: only another one can help. torchrun ignores the variable: no word."""
    port, stolen = unused_port(), ddp.cwd / "stolen"
    (ddp.cwd / "site").mkdir()
    (ddp.cwd / "site" / "sitecustomize.py").write_text(HELD_AGENT)
    environ = {"STOLEN": str(stolen), "PYTHONPATH": str(ddp.cwd / "site")}
    words: tuple[object, ...] = ("--master-port", port)
    if given == "variable":
        words, environ = (), environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = ddp.start(*words, ddp.script("import os; print(os.environ['MASTER_PORT'])"), env=environ)
    running.wait_for("AgentStarted")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("0.0.0.0", port))
        thief.listen()
        stolen.touch()
        outcome = running.wait()
    assert outcome.code == 0, outcome.stderr
    ports = [event["port"] for event in outcome.named("AttemptStarted")]
    assert ports[0] == port
    assert len(ports) == 2
    assert ports[1] != port
    said = (
        f"port {port} is taken by another process; starting again on port {ports[1]} (this does not count as a retry)"
    )
    assert outcome.named("AttemptEnded")[0]["reason"] == said
    assert outcome.stderr == (f"ddp-run: {said}\n" if given == "option" else "")


# In its first start rank 1 is killed, and its peer fails of that, as in a collective.
KILLED_ONCE = """
import os, signal, time
def lives(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
rank = os.environ["RANK"]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == "1":
        with open("part", "w") as file: file.write(str(os.getpid()))
        os.rename("part", "first")
        while not os.path.exists("watching"): time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    while not os.path.exists("first"): time.sleep(0.01)
    first = open("first").read()
    open("watching", "w").close()
    while lives(first): time.sleep(0.001)
    raise RuntimeError("Connection closed by peer [127.0.0.1]:41234")
print(f"rank {rank} done")
"""


@pytest.mark.parametrize("program", cases(("without torch", "training"), ("without torch",)))
def test_the_agents_own_restarts_work(ddp: Launcher, program: str) -> None:
    words: tuple[object, ...] = (ddp.script(KILLED_ONCE),)
    if program == "training":
        words = (TRAIN, "--fault", "kill", "--first-attempts", 1, "--count-file", ddp.cwd / "count")
    outcome = ddp("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, *words)
    assert outcome.code == 0, outcome.stderr
    assert (outcome.verdict["attempts"], outcome.verdict["restarts"]) == (1, 1)
    said = "rank 1 was killed by SIGKILL; sender unknown; torch's agent restarted all ranks (1 of 1)"
    told = [line for line in outcome.stderr.splitlines() if line.startswith("ddp-run: ")]
    assert told == [f"ddp-run: warning: {said}", f"ddp-run: note: {said}"]
    assert outcome.verdict["notes"] == [said]
    assert {event["restart"] for event in outcome.named("RankStarted")} == {0, 1}
    assert outcome.folder is not None
    assert "rank 0 done" in (outcome.folder / "attempt_0/restart_1/rank_0/stdout.log").read_text()


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow_system)])
def test_a_stop_signal_between_attempts_starts_no_other(ddp: Launcher, signum: signal.Signals) -> None:
    running = ddp.start("--max-retries", 50, ddp.script(FLAKY), ddp.cwd / "count", 99)
    running.wait_for("AttemptEnded", 2)  # there is no wait before the first retry
    running.signal(signum)
    outcome = running.wait()
    running.assert_nothing_left()
    assert outcome.code == 128 + signum
    assert len(outcome.named("AttemptStarted")) == 2
    assert outcome.verdict["outcome"] == "interrupted"
    assert outcome.verdict["first_failure"]["signal"] == "SIGKILL"  # what the attempt before had failed of
    assert [event["signum"] for event in outcome.named("SignalReceived")] == [signum]
    assert_replay_agrees(outcome)


# Rank 1 fails; rank 0 hears that it is to end, and takes long.
SLOW_TO_END = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("handled"): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
def slow(*_):
    print("asked", flush=True)
    time.sleep(600)
signal.signal(signal.SIGTERM, slow)
open("handled", "w").close()
time.sleep(600)
"""


def test_a_retry_that_cannot_start_keeps_the_verdict(ddp: Launcher) -> None:
    """Another attempt's folder cannot be made where a file has its name."""
    in_the_way = "import os\nopen(f'ddp-run-logs/{os.environ[\"DDP_RUN_ID\"]}/attempt_1', 'w')\nos.kill(os.getpid(), 9)"
    outcome = ddp("--max-retries", 3, ddp.script(in_the_way))
    assert outcome.code == 137
    assert outcome.verdict["first_failure"]["rank"] == 0
    assert outcome.verdict["attempts"] == 1
    assert "attempt 2 could not be started" in outcome.verdict["retry"]["reason"]
    assert "Traceback" not in outcome.stderr


def test_a_stop_signal_while_an_attempt_fails_starts_no_other(ddp: Launcher) -> None:
    running = ddp.start("--nproc-per-node", 2, "--max-retries", 5, ddp.script(SLOW_TO_END))
    running.wait_for_text("asked")
    running.signal(signal.SIGTERM)
    outcome = running.wait()
    running.assert_nothing_left()
    assert outcome.code == 143
    assert len(outcome.named("AttemptStarted")) == 1
    assert outcome.verdict["first_failure"]["rank"] == 1
    assert_replay_agrees(outcome)
