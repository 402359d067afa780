"""`--warm`: ranks are forks of one process that has torch. How they see themselves: test_fidelity, test_bootstrap."""

from __future__ import annotations

import os
import signal

import pytest

from ddp_run.values.process_table import children, command_lines
from tests.waiting import limit, wait_until

from .conftest import Launcher, Outcome, Running, assert_replay_agrees

GLOO = """
import os, sys
before = "torch" in sys.modules
os.environ["KMP_" + "INIT_AT_FORK"] = "FALSE"  # as scikit-learn does: nothing that torch has loaded reads it
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1)).sum().backward()
optimizer.step()
dist.destroy_process_group()
command = open("/proc/self/cmdline", "rb").read().decode().split(chr(0))[2:]
print(before, os.environ["RANK"], os.path.basename(command[0]), command[1:-1], os.getppid() == os.getsid(os.getppid()))
"""
WAITS = """
import os, signal, sys, time
def stop(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(300)
"""


def _said(outcome: Outcome) -> list[str]:
    return [event["text"] for event in outcome.named("Noted")]


def test_a_warm_job_runs_like_any(ddp: Launcher) -> None:
    program = ddp.script(GLOO)
    outcome = ddp("--warm", "--nproc-per-node=2", program)
    assert outcome.code == 0, outcome.stderr
    for rank in (0, 1):
        line = f"False {rank} __main__.py ['script', '{program}'] False\n"
        assert (outcome.folder / f"attempt_0/rank_{rank}/stdout.log").read_text() == line  # type: ignore[operator]
    assert {event["phase"] for event in outcome.named("RankPhase")} >= {"init", "after-init", "training", "shutdown"}
    assert _said(outcome) == []
    assert [event["target"] for event in outcome.named("SignalSent")] in ([], ["agent"])


@pytest.mark.slow_system
@pytest.mark.parametrize("victim", ["server", "agent", "ddp-run"])
def test_nothing_is_left_whoever_is_killed(ddp: Launcher, victim: str) -> None:
    running = ddp.start("--warm", "--nproc-per-node=2", ddp.script(WAITS))
    pids = running.pids(2)
    (agent,) = (event["pid"] for event in running.events("AgentStarted"))
    (server,) = children(agent)
    assert set(children(server)) == set(pids)
    os.kill({"server": server, "agent": agent, "ddp-run": running.process.pid}[victim], signal.SIGKILL)
    code = running.process.wait(limit(60))
    assert code == {"server": 137, "agent": 75, "ddp-run": -signal.SIGKILL}[victim]
    wait_until(lambda: not command_lines([server, agent, *pids]), lambda: str(command_lines([server, agent, *pids])))


@pytest.mark.slow_system
def test_ranks_clean_up_when_every_process_of_the_job_is_told_to_stop(ddp: Launcher) -> None:
    """As a scheduler does that signals all processes of a step."""
    running = ddp.start("--warm", "--nproc-per-node=2", ddp.script(WAITS))
    pids = running.pids(2)
    (agent,) = (event["pid"] for event in running.events("AgentStarted"))
    logs = [running.folder / f"attempt_0/rank_{rank}/stdout.log" for rank in (0, 1)]  # type: ignore[operator]
    wait_until(lambda: all("ready" in log.read_text() for log in logs), running.console)
    for pid in (running.process.pid, agent, *children(agent), *pids):
        os.kill(pid, signal.SIGTERM)
    running.wait()
    assert [log.read_text() for log in logs] == ["ready\nsaved\n"] * 2


@pytest.mark.slow_system
def test_the_agent_restarts_ranks_from_the_same_process(ddp: Launcher) -> None:
    program = ddp.script("import os\nassert os.environ['TORCHELASTIC_RESTART_COUNT'] == '1'\n")
    outcome = ddp("--warm", "--nproc-per-node=2", "--max-restarts=1", program)
    assert outcome.code == 0, outcome.stderr
    assert _said(outcome) == []


# The first time, rank 0 dies, once the next attempt's agent waits. It prints whether that is there, and its own agent.
DIES_ONCE = """
import os, time
agent = os.getsid(os.getppid())
launcher = int(open(f"/proc/{agent}/stat").read().rpartition(")")[2].split()[1])
def waiting():
    return [pid for pid in open(f"/proc/{launcher}/task/{launcher}/children").read().split() if is_ready(pid)]
def is_ready(pid):
    return int(pid) != agent and b"DDP_RUN_SERVE=" in open(f"/proc/{pid}/environ", "rb").read()
print(agent, flush=True)
if not os.path.exists("died"):
    open("died", "w").close()
    while not waiting(): time.sleep(0.01)
    print(*waiting(), flush=True)
    while os.path.exists("stay"): time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def _waiting(running: Running) -> int:
    """The process that has torch and waits for the next attempt."""
    running.wait_for("RankStarted")

    def named() -> int:
        log = running.folder / "attempt_0/rank_0/stdout.log"  # type: ignore[operator]
        return int("".join(log.read_text().split()[1:2]) or 0)

    return wait_until(named, running.console)


def test_the_next_attempts_agent_has_torch_before_the_attempt_fails(ddp: Launcher) -> None:
    outcome = ddp("--warm", "--nproc-per-node=1", "--max-retries=1", ddp.script(DIES_ONCE))
    assert outcome.code == 0, outcome.stderr
    assert _said(outcome) == []
    logs = [outcome.folder / f"attempt_{attempt}/rank_0/stdout.log" for attempt in (0, 1)]  # type: ignore[operator]
    started = [str(event["pid"]) for event in outcome.named("AgentStarted")]
    assert [log.read_text().split() for log in logs] == [started, started[1:]]


@pytest.mark.slow_system
def test_an_attempt_starts_without_the_process_that_waited_for_it(ddp: Launcher) -> None:
    (ddp.cwd / "stay").touch()
    running = ddp.start("--warm", "--nproc-per-node=1", "--max-retries=1", ddp.script(DIES_ONCE))
    waiting = _waiting(running)
    os.kill(waiting, signal.SIGKILL)
    (ddp.cwd / "stay").unlink()
    outcome = running.wait()
    running.assert_nothing_left()
    assert outcome.code == 0, outcome.stderr
    assert waiting != outcome.named("AgentStarted")[1]["pid"]
    assert _said(outcome) == []


@pytest.mark.slow_system
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_an_attempt_that_does_not_come(ddp: Launcher, signum: signal.Signals) -> None:
    (ddp.cwd / "stay").touch()
    running = ddp.start("--warm", "--nproc-per-node=1", "--max-retries=1", ddp.script(DIES_ONCE))
    waiting = _waiting(running)
    running.signal(signum)
    outcome = running.wait()
    running.assert_nothing_left()
    wait_until(lambda: not command_lines([waiting]), lambda: str(command_lines([waiting])))
    assert outcome.code == (143 if signum == signal.SIGTERM else -signal.SIGKILL)
    assert len(outcome.named("AttemptStarted")) == 1
    if signum == signal.SIGTERM:
        assert_replay_agrees(outcome)


COLD: dict[str, tuple[list[str], dict[str, str], str, str]] = {
    # options, variables, program, said once
    "threads": ([], {"OMP_NUM_THREADS": "2"}, "", "importing torch starts threads"),
    "sitecustomize": ([], {}, "", "sitecustomize may do something for each rank"),
    "namesake": ([], {}, "import queue\nassert queue.own\n", "torch imports another module with the name of"),
    "output": ([], {"PYTHONPROFILEIMPORTTIME": "1"}, "", "importing torch prints something"),
    "arguments by rank": (["${local_rank}"], {}, "", "the ranks' commands differ"),
    "variables by rank": (["--virtual-local-rank"], {}, "", "the agent changes CUDA_VISIBLE_DEVICES"),
    "no python": (["--no-python", "true"], {}, "", "--no-python starts them in another way"),
    "another python": ([], {"PYTHON_EXEC": "python3"}, "", "PYTHON_EXEC starts them in another way"),
    "run-path": (["--run-path"], {}, "", "--run-path starts them in another way"),
    "named variable": ([], {}, "import os\nos.environ['TORCH_LOGS'] = ''\n", "names TORCH_LOGS, which torch reads"),
    "late variable": (
        [],
        {},
        "import os\nos.environ['OMP_' + 'NUM_THREADS'] = '2'\nimport torch\n",
        "its program sets OMP_NUM_THREADS too late for --warm",
    ),
}


@pytest.mark.slow_system
@pytest.mark.parametrize("case", COLD)
def test_what_makes_ranks_cold_is_said(ddp: Launcher, case: str) -> None:
    words, environ, text, said = COLD[case]
    program = ddp.script(text or "print('fine')\n")
    if case == "namesake":
        ddp.script("own = True\n", "queue.py")
    if case == "sitecustomize":
        (ddp.cwd / "customs").mkdir()
        ddp.script("", "customs/sitecustomize.py")
        environ = {"PYTHONPATH": os.pathsep.join([str(ddp.cwd / "customs"), os.environ.get("PYTHONPATH", "")])}
    options = [word for word in words if word.startswith("--")]
    rest = [word for word in words if not word.startswith("--")]
    command = rest if case == "no python" else [program, *rest]
    outcome = ddp("--warm", "--nproc-per-node=2", *options, *command, env=environ)
    assert outcome.code == 0, outcome.stderr
    found = [each for each in _said(outcome) if said in each]
    assert len(found) == (2 if case == "late variable" else 1), _said(outcome)
