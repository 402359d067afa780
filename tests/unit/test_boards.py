"""Boards are read in the layout in which ranks write them, and /proc says what a process waits for."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ddp_run
from ddp_run import boards
from ddp_run.boards import Board, ProcessLook, last_collectives, process
from ddp_run.events import Rank
from ddp_run.progress import ProcessState

SOURCE = Path(ddp_run.__file__).parent / "rank" / "board.py"
_KNOWS_CALLS = os.uname().machine in boards._CALLS


def _constants() -> dict[str, object]:
    found = {}
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def test_the_layout_is_that_of_the_ranks() -> None:
    theirs = _constants()
    assert (theirs.pop("SIZE"), theirs.pop("VERSION"), theirs.pop("PHASES")) == (
        boards.SIZE,
        boards.VERSION,
        boards.PHASES,
    )
    theirs.pop("TYPE_CHECKING")
    theirs.pop("HIGHEST_LOW")
    assert theirs == {name: index for index, name in enumerate(boards.WORDS)}


def _board(folder: Path, pid: int, **words: int) -> Board | None:
    values = [0] * (boards.SIZE // 8)
    for name, value in {"VERSION_WORD": boards.VERSION, "PID": pid, **words}.items():
        values[boards.WORDS.index(name)] = value
    (folder / "board_0_3").write_bytes(b"".join(value.to_bytes(8, sys.byteorder, signed=True) for value in values))
    return Board.open(folder, 0, Rank(3), os.getpid(), folder)


def test_a_board_is_read(tmp_path: Path) -> None:
    board = _board(tmp_path, os.getpid(), PHASE=3, PHASE_AT=5, STEPS=7, COLLECTIVE=13, COLLECTIVE_AT=9)
    assert board is not None
    look = board.look()
    assert (look.rank, look.phase, look.steps, look.collectives, look.progress_at) == (3, "training", 7, 13, 9)
    board.close()


def test_what_is_no_board_of_this_process_is_not_read(tmp_path: Path) -> None:
    assert Board.open(tmp_path, 0, Rank(3), os.getpid(), tmp_path) is None
    assert _board(tmp_path, os.getpid() + 1) is None
    assert _board(tmp_path, os.getpid(), VERSION_WORD=99) is None
    (tmp_path / "board_0_3").write_bytes(b"")
    assert Board.open(tmp_path, 0, Rank(3), os.getpid(), tmp_path) is None


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL, 9999, -1])
def test_no_signal_is_sent_before_the_rank_is_ready_for_it(tmp_path: Path, number: int) -> None:
    board = _board(tmp_path, os.getpid(), STACKS_READY=number)
    assert board is not None
    assert not board.ask_for_stacks()
    assert board.stack() is None


def test_no_signal_is_sent_to_a_process_that_has_lost_its_handler(tmp_path: Path) -> None:
    number = signal.SIGRTMIN + 5
    board = _board(tmp_path, os.getpid(), STACKS_READY=number)
    assert board is not None
    assert not board.ask_for_stacks()
    received: list[int] = []
    before = signal.signal(number, lambda signum, _frame: received.append(signum))
    try:
        (tmp_path / "live_stacks.txt").touch()
        assert board.ask_for_stacks()
        assert received == [number]
    finally:
        signal.signal(number, before)


def test_a_rank_is_silent_once_its_sampling_thread_has_stopped_coming(tmp_path: Path) -> None:
    for beat, at, silent in ((0, 10**12, False), (10**12, 10**12 + 2 * 10**9, False), (10**12, 2 * 10**12, True)):
        board = _board(tmp_path, os.getpid(), HEARTBEAT=beat)
        assert board is not None
        assert board.is_silent(at) is silent


def test_an_unanswered_question_gives_no_collectives(tmp_path: Path) -> None:
    (tmp_path / "flight.json").write_text('{"entries": [{"collective_seq_id": 1, "profiling_name": "gloo:barrier"}]}')
    board = _board(tmp_path, os.getpid())
    assert board is not None
    board.ask_for_flight()
    assert board.flight() == ({}, None)
    board = _board(tmp_path, os.getpid(), ASKED=1, ANSWERED=1)
    assert board is not None
    assert [each.name for each in board.flight()[0].values()] == ["barrier"]
    for broken in ("", "[]", '{"entries": [1]}'):
        (tmp_path / "flight.json").write_text(broken)
        assert board.flight() == ({}, None)


def _entry(number: int, group: str = "0", *, retired: bool | None = True, p2p: bool = False) -> dict[str, object]:
    return {
        "collective_seq_id": number,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[20]],
        "input_dtypes": ["Float"],
        "process_group": [group, "default_pg"],
        "is_p2p": p2p,
        "retired": retired,
    }


def test_the_last_collectives() -> None:
    entries = [_entry(1), _entry(1, "1"), _entry(2), _entry(3, "1", retired=False), _entry(9, p2p=True)]
    last, current = last_collectives({"entries": entries})
    assert {group: each.number for group, each in last.items()} == {"0": 2, "1": 3}
    assert current is not None
    assert (current.group, current.said) == ("1", "all_reduce of [20]")
    assert last_collectives({"entries": [_entry(1)]})[1] is None
    assert last_collectives({"entries": [_entry(1, retired=None)]})[1] is None  # an older torch does not say
    assert last_collectives({}) == ({}, None)


# -------------------------------------------------------------------------------------------- /proc


@contextmanager
def _started(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def _seen(pid: int, wanted: Callable[[ProcessLook], bool]) -> ProcessLook:
    deadline = time.monotonic() + 10
    while not wanted(look := process(pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return look


@pytest.mark.skipif(not _KNOWS_CALLS, reason="system calls of this machine are not known")
def test_what_a_process_waits_for(tmp_path: Path) -> None:
    with _started("import time; print(flush=True); time.sleep(100)") as pid:
        look = _seen(pid, lambda look: look.asleep)
        assert (look.state, look.asleep, look.on_lock, look.waits_on) == (ProcessState.SLEEPING, True, False, None)
    with _started(
        "import _thread; lock = _thread.allocate(); print(flush=True); lock.acquire(); lock.acquire()"
    ) as pid:
        look = _seen(pid, lambda look: look.on_lock)
        assert (look.asleep, look.on_lock) == (False, True)
    with _started("import threading; print(flush=True); threading.Event().wait(100)") as pid:
        look = _seen(pid, lambda look: look.switches > 0 and look.state is ProcessState.SLEEPING)
        assert (look.asleep, look.on_lock) == (False, False)  # a time-out opens it
    os.mkfifo(tmp_path / "pipe")
    with _started(f"import os; a = os.open('{tmp_path}/pipe', os.O_RDWR); print(flush=True); os.read(a, 1)") as pid:
        assert _seen(pid, lambda look: look.waits_on is not None).waits_on == f"read of {tmp_path}/pipe"


def test_a_process_that_works_is_stopped_and_gone() -> None:
    with _started("print(flush=True)\nwhile True: pass") as pid:
        first = process(pid)
        assert _seen(pid, lambda look: look.cpu_s > first.cpu_s + 0.1).cpu_s > first.cpu_s + 0.1
        os.kill(pid, signal.SIGSTOP)
        assert _seen(pid, lambda look: look.state is ProcessState.STOPPED).state is ProcessState.STOPPED
    assert process(pid) == ProcessLook(ProcessState.GONE)
