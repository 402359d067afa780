"""The rank that failed first, where launchers that look at poll ticks and whole seconds are wrong.

`DDP_RUN_REPEAT=20` runs each case twenty times.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .conftest import TRAIN, Launcher, Outcome, cases

REPEAT = range(int(os.environ.get("DDP_RUN_REPEAT", "1")))

# Rank 3 leaves once the others watch it, the others as soon as it is gone: all four deaths fall into one poll of the
# agent. Each writes its file whole, under the name that the others look for.
RACE = """
import os, time
rank = os.environ["RANK"]
def tell(state):
    with open(f"{rank}.part", "w") as file: file.write(str(os.getpid()))
    os.rename(f"{rank}.part", f"{rank}.{state}")
def await_all(state, ranks):
    while not all(os.path.exists(f"{each}.{state}") for each in ranks): time.sleep(0.001)
if rank == "3":
    tell("here")
    await_all("watching", (0, 1, 2))
    os._exit(7)
await_all("here", (3,))
first = open("3.here").read()
tell("watching")
def lives():
    try:
        return open(f"/proc/{first}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
while lives(): time.sleep(0.001)
os._exit(8)
"""


@pytest.mark.parametrize("_repeat", REPEAT)
def test_four_ranks_that_die_within_milliseconds(ddp: Launcher, _repeat: int) -> None:
    outcome = ddp("--nproc-per-node", 4, ddp.script(RACE))
    assert outcome.verdict["first_failure"]["rank"] == 3, outcome.events
    assert outcome.code == 7


# Rank 2 raises, lets go of the others as it ends, and takes its time. They raise what gloo raises then, and end first.
SLOW_DEATH = """
import atexit, os, time
if os.environ["RANK"] == "2":
    while not (os.path.exists("0") and os.path.exists("1")): time.sleep(0.01)
    atexit.register(time.sleep, 1.5)
    atexit.register(lambda: open("let go", "w").close())
    raise ValueError("fault with slow teardown")
open(os.environ["RANK"], "w").close()
while not os.path.exists("let go"): time.sleep(0.001)
raise RuntimeError("[gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:41234")
"""


def assert_victims(outcome: Outcome, code: int) -> None:
    """Rank 2 failed, and the others of that."""
    assert outcome.verdict["first_failure"]["rank"] == 2, outcome.events
    assert {each["rank"] for each in outcome.verdict["collateral"]} == {0, 1}
    assert outcome.code == code


# Rank 1 fails while rank 0 still describes its own exception, and the agent ends rank 0.
SLOW_REPORT = """
import os, time
class First(Exception):
    def __str__(self):
        open("reports", "w").close()
        time.sleep(1)
        return "came first"
if os.environ["RANK"] == "0":
    raise First
while not os.path.exists("reports"): time.sleep(0.001)
raise ValueError("came second")
"""


def test_a_rank_that_is_ended_while_it_reports(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node", 2, ddp.script(SLOW_REPORT))
    first = outcome.verdict["first_failure"]
    assert (first["rank"], first["exception"]["message"]) == (0, "came first"), outcome.events
    assert outcome.code == 1


@pytest.mark.parametrize("_repeat", REPEAT)
def test_the_cause_and_not_its_victims(ddp: Launcher, _repeat: int) -> None:
    assert_victims(ddp("--nproc-per-node", 3, ddp.script(SLOW_DEATH)), 1)


@pytest.mark.slow_system
@pytest.mark.parametrize("_repeat", REPEAT)
@pytest.mark.parametrize("fault,code", [("slow-death", 1), ("early-leave", 1), ("os-exit7", 7), ("raise", 1)])
def test_the_cause_and_not_its_victims_in_a_training(ddp: Launcher, fault: str, code: int, _repeat: int) -> None:
    assert_victims(ddp("--nproc-per-node", 3, TRAIN, "--fault", fault, "--rank", 2), code)


# Rank 2 raises, lets go of the others on the way out, and takes its time: they end first, and the agent ends it.
CLEANS_UP = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    for step in range(4):
        if step == 2 and rank == 2: raise ValueError("bad record")
        dist.all_reduce(torch.ones(1))
finally:
    dist.destroy_process_group()
    if rank == 2: time.sleep(60)
"""


def test_a_rank_that_is_ended_while_it_cleans_up_after_its_exception(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node", 3, ddp.script(CLEANS_UP))
    assert_victims(outcome, 1)
    assert outcome.verdict["first_failure"]["exception"]["message"] == "bad record"
    assert outcome.verdict["confidence"] == "certain"


# Rank 1 fails and stays; rank 0 waits for it, as in a collective.
STUCK = """
import os, threading, time
if os.environ["RANK"] == "1":
    threading.Thread(target=time.sleep, args=(300,)).start()
    raise ValueError("fault, then a thread that stays")
time.sleep(600)
"""


def test_a_rank_stuck_in_its_own_teardown_is_ended_and_named(ddp: Launcher) -> None:
    """In a training: test_a_rank_that_failed_and_stays_is_no_hang."""
    outcome = ddp("--nproc-per-node", 2, "--shutdown-timeout", 2, ddp.script(STUCK))
    first = outcome.verdict["first_failure"]
    assert first["rank"] == 1
    assert first["exception"]["message"] == "fault, then a thread that stays"
    assert outcome.code == 1


def test_deaths_are_seen_without_pidfds(ddp: Launcher) -> None:
    """An old kernel, or no descriptors left."""
    program = ddp.script(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), os._exit(0)))\n"
        "if os.environ['RANK'] == '1': time.sleep(1); os._exit(9)\n"
        "time.sleep(600)"
    )
    within = (sys.executable, str(Path(__file__).parent / "programs" / "without_pidfd.py"))
    outcome = ddp.start("--nproc-per-node", 2, program, within=within).wait()
    assert (outcome.code, outcome.verdict["first_failure"]["rank"]) == (9, 1)
    assert [event["rank"] for event in outcome.named("RankExited")] == [1, 0]


@pytest.mark.slow_system
def test_a_rank_that_failed_and_stays_is_no_hang(ddp: Launcher) -> None:
    """Its peer waits for it, and --hang-timeout comes before the grace is over."""
    outcome = ddp("--nproc-per-node", 2, "--hang-timeout", 5, TRAIN, "--fault", "stuck-teardown")
    assert outcome.named("HangTimedOut")
    first = outcome.verdict["first_failure"]
    assert (first["rank"], first["exit_code"], outcome.code) == (1, 1, 1)
    assert first["exception"]["message"] == "fault, then a thread that stays"
    assert outcome.verdict["outcome"] == "failed"
    told = outcome.stderr.index("rank 1 failed with ValueError: fault, then a thread that stays (train.py:")
    assert told < outcome.stderr.index("error[")


IN_ANOTHER_PROGRAM = {
    "exec": "import os, sys\nos.execv(sys.executable, [sys.executable, sys.argv[1]])\n",
    "started": "import subprocess, sys\nsubprocess.run([sys.executable, sys.argv[1]], check=True)\n",
}


@pytest.mark.parametrize("how", cases(IN_ANOTHER_PROGRAM, ("exec",)))
def test_what_another_program_of_the_rank_raised_is_named_and_its_phase_is_not_claimed(ddp: Launcher, how: str) -> None:
    inner = ddp.script("import os\nif os.environ['RANK'] == '1':\n    raise KeyError('label')\n", "inner.py")
    outcome = ddp("--nproc-per-node", 2, ddp.script(IN_ANOTHER_PROGRAM[how]), inner)
    failure = outcome.verdict["first_failure"]
    assert (outcome.code, failure["rank"], outcome.verdict["phase"]) == (1, 1, None)
    assert failure["exception"]["type"] == "KeyError"
    assert (Path(failure["exception"]["file"]).name, failure["exception"]["line"]) == ("inner.py", 3)


def test_without_a_bootstrap_message_the_agents_summary_speaks(ddp: Launcher) -> None:
    program = ddp.script(
        "import os, sys, time\ntime.sleep(1)\nif os.environ['RANK'] == '1': sys.exit(9)\ntime.sleep(60)"
    )
    outcome = ddp("--nproc-per-node", 2, "--no-python", "sh", "-c", f"exec python3 -I {program}")
    assert outcome.code == 9
    assert outcome.verdict["first_failure"]["rank"] == 1
    assert (outcome.verdict["phase"], outcome.verdict["step"]) == (None, None), "nobody looked"


def test_a_victim_that_ignores_sigterm_is_killed_after_the_grace(ddp: Launcher) -> None:
    """How long after it: tests/bench/bench_launch.py deaf."""
    deaf = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(os.environ['RANK'], 'w').close()\n"
        "while not os.path.exists('0'): time.sleep(0.01)\nif os.environ['RANK'] == '1': raise ValueError('fault')\n"
        "while True: time.sleep(1)"
    )
    outcome = ddp("--nproc-per-node", 2, "--shutdown-timeout", 2, ddp.script(deaf))
    assert outcome.verdict["first_failure"]["rank"] == 1
    assert outcome.code == 1
    [collateral] = outcome.verdict["collateral"]
    assert collateral["signal"] == "SIGKILL"
    first_death = min(event["at"] for event in outcome.named("RankExited"))
    [end] = outcome.named("RunEnded")
    assert (end["at"] - first_death) / 1e9 >= 2, "the grace is given"


def test_a_rank_that_was_gone_before_its_hello_was_read(ddp: Launcher) -> None:
    killed = (
        "import os, signal, sys, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(3), os._exit(143)))\ntime.sleep(60)"
    )
    running = ddp.start("--nproc-per-node", 2, ddp.script(killed))
    running.wait_for("MemoryCounted")
    running.signal(signal.SIGSTOP)
    agent = running.events("AgentStarted")[0]["pid"]
    log = wait_until(lambda: running.folder, "the folder") / "attempt_0" / "agent.log"
    wait_until(lambda: "closing signal SIGTERM" in log.read_text(), f"the end of rank 1 (agent {agent})")
    running.signal(signal.SIGCONT)
    outcome = running.wait()
    assert outcome.verdict["first_failure"]["rank"] == 1, outcome.stderr
    assert outcome.verdict["cause"] == "unknown"
    assert outcome.code == 137


# What fails on one rank while a checkpoint is written, torch raises on all of them: any of them may end first.
CHECKPOINT = """
import os, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
class Writer(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        if os.environ["RANK"] == "1":
            raise OSError(28, "No space left on device")
        return super().write_data(plan, planner)
dcp.save({"a": torch.ones(3)}, storage_writer=Writer("checkpoint"))
"""


@pytest.mark.slow_system
def test_a_checkpoint_that_one_rank_could_not_write(ddp: Launcher) -> None:
    outcome = ddp("--nproc-per-node", 3, ddp.script(CHECKPOINT))
    assert outcome.verdict["cause"] == "disk-full"
    assert outcome.verdict["first_failure"]["rank"] == 1, outcome.events
