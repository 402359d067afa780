"""What ranks show of themselves, and that a program does not notice: real rank processes with torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddp_run.boards import Board
from ddp_run.events import Rank
from ddp_run.launch import RANK_PROGRAM
from ddp_run.progress import RankLook
from ddp_run.stack_text import Doing

ENVIRONMENT = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "OMP_NUM_THREADS": "1",
}
ALONE = """
import torch
import torch.distributed as dist
def init(*args, **kwargs):
    dist.init_process_group(*args, store=dist.HashStore(), rank=0, world_size=1, **kwargs)
"""


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str
    messages: list[dict[str, Any]]
    look: RankLook | None

    def named(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["event"] == kind]


class Ranks:
    """Starts programs as rank 3 with hooks, and as plain Python."""

    def __init__(self, folder: Path, boards: Path, inbox: socket.socket) -> None:
        self.folder, self.boards, self._inbox = folder, boards, inbox

    def start(self, program: str, watch: dict[str, object] | None, *, plain: bool = False) -> subprocess.Popen[str]:
        (self.folder / "prog.py").write_text(textwrap.dedent(program))
        boot = {"socket": f"{self.boards}/events.sock", "folder": str(self.folder), "relative": "r", "watch": watch}
        words = [] if plain else [str(RANK_PROGRAM), "script"]
        environment = {**os.environ, **ENVIRONMENT, **({} if plain else {"DDP_RUN_BOOT": json.dumps(boot)})}
        return subprocess.Popen(
            [sys.executable, "-u", *words, "prog.py"],
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def board(self, pid: int) -> Board | None:
        return Board.open(self.boards, 0, Rank(3), pid, self.folder)

    def rank(self, program: str, **watch: object) -> Ended:
        process = self.start(program, watch)
        stdout, stderr = process.communicate(timeout=90)
        board = self.board(process.pid)
        messages = []
        while True:
            try:
                messages.append(json.loads(self._inbox.recv(1 << 18)))
            except BlockingIOError:
                break
        return Ended(process.returncode, stdout, stderr, messages, board and board.look())

    def plain(self, program: str) -> tuple[int, str, str]:
        process = self.start(program, None, plain=True)
        stdout, stderr = process.communicate(timeout=90)
        return process.returncode, stdout, stderr


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with (
        tempfile.TemporaryDirectory(prefix="ddp-run-test-") as short,  # socket names hold 107 bytes
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
    ):
        inbox.bind(f"{short}/events.sock")
        inbox.setblocking(False)
        yield Ranks(tmp_path, Path(short), inbox)


def test_phases_steps_and_collectives(ranks: Ranks) -> None:
    program = f"""
        {textwrap.indent(ALONE, " " * 8).strip()}
        import time
        before = time.monotonic_ns()
        init("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        for optimizer in (torch.optim.SGD(model.parameters(), 0.1), torch.optim.AdamW(model.parameters())):
            for _ in range(2):
                model(torch.ones(2)).sum().backward()
                optimizer.step()
        time.sleep(1.2)
        dist.destroy_process_group()
    """
    ended = ranks.rank(program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    phases = ended.named("phase")
    assert [message["phase"] for message in phases] == ["init", "after-init", "training", "shutdown"]
    assert [message["at"] for message in phases] == sorted(message["at"] for message in phases)
    assert {(message["rank"], message["restart"]) for message in phases} == {(3, 0)}
    assert ended.named("missed") == []
    assert ended.look is not None
    assert (ended.look.phase, ended.look.steps) == ("shutdown", 4)
    assert ended.look.phase_at == phases[-1]["at"]
    assert ended.look.collectives >= 4


SEEN_BY_THE_PROGRAM = """
import importlib, inspect, json, pickle, sys, threading
import torch.distributed as dist
import torch
from torch.distributed import distributed_c10d as c10d
for function in (dist.init_process_group, dist.destroy_process_group):
    print(inspect.signature(function), function.__name__, function.__qualname__, function.__module__)
    print(function is getattr(c10d, function.__name__), pickle.loads(pickle.dumps(function)) is function)
    print(function.__doc__ == inspect.unwrap(function).__doc__, inspect.getsource(function)[:60])
print([type(each).__name__ for each in sys.meta_path], c10d.__spec__.loader.__dict__.keys())
optimizer = sys.modules["torch.optim.optimizer"]
print(type(optimizer.__loader__).__name__, optimizer.__loader__.__dict__.keys())
print(threading.active_count(), threading.enumerate()[0].name)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
backend = c10d._get_default_group()._get_backend(torch.device("cpu"))
print(threading.active_count(), dist.get_backend(), backend.options._timeout)
try:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
except ValueError as error:
    print(error)
dist.destroy_process_group()
importlib.reload(optimizer)
torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()
import torch.distributed as again
print(again is dist)
"""


def test_the_program_sees_what_it_sees_without_ddp_run(ranks: Ranks) -> None:
    plain = ranks.plain(SEEN_BY_THE_PROGRAM)
    ended = ranks.rank(SEEN_BY_THE_PROGRAM)
    assert ended.stdout == plain[1]
    assert (ended.code, ended.stderr) == (plain[0], plain[2])
    assert ended.code == 0
    assert [message["phase"] for message in ended.named("phase")][:2] == ["init", "after-init"]


def test_a_failing_init_shows_no_frame_of_ours(ranks: Ranks) -> None:
    program = """
        import torch.distributed as dist
        def main():
            dist.init_process_group("gloo", init_method="nonsense://x", rank=0, world_size=1)
        main()
    """
    plain = ranks.plain(program)
    ended = ranks.rank(program)
    assert (ended.code, ended.stdout, ended.stderr) == plain
    assert "nonsense" in ended.stderr
    assert [message["phase"] for message in ended.named("phase")] == ["init"]


def test_what_the_user_asked_ddp_run_for(ranks: Ranks) -> None:
    program = f"""
        {textwrap.indent(ALONE, " " * 8).strip()}
        from datetime import timedelta
        def group():
            return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        def shown():
            print(dist.get_backend(), group().options._timeout)
            dist.destroy_process_group()
        init("nccl"); shown()
        init(backend="nccl", timeout=timedelta(seconds=11)); shown()
        init(); shown()
        init("gloo"); shown()
    """
    ended = ranks.rank(program, backend="gloo", timeout_s=7)
    assert ended.stdout.splitlines() == ["gloo 0:00:07", "gloo 0:00:11", "gloo 0:00:07", "gloo 0:00:07"]
    said = [line for line in ended.stderr.splitlines() if line.startswith("[DDP-WARNING] backend gloo")]
    assert len(said) == 3
    assert ended.code == 0


def test_debug_lines(ranks: Ranks) -> None:
    program = f"""
        {textwrap.indent(ALONE, " " * 8).strip()}
        init("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(2)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        dist.destroy_process_group()
        try:
            torch.cuda.set_device(0)
        except Exception as error:
            print(type(error).__name__)
    """
    ended = ranks.rank(program, debug=True)
    assert ended.code == 0, ended.stderr
    for text in (
        "before DistributedDataParallel()",
        "after DistributedDataParallel()",
        "first optimizer step done",
        "destroy_process_group",
        "before torch.cuda.set_device 0",
    ):
        assert f"[DDP-DEBUG] {text}" in ended.stderr
    if ended.stdout:
        assert f"[DDP-ERROR] torch.cuda.set_device failed: {ended.stdout.strip()}" in ended.stderr


def test_a_program_without_torch(ranks: Ranks) -> None:
    program = """
        import importlib.util, json, sys
        print("torch" in sys.modules, importlib.util.find_spec("no_such_module"), json.loads("[1]"))
        try:
            import torch_that_is_not_there
        except ModuleNotFoundError as error:
            print(error)
        import no.such.module
    """
    plain = ranks.plain(program)
    ended = ranks.rank(program)
    assert (ended.code, ended.stdout, ended.stderr) == plain
    assert ended.named("phase") == []
    assert ended.look is not None
    assert ended.look.phase == "before-init"


def test_a_torch_that_fails_to_import_fails_as_it_does_alone(ranks: Ranks) -> None:
    broken = ranks.folder / "torch" / "distributed"
    broken.mkdir(parents=True)
    (ranks.folder / "torch" / "__init__.py").write_text("")
    (broken / "__init__.py").write_text("")
    (broken / "distributed_c10d.py").write_text("raise ImportError('half built')\n")
    program = """
        for _ in range(2):
            try:
                import torch.distributed.distributed_c10d
            except ImportError as error:
                print(error)
        (__import__("pathlib").Path("torch") / "distributed" / "distributed_c10d.py").write_text("x = 1\\n")
        import torch.distributed.distributed_c10d
        print(torch.distributed.distributed_c10d.x)
        import torch.nowhere
    """
    plain = ranks.plain(program)
    (broken / "distributed_c10d.py").write_text("raise ImportError('half built')\n")
    ended = ranks.rank(program)
    assert (ended.code, ended.stdout, ended.stderr) == plain


def test_a_forked_child_is_not_the_rank(ranks: Ranks) -> None:
    program = f"""
        {textwrap.indent(ALONE, " " * 8).strip()}
        import os
        init("gloo")
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight])
        optimizer.step()
        pid = os.fork()
        if pid == 0:
            for _ in range(5):
                optimizer.step()
            dist.destroy_process_group()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    ended = ranks.rank(program)
    assert ended.stdout == "0\n", ended.stderr
    assert ended.look is not None
    assert (ended.look.steps, ended.look.phase) == (1, "training")
    assert [message["phase"] for message in ended.named("phase")] == ["init", "after-init", "training"]


def test_stacks_and_collectives_on_demand(ranks: Ranks) -> None:
    program = f"""
        {textwrap.indent(ALONE, " " * 8).strip()}
        import threading
        init("gloo")
        for _ in range(3):
            dist.all_reduce(torch.ones(5))
        def stuck():
            threading.Event().wait()
        print("ready", flush=True)
        stuck()
    """
    process = ranks.start(program, {})
    assert process.stdout is not None
    try:
        process.stdout.readline()
        board = ranks.board(process.pid)
        assert board is not None
        for _ in range(2):  # the second answer is not the first one again
            time.sleep(0.2)
            assert board.ask_for_stacks()
            deadline = time.monotonic() + 20
            while (stack := board.stack()) is None and time.monotonic() < deadline:
                time.sleep(0.02)
            assert stack is not None
            assert stack.doing is Doing.LOCK
            assert stack.users is not None
            assert stack.users.function == "stuck"
        board.ask_for_flight()
        deadline = time.monotonic() + 20
        while not (flight := board.flight())[0] and time.monotonic() < deadline:
            time.sleep(0.05)
        if flight[0]:  # torch 2.4 has no such recorder for gloo
            (last,) = flight[0].values()
            assert (last.name, last.number, last.sizes) == ("all_reduce", 3, ((5,),))
            assert flight[1] is None
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)


def test_an_interpreter_that_goes_down_outlives_a_late_question(ranks: Ranks) -> None:
    program = """
        import faulthandler, os, signal
        faulthandler.unregister(signal.SIGRTMIN + 5)  # as CPython does at the very end
        os.kill(os.getpid(), signal.SIGRTMIN + 5)
        print("alive")
    """
    ended = ranks.rank(program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "alive\n", "")


def test_a_rank_that_runs_another_program_is_sent_nothing(ranks: Ranks) -> None:
    process = ranks.start("import os; os.execvp('sh', ['sh', '-c', 'echo ready; exec sleep 60'])", {})
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        board = ranks.board(process.pid)
        assert board is not None
        assert not board.ask_for_stacks()
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=20)
