"""`ddp-run stacks` and `watch`: at a running job with two gloo ranks, from another process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loaded_process import COMMAND
from tests.waiting import limit, wait_until

from .conftest import DDP_RUN, Launcher, Running

STALL = Path(__file__).parents[1] / "faults" / "stall.py"
JOB = """
import os, sys, time
import torch
import torch.distributed as dist

def evaluate():
    while not os.path.exists("go"):
        time.sleep(0.05)

def train():
    for step in range(1, 6):
        dist.all_reduce(torch.ones(1))
        print(f"\\x1b[2Jstep {step}/500 [red]", flush=True)
    if dist.get_rank() == 1:
        evaluate()
    dist.barrier()

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
sys.exit(3 if os.environ["RANK"] == "1" else 0)
"""
TRAINING = JOB.replace(
    "    for step", "    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)\n    for step"
).replace("        print", "        optimizer.step()\n        print")
"""The same with an optimizer, whose import takes longer than all of that."""


def line_of(text: str, *, last: bool = False) -> int:
    """The number of the first or last line of the program with this text."""
    return [number for number, line in enumerate(JOB.splitlines(), 1) if text in line][-1 if last else 0]


def looked(running: Running, *words: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR")}
    done = COMMAND.run(DDP_RUN, *words, cwd=running.cwd, env=environ | variables)
    assert done.returncode == code, done.stderr
    return done


def standing(running: Running) -> Running:
    """When rank 0 waits in the barrier, and rank 1 in `evaluate`."""
    running.wait_for_text("step 5/500", count=2)

    def stands() -> bool:
        groups = json.loads(looked(running, "stacks", "--json").stdout)["groups"]
        return [group["ranks"] for group in groups] == [[0], [1]] and "barrier" in groups[0]["said"]

    wait_until(stands, "the ranks to stand")
    return running


def test_a_job_is_looked_at_until_it_ends(ddp: Launcher) -> None:
    """One job for all: the looks are made while it stands, then it goes on as if nobody had looked."""
    running = standing(ddp.start("--nproc-per-node=2", ddp.script(JOB)))
    assert running.folder is not None
    first, second = looked(running, "stacks").stdout.split("\n\n")
    assert first.startswith(f"rank 0 waits in barrier at program.py:{line_of('dist.barrier')} in train\n  File ")
    evaluates = f"at program.py:{line_of('time.sleep')} in evaluate"
    assert second.splitlines()[0].startswith("rank 1 ")
    assert second.splitlines()[0].endswith(evaluates)
    assert second.splitlines()[-1].endswith(f'program.py", line {line_of("train()", last=True)} in <module>')

    once = looked(running, "watch", "--once", running.folder.name)
    assert "\x1b" not in once.stdout
    head, ranks, *_table = once.stdout.splitlines()
    assert ": running, attempt 1, " in head
    assert ranks.rstrip() == "2 ranks, after-init"
    row = next(line for line in once.stdout.splitlines() if line.startswith("0-1 "))
    assert row.split()[:2] == ["0-1", "after-init"]
    assert row.rstrip().endswith("step 5/500 [red]"), row

    watch = subprocess.Popen(
        [DDP_RUN, "watch", "--json"], cwd=running.cwd, stdout=subprocess.PIPE, text=True, env=ddp.environ({})
    )
    assert watch.stdout is not None
    shown = json.loads(watch.stdout.readline())
    assert (shown["state"], shown["exit_code"], shown["verdict"]) == ("running", None, None)
    assert [(each["rank"], each["phase"], each["line"]) for each in shown["ranks"]] == [
        (0, "after-init", "step 5/500 [red]"),
        (1, "after-init", "step 5/500 [red]"),
    ]
    assert [each["collectives"] >= 5 for each in shown["ranks"]] == [True, True]
    assert all(each["memory_bytes"] is None or each["memory_bytes"] > 1 << 20 for each in shown["ranks"])
    (running.cwd / "go").touch()
    *_more, last = map(json.loads, watch.stdout)
    assert watch.wait(limit(60)) == 3
    assert (last["state"], last["exit_code"]) == ("failed", 3)
    assert last["verdict"]["first_failure"]["rank"] == 1

    assert running.wait().code == 3
    running.assert_nothing_left()
    over = looked(running, "watch", "--once", code=3).stdout.splitlines()
    assert next(line for line in over if line.startswith("1 ")).split()[:3] == ["1", "exit", "3"]
    assert over[-1].startswith("ddp-run: verdict outcome=failed")
    recorded = looked(running, "stacks")
    assert f"{running.folder.name} is not running: failed" in recorded.stderr
    assert f"rank 1 is running {evaluates}\n" in recorded.stdout


# ------------------------------------------------------------------------------------ on a terminal


class Terminal:
    """A pane of tmux with a shell in the job's folder."""

    def __init__(self, cwd: Path, environ: dict[str, str], name: str) -> None:
        self._tmux = ["tmux", "-L", name, "-f", os.devnull]
        self._environ = {**environ, "PS1": "$ ", "TERM": "xterm"}
        self.do("new-session", "-d", "-x", "80", "-y", "24", "-c", str(cwd), "bash --norc --noprofile")

    def do(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], env=self._environ, capture_output=True, text=True, timeout=limit(60), check=True
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        self.do("send-keys", *keys)

    def run(self, command: str) -> None:
        self.type(command, "Enter")

    def lines(self, *options: str) -> list[str]:
        return [line.rstrip() for line in self.do("capture-pane", "-p", *options).splitlines()]

    def wait_for(self, text: str) -> list[str]:
        def seen() -> list[str]:
            lines = self.lines()
            return lines if text in "\n".join(lines) else []

        return wait_until(seen, lambda: f"{text!r} on the screen: {self.lines()}")


@pytest.fixture
def terminal(ddp: Launcher, request: pytest.FixtureRequest) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")

    def make(running: Running, **variables: str) -> Terminal:
        environ = {name: value for name, value in ddp.environ({}).items() if name not in ("COLUMNS", "LINES", "TMUX")}
        made.append(Terminal(running.cwd, environ | variables, f"ddp-run-test-{os.getpid()}-{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.do("kill-server")


@pytest.mark.slow_system
def test_a_job_is_watched_on_a_terminal(ddp: Launcher, terminal: Callable[..., Terminal]) -> None:
    running = standing(ddp.start("--nproc-per-node=2", ddp.script(TRAINING)))
    screen = terminal(running, NO_COLOR="1")
    screen.run("echo before; ddp-run watch; echo code=$?")
    lines = screen.wait_for("0-1   training")
    assert len(lines) == 24
    assert ": running, attempt 1, " in lines[0]
    assert lines[1].startswith("2 ranks, step 5")
    assert lines[4].endswith("step 5/500 [red]"), "no escape code of a rank reaches the terminal"
    assert "before" not in "\n".join(lines), "it has its own screen"
    coloured = screen.do("capture-pane", "-e", "-p")
    assert not re.search(r"\x1b\[[\d;]*(?:3|4|9)[0-7]m", coloured), "NO_COLOR"

    first = lines[0]
    wait_until(lambda: screen.lines()[0] != first, "another frame")
    screen.do("resize-window", "-x", "50", "-y", "8")
    wait_until(lambda: screen.lines()[0].endswith("…"), lambda: f"the frame of 50 columns: {screen.lines()}")
    assert [line.split()[:2] for line in screen.lines()[3:5]] == [["RANK", "PHASE"], ["0-1", "training"]]
    screen.do("resize-window", "-x", "80", "-y", "24")

    screen.type("C-z")
    assert "before" in screen.wait_for("Stopped")[0] + screen.lines()[1]
    screen.run("fg; echo code=$?")
    screen.wait_for("0-1   training")
    screen.type("x", "C-c")
    screen.wait_for("code=130")
    screen.run("clear; stty -a | grep -o ' -*echo '; echo over")
    assert " echo" in screen.wait_for("over\n")
    screen.run("clear; ddp-run watch; echo code=$?")
    screen.wait_for("0-1   training")
    (running.cwd / "go").touch()
    end = "\n".join(screen.wait_for("code=3"))
    assert "error[" in end
    assert "outcome=failed" in end
    assert running.wait().code == 3


@pytest.mark.slow_system
def test_a_watcher_that_is_killed_leaves_the_terminal_as_it_was(
    ddp: Launcher, terminal: Callable[..., Terminal]
) -> None:
    running = standing(ddp.start("--nproc-per-node=2", ddp.script(TRAINING)))
    screen = terminal(running)
    screen.run("echo before; ddp-run watch & sleep 0; fg; echo code=$?")
    screen.wait_for("0-1   training")
    pane = int(screen.do("display-message", "-p", "#{pane_pid}"))
    (child,) = Path(f"/proc/{pane}/task/{pane}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    lines = screen.wait_for("code=143")
    assert "before" in "\n".join(lines)
    screen.run("clear; stty -a | grep -o ' -*echo '; echo over")
    assert " echo" in screen.wait_for("over\n")
    (running.cwd / "go").touch()
    assert running.wait().code == 3


# ------------------------------------------------------------------------------------ further cases


@pytest.mark.slow_system
@pytest.mark.parametrize(
    ("kind", "said"),
    [("gil", "rank 1 "), ("stop", "rank 1 is stopped"), ("lock", "rank 1 waits for a lock")],
)
def test_stacks_of_ranks_that_do_not_answer(ddp: Launcher, kind: str, said: str) -> None:
    """The others' are shown within seconds, and no process is stopped or goes on by it."""
    running = ddp.start("--nproc-per-node=3", STALL, "--kind", kind)
    running.wait_for("StallSeen")
    states = [state_of(pid) for pid in running.pids(3)]
    begun = time.monotonic()
    groups = json.loads(looked(running, "stacks", "--json").stdout)["groups"]
    assert time.monotonic() - begun < limit(20)
    assert {rank for group in groups for rank in group["ranks"]} == {0, 1, 2}
    mine = next(group for group in groups if 1 in group["ranks"])
    assert mine["ranks"] == [1]
    assert mine["said"].startswith(said)
    assert bool(mine["frames"]) is (kind != "stop")
    assert [state_of(pid) for pid in running.pids(3)] == states
    shown = json.loads(looked(running, "watch", "--once", "--json").stdout)
    assert any("no progress: " in told["line"] or "waiting: " in told["line"] for told in shown["told"])
    running.signal(signal.SIGKILL)


@pytest.mark.slow_system
def test_native_frames_are_shown_if_they_are_asked_for(ddp: Launcher) -> None:
    pytest.importorskip("importlib.metadata").version("py-spy")
    running = standing(ddp.start("--nproc-per-node=2", ddp.script(TRAINING)))
    groups: list[dict[str, Any]] = json.loads(looked(running, "stacks", "--native", "--json").stdout)["groups"]
    assert all(len(group["native"]) > 1 for group in groups), groups
    assert any("barrier" in frame for frame in groups[0]["native"])
    (running.cwd / "go").touch()
    assert running.wait().code == 3


@pytest.mark.slow_system
def test_a_watcher_stays_over_attempts(ddp: Launcher) -> None:
    """The second attempt has other processes, boards and files."""
    job = TRAINING + "\nif not os.path.exists('again'): open('again', 'w').close(); os.remove('go')\n"
    job = job.replace("sys.exit(3 if", "code = (3 if").replace("else 0)", "else 0)") + "sys.exit(code)\n"
    running = standing(ddp.start("--nproc-per-node=2", "--max-retries=1", "--retry=always", ddp.script(job)))
    with subprocess.Popen(
        [DDP_RUN, "watch", "--json"], cwd=running.cwd, stdout=subprocess.PIPE, text=True, env=ddp.environ({})
    ) as watch:
        assert watch.stdout is not None
        (running.cwd / "go").touch()
        seen = {}
        for shown in map(json.loads, watch.stdout):
            seen[shown["attempt"]] = shown
            steps = [each["step"] for each in shown["ranks"]]
            if shown["attempt"] == 1 and steps == [5, 5]:
                (running.cwd / "go").touch()
    assert watch.returncode == 3
    assert {*seen} == {0, 1}
    assert any("another one follows" in told["line"] for told in seen[1]["told"])
    assert seen[1]["attempts_allowed"] == 2
    assert running.wait().code == 3


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
