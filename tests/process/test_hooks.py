"""What ranks show of themselves, and that a program does not notice: real rank processes with torch."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from tests.unchanged import slow_if_unchanged
from tests.waiting import limit, wait_until

from ddp_run.observe.boards import Board, threads
from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.kernel_wait import holder_of
from ddp_run.observe.process_look import state
from ddp_run.observe.stack_text import Doing, Stack
from ddp_run.observe.stall_watch import RankLook
from ddp_run.plan.launch_plan import RANK_PROGRAM
from ddp_run.rank.board import Page
from ddp_run.record.events import Rank

slow = slow_if_unchanged(__file__)
ENVIRONMENT = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "OMP_NUM_THREADS": "1",
}
ALONE = """
import gc
import torch
import torch.distributed as dist
def init(*args, **kwargs):
    dist.init_process_group(*args, store=dist.HashStore(), rank=0, world_size=1, **kwargs)
gc.freeze()  # else the interpreter's end goes through all objects of torch
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
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def board(self, pid: int) -> Board | None:
        return Board.open(self.boards, 0, Rank(3), pid, self.folder)

    def word(self, number: int) -> int:
        return int(memoryview((self.boards / "board_0_3").read_bytes()).cast("q")[number])

    def thread_is_locked_out(self, pid: int) -> bool:
        """Whether ddp-run's thread asks for the interpreter's lock in vain, every 5 ms: its holder is in C."""
        thread, beat, before = self.word(Page.SAMPLER), self.word(Page.HEARTBEAT), threads(pid)
        time.sleep(0.2)
        asked = threads(pid)[thread].switches - before[thread].switches
        return asked > 10 and self.word(Page.HEARTBEAT) == beat

    @contextmanager
    def standing(self, program: str) -> Iterator[tuple[subprocess.Popen[str], Board]]:
        """A rank that says `ready` and stays; ended with the block."""
        process = self.start(program, {})
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            board = self.board(process.pid)
            assert board is not None
            yield process, board
        finally:
            process.kill()
            process.communicate(timeout=limit(120))

    def rank(self, program: str, **watch: object) -> Ended:
        process = self.start(program, watch)
        return self.ended(process)

    def ended(self, process: subprocess.Popen[str], given: str | None = None) -> Ended:
        stdout, stderr = process.communicate(given, timeout=limit(120))
        board = self.board(process.pid)
        return Ended(process.returncode, stdout, stderr, self.messages(), board and board.look())

    def messages(self) -> list[dict[str, Any]]:
        """What has been said since it was asked last."""
        messages = []
        while True:
            try:
                messages.append(json.loads(self._inbox.recv(1 << 18)))
            except BlockingIOError:
                return messages

    def plain(self, program: str) -> tuple[int, str, str]:
        process = self.start(program, None, plain=True)
        stdout, stderr = process.communicate(timeout=limit(120))
        return process.returncode, stdout, stderr


@contextmanager
def ranks_in(folder: Path) -> Iterator[Ranks]:
    with (
        tempfile.TemporaryDirectory(prefix="ddp-run-test-") as short,  # socket names hold 107 bytes
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
    ):
        inbox.bind(f"{short}/events.sock")
        inbox.setblocking(False)
        yield Ranks(folder, Path(short), inbox)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ranks_in(tmp_path) as ranks:
        yield ranks


OPTIMIZERS = """
import torch
class Unhashable(type(torch.optim.SGD)):
    __hash__ = None
class Own(torch.optim.SGD, metaclass=Unhashable):
    pass
class Ahead(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})
    def step(self, closure=None):
        self.inner.step()
        self.inner.step()
def made(kind):
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    return kind([weight], lr=0.1)
"""


def test_phases_steps_and_collectives_of_which_a_forked_child_has_none(ranks: Ranks) -> None:
    program = f"""
        {textwrap.indent(ALONE + OPTIMIZERS, " " * 8).strip()}
        import os, signal, time
        init("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        for optimizer in (torch.optim.SGD(model.parameters(), 0.1), torch.optim.AdamW(model.parameters())):
            for _ in range(2):
                model(torch.ones(2)).sum().backward()
                optimizer.step()
        for turn in [[made(torch.optim.SGD), made(torch.optim.AdamW), made(Own)]] * 40:
            for optimizer in turn:
                optimizer.step()
        pid = os.fork()
        if pid == 0:
            for _ in range(5):
                optimizer.step()
            print("stepped", flush=True)
            signal.alarm(5)  # gloo's group never ends in a forked child with torch 2.4, under plain Python too
            dist.destroy_process_group()
            os._exit(0)
        os.waitpid(pid, 0)
        while not os.path.exists("seen"): time.sleep(0.01)
        dist.destroy_process_group()
    """
    process = ranks.start(program, {})

    def collectives() -> int:
        board = ranks.board(process.pid)
        return board.look().collectives if board is not None else 0

    wait_until(lambda: collectives() >= 4, "four collectives")
    (ranks.folder / "seen").touch()
    ended = ranks.ended(process)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "stepped\n", "")
    phases = ended.named("phase")
    assert [message["phase"] for message in phases] == ["init", "after-init", "training", "shutdown"]
    assert [message["at"] for message in phases] == sorted(message["at"] for message in phases)
    assert {message["folder"] for message in phases} == {"r"}
    assert ended.named("missed") == []
    assert ended.look is not None
    assert (ended.look.phase, ended.look.steps) == ("shutdown", 4 + 120)
    assert ended.look.phase_at == phases[-1]["at"]
    assert ended.look.collectives >= 4


@pytest.mark.slow_system
@pytest.mark.parametrize(
    ("turns", "steps"),
    [
        ("[[made(torch.optim.SGD), Ahead(made(torch.optim.SGD))]] * 40", 80),
        ("[[Ahead(made(torch.optim.SGD)), made(torch.optim.SGD)]] * 40", 80),
        ("[[made(torch.optim.SGD)]] * 40 + [[Ahead(made(torch.optim.AdamW))]] * 40", 80),
        # its two inner steps of the first turn are not known to be that
        ("[[made(torch.optim.SGD)]] * 40 + [[Ahead(made(torch.optim.SGD))]] * 40", 82),
    ],
)
def test_a_step_within_another_one_is_not_counted(ranks: Ranks, turns: str, steps: int) -> None:
    ended = ranks.rank(f"{OPTIMIZERS}\nfor turn in {turns}:\n    for optimizer in turn:\n        optimizer.step()\n")
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.look is not None
    assert ended.look.steps == steps


SEEN_BY_THE_PROGRAM = """
import gc, importlib, inspect, json, pickle, sys, threading
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
del backend  # see test_backend.py
try:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
except ValueError as error:
    print(error)
dist.destroy_process_group()
importlib.reload(optimizer)
torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()
import torch.distributed as again
print(again is dist)
gc.freeze()  # as in ALONE
def main():
    dist.init_process_group("gloo", init_method="nonsense://x", rank=0, world_size=1)
main()
"""


@slow
def test_the_program_sees_what_it_sees_without_ddp_run_and_no_frame_of_ours(ranks: Ranks) -> None:
    plain = ranks.plain(SEEN_BY_THE_PROGRAM)
    ended = ranks.rank(SEEN_BY_THE_PROGRAM)
    assert ended.stdout == plain[1]
    assert (ended.code, ended.stderr) == (plain[0], plain[2])
    assert ended.code == 1
    assert "nonsense" in ended.stderr
    assert ended.stdout.endswith("\nTrue\n"), "it came to its last line"
    phases = [message["phase"] for message in ended.named("phase")]
    assert (phases[:2], phases[-1]) == (["init", "after-init"], "init")


COMPILED = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
graphs = 0
def backend(graph, inputs):
    global graphs
    graphs += 1
    return graph.forward
def tried(make, whole, fullgraph):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    optimizer = make(layer.parameters(), lr=0.1)
    def turn():
        layer(torch.ones(2, 4)).square().mean().backward()
        if whole:
            optimizer.step()
    compiled = torch.compile(turn if whole else optimizer.step, backend=backend, fullgraph=fullgraph)
    error = None
    try:
        for _ in range(20):
            if not whole:
                turn()
            compiled()
            optimizer.zero_grad()
    except Exception as raised:
        error = type(raised).__name__
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return breaks, error, layer.weight.sum().item().hex()
for make in (torch.optim.SGD, torch.optim.AdamW):
    for whole in (False, True):
        for fullgraph in (False, True):
            print(make.__name__, whole, fullgraph, *tried(make, whole, fullgraph), graphs)
"""


@pytest.mark.slow_system
def test_what_is_compiled_is_compiled_as_without_ddp_run(ranks: Ranks) -> None:
    code, stdout, stderr = ranks.plain(COMPILED)
    assert (code, len(stdout.splitlines())) == (0, 8), stderr
    assert ranks.rank(COMPILED).stdout == stdout


@slow
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
    ended = ranks.rank(program, backend="gloo", timeout_s=7, debug=True)
    assert ended.code == 0, ended.stderr
    groups, device = ended.stdout.splitlines()[:4], ended.stdout.splitlines()[4:]
    assert groups == ["gloo 0:00:07", "gloo 0:00:11", "gloo 0:00:07", "gloo 0:00:07"]
    said = [line for line in ended.stderr.splitlines() if line.startswith("[DDP-WARNING] backend gloo")]
    assert len(said) == 3
    for text in (
        "before DistributedDataParallel()",
        "after DistributedDataParallel()",
        "first optimizer step done",
        "destroy_process_group",
        "before torch.cuda.set_device 0",
    ):
        assert f"[DDP-DEBUG] {text}" in ended.stderr
    if device:
        assert f"[DDP-ERROR] torch.cuda.set_device failed: {device[0]}" in ended.stderr


@dataclass(frozen=True)
class EndedInACall:
    """A rank that cleans up on the way of an exception and on that of none, and ends in a call of torch."""

    before: str
    call_before: str
    ended: Ended


@pytest.fixture(scope="module")
def ended_in_a_call(tmp_path_factory: pytest.TempPathFactory) -> EndedInACall:
    program = f"""
        {textwrap.indent(ALONE, " " * 8).strip()}
        import os
        def raises(error):
            if error is not None:
                raise error
        def clean_up_behind(error):
            init("gloo")
            try:
                raises(error)
            finally:
                dist.destroy_process_group()
        for error in (ZeroDivisionError(), None, SystemExit()):
            try:
                clean_up_behind(error)
            except BaseException as raised:
                assert raised is error
        print("cleaned up", flush=True)
        input()
        init("gloo")
        class Ends(torch.nn.parallel.DistributedDataParallel):
            def _build_params_for_reducer(self):
                os._exit(7)
        assert torch.cuda.set_device.__name__ == "set_device"
        try:
            torch.nn.parallel.DistributedDataParallel(torch.nn.ReLU())
        except RuntimeError as error:
            print(error)
        print("ready", flush=True)
        input()
        Ends(torch.nn.Linear(2, 2))
    """
    with ranks_in(tmp_path_factory.mktemp("ended")) as ranks:
        process = ranks.start(program, {})
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "cleaned up\n"
        said = ranks.messages()  # a socket holds ten
        print(file=process.stdin, flush=True)
        before = "".join(takewhile("ready\n".__ne__, process.stdout))
        board = ranks.board(process.pid)
        assert board is not None
        call_before, ended = board.look().call, ranks.ended(process, "\n")
        return EndedInACall(before, call_before, replace(ended, messages=[*said, *ended.messages]))


@slow
def test_a_clean_up_on_the_way_of_an_exception_is_no_phase(ended_in_a_call: EndedInACall) -> None:
    phases = [message["phase"] for message in ended_in_a_call.ended.named("phase")]
    begun = ["init", "after-init"]
    # the clean-up on the way of none is the first and only shutdown before the last group
    assert phases == [*begun, *[*begun, "shutdown"] * 2, *begun], ended_in_a_call.ended.stderr
    [unwinds] = ended_in_a_call.ended.named("unwinds")
    assert (unwinds["code"], unwinds["exception"]["type"]) == (1, "ZeroDivisionError")


@slow
def test_the_call_that_a_rank_ended_in(ended_in_a_call: EndedInACall) -> None:
    ended = ended_in_a_call.ended
    assert "not needed" in ended_in_a_call.before
    assert ended_in_a_call.call_before == ""
    assert (ended.code, ended.look and ended.look.call) == (7, "DistributedDataParallel()")


def test_only_the_rank_tells_of_its_failure_and_no_forked_child(ranks: Ranks) -> None:
    program = """
        import os
        pid = os.fork()
        if pid == 0:
            raise ValueError("of the child")
        os.waitpid(pid, 0)
        raise KeyError("of the rank")
    """
    ended = ranks.rank(program, debug=True)
    assert [message["exception"]["type"] for message in ended.named("failed")] == ["KeyError"]
    said = [line for line in ended.stderr.splitlines() if line.startswith("[DDP-ERROR] the program failed")]
    assert said == ["[DDP-ERROR] the program failed: KeyError: 'of the rank'"]


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


@slow
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


FORKED_AND_STUCK = f"""
    import os, threading, time, warnings
    def threads():
        return set(os.listdir("/proc/self/task"))
    def forked():
        before = threads()
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        return len(before - threads())
    def forked_twice():
        while len(threads()) < 2: time.sleep(0.01)
        with warnings.catch_warnings(record=True) as seen:  # Python 3.12 and newer warn of threads
            warnings.simplefilter("always")
            assert (forked(), forked()) == (1, 0)
        assert not seen, seen[0]
    forked_twice()
    {textwrap.indent(ALONE, " " * 4).strip()}
    forked_twice()
    init("gloo")
    warnings.simplefilter("ignore")
    assert forked() == 0
    for _ in range(3):
        dist.all_reduce(torch.ones(5))
    def stuck():
        threading.Event().wait()
    print("ready", flush=True)
    stuck()
"""


def test_stacks_and_collectives_on_demand(ranks: Ranks) -> None:
    """The program asserts that no thread of ours is there when it forks before it has a group."""
    with ranks.standing(FORKED_AND_STUCK) as (process, board):
        assert stack_of(board, insist=False) is not None

        def stuck() -> bool:
            board.ask_for_stacks()
            stack = wait_until(board.stack, "the stacks")
            in_stuck = stack.users is not None and stack.users.function == "stuck"
            return in_stuck and stack.doing is Doing.LOCK

        wait_until(stuck, "the rank to be stuck")
        assert stuck(), "the second answer is not the first one again"
        board.ask_for_flight()
        wait_until(lambda: ranks.word(Page.ANSWERED) >= 1, "the flight recorder")
        flight = board.flight()
        if flight[0]:  # torch 2.4 has no such recorder for gloo
            (last,) = flight[0].values()
            assert (last.name, last.number, last.sizes) == ("all_reduce", 3, ((5,),))
            assert flight[1] is None
        assert process.poll() is None


@pytest.mark.parametrize("path", ["/no where/lock", 7])
def test_the_lock_file_that_a_rank_waits_for(ranks: Ranks, path: str | int) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    program = f"""
        import importlib.util, os, sys
        file = os.path.dirname({torch.origin!r}) + "/utils/file_baton.py"
        spec = importlib.util.spec_from_file_location("torch.utils.file_baton", file)
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        baton = module.FileBaton({path!r})
        os.path.exists = lambda path: True
        print("ready", flush=True)
        baton.wait()
    """
    with ranks.standing(program) as (_, board):

        def waits() -> Stack | None:
            stack = stack_of(board, insist=False)
            return stack if stack is not None and stack.doing is Doing.LOCK_FILE else None

        assert wait_until(waits, "the wait").lock_file == (path if isinstance(path, str) else None)
    assert not [message for message in ranks.messages() if message["event"] == "missed"]


def test_a_lock_of_filelock_that_a_rank_waits_for(ranks: Ranks) -> None:
    pytest.importorskip("filelock")
    lock = ranks.folder / "hub.lock"
    program = f"""
        import filelock
        print("ready", flush=True)
        filelock.FileLock({str(lock)!r}).acquire()
    """
    with subprocess.Popen(["flock", str(lock), "cat"], stdin=subprocess.PIPE) as holder:
        wait_until(lambda: lock.exists() and holder_of(str(lock), ()) == holder.pid, "the lock")
        with ranks.standing(program) as (_, board):

            def waits() -> bool:
                stack = stack_of(board, insist=False)
                return stack is not None and (stack.doing, stack.lock_file) == (Doing.LOCK_FILE, str(lock))

            wait_until(waits, "the wait")
        assert holder.stdin is not None
        holder.stdin.close()


def test_the_board_names_the_thread_before_the_program_begins(ranks: Ranks) -> None:
    program = f"""
        words = memoryview(open({str(ranks.boards / "board_0_3")!r}, "rb").read()).cast("q")
        with open("/proc/self/task/%d/comm" % words[{Page.SAMPLER}]) as file:
            file.read()
    """
    ended = ranks.rank(program)
    assert (ended.code, ended.stderr) == (0, "")


def stack_of(board: Board, *, insist: bool) -> Stack | None:
    """What a rank writes when it is asked; `insist`: whether the signal is to be sent for that."""
    board.ask_for_stacks()
    time.sleep(0.6)
    sent = False

    def answer() -> Stack | None:
        nonlocal sent
        if board.stack() is None:
            sent = board.insist_on_stacks() or sent
        return board.stack()

    stack = wait_until(answer, "its stacks")
    assert sent is insist
    return stack


FORKS = "os.fork() or os._exit(0)"
"""From here on there is no thread of ddp-run's, until there is torch."""
RUNS = "all(iter(lambda: True, False))"
"""Here the signal's handler would end the process soon."""


@pytest.mark.parametrize(
    ("what", "locked"),
    [
        (f"{{}}; {RUNS}", False),
        ("{}; ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)", True),
        ("{}; re.match('(a*)*b', 'a' * 40)", True),
    ],
    ids=["runs Python", "sleeps with the lock", "works with the lock"],
)
def test_stacks_of_a_rank_that(ranks: Ranks, what: str, locked: bool) -> None:
    program = "import ctypes, os, re, time; " + what.format("print('ready', flush=True)")
    with ranks.standing(program) as (process, board):
        if locked:
            wait_until(lambda: ranks.thread_is_locked_out(process.pid), "the call")
        for _ in range(2):
            stack = stack_of(board, insist=locked)
            assert stack is not None
            assert stack.users is not None
            assert stack.users.file.endswith("prog.py")
        assert process.poll() is None


@pytest.mark.parametrize(
    ("first", "call", "insist"),
    [
        ("pass", "ctypes.PyDLL(None).sleep(60)", True),
        ("pass", "ctypes.PyDLL(None).poll(None, 0, -1)", True),
        (FORKS, "ctypes.CDLL(None).sleep(60)", False),
        (
            f"{FORKS}; e = select.epoll()",
            "ctypes.CDLL(None).epoll_wait(e.fileno(), ctypes.create_string_buffer(12), 1, -1)",
            False,
        ),
        (FORKS, "input()", True),
    ],
    ids=[
        "sleep with the lock",
        "poll with the lock",
        "sleep without our thread",
        "epoll without our thread",
        "read without our thread",
    ],
)
def test_a_look_ends_no_call_of_c_early(ranks: Ranks, first: str, call: str, insist: bool) -> None:
    program = f"import ctypes, os, select; {first}; print('ready', flush=True); {call}; print('went on', flush=True)"
    with ranks.standing(program) as (process, board):
        if first == "pass":
            wait_until(lambda: ranks.thread_is_locked_out(process.pid), "the call")
        wait_until(lambda: state(process.pid) is ProcessState.SLEEPING, "the call")
        if insist:
            assert stack_of(board, insist=True) is not None
        else:
            board.ask_for_stacks()
            time.sleep(0.6)
            assert not any(board.insist_on_stacks() for _ in range(3))
        assert process.stdout is not None
        assert not select.select([process.stdout], [], [], 0.3)[0]


@pytest.mark.parametrize("stopped", [True, False])
def test_no_signal_is_sent_to_a_rank_that_may_be_running_python(ranks: Ranks, stopped: bool) -> None:
    program = f"import os; {FORKS}; print('ready', flush=True); {RUNS}"
    with ranks.standing(program) as (process, board):
        if stopped:
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: state(process.pid) is ProcessState.STOPPED, "the rank to stop")
        for _ in range(2):
            board.ask_for_stacks()
            for _ in range(10):
                time.sleep(0.1)
                assert not board.insist_on_stacks()
            assert board.stack() is None
        assert process.poll() is None


@slow
def test_a_torch_without_a_recorder_is_noted_once(ranks: Ranks) -> None:
    program = f"""
        {textwrap.indent(ALONE, " " * 8).strip()}
        import time
        from torch._C import _distributed_c10d
        for name in [name for name in dir(_distributed_c10d) if name.startswith("_dump_")]:
            delattr(_distributed_c10d, name)
        init("gloo")
        print("ready", flush=True)
        time.sleep(60)
    """
    with ranks.standing(program) as (_, board):
        for asked in (1, 2):
            board.ask_for_flight()
            wait_until(lambda: ranks.word(Page.ANSWERED) >= asked, f"answer {asked}")  # noqa: B023
            assert ranks.word(Page.ANSWERED) == asked
            assert board.flight() == ({}, None)
        missed = [message["text"] for message in ranks.messages() if message["event"] == "missed"]
        assert [text.partition(":")[0] for text in missed] == ["flight recorder"]


def test_an_interpreter_that_goes_down_outlives_a_late_question(ranks: Ranks) -> None:
    program = """
        import faulthandler, os, signal
        faulthandler.unregister(signal.SIGRTMIN + 5)  # as CPython does at the very end
        os.kill(os.getpid(), signal.SIGRTMIN + 5)
        print("alive")
    """
    ended = ranks.rank(program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "alive\n", "")


@slow
def test_a_program_that_ends_while_the_thread_of_ddp_run_is_in_torch(ranks: Ranks) -> None:
    """Coming back into an interpreter that goes down would abort the rank after a training that went well."""
    program = """
        import threading, time
        from datetime import timedelta
        import torch.distributed as dist
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        entered = threading.Event()
        class Group:
            def _get_sequence_number_for_group(self):
                entered.set()
                store.wait(["nobody sets it"], timedelta(seconds=1))  # in C++, as the real one
        class Last:
            def __del__(self):
                time.sleep(2)
        last = Last()
        dist.distributed_c10d._get_default_group, dist.distributed_c10d.is_initialized = Group, lambda: True
        assert entered.wait(60)
        print("done")
    """
    ended = ranks.rank(program)
    assert (ended.code, ended.stdout) == (0, "done\n"), ended.stderr
    assert "terminate called" not in ended.stderr


def test_a_rank_that_runs_another_program_is_sent_nothing(ranks: Ranks) -> None:
    with ranks.standing("import os; os.execvp('sh', ['sh', '-c', 'echo ready; exec sleep 60'])") as (process, board):
        board.ask_for_stacks()
        time.sleep(0.5)
        assert not board.insist_on_stacks()
        assert process.poll() is None
