"""Boards are read in the layout in which ranks write them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ddp_run.observe.boards import Board
from ddp_run.observe.collectives import last_collectives, times_entered
from ddp_run.observe.observer import Observer
from ddp_run.rank.board import PHASES, Page, open_page
from ddp_run.record.events import LocalRank, MonotonicNs, Rank, RankStarted
from ddp_run.values.helper_process import HelperProcesses

WORDS = {name: value for name, value in vars(Page).items() if name.isupper() and name not in ("SIZE", "VERSION")}


def test_each_word_of_the_layout_has_its_own_place() -> None:
    assert sorted(WORDS.values()) == list(range(len(WORDS)))
    assert len(WORDS) <= Page.SIZE // 8


def test_a_board_is_read_as_a_rank_writes_it(tmp_path: Path) -> None:
    page = open_page(str(tmp_path), 0, 3)
    page.words[page.PHASE], page.words[page.STEPS] = PHASES.index("training"), 7
    board = Board.open(tmp_path, 0, Rank(3), os.getpid(), tmp_path)
    assert board is not None
    assert (board.look().phase, board.look().steps) == ("training", 7)
    page.hide()
    page.words[page.STEPS] = 9
    assert board.look().steps == 7
    board.close()


def _board(folder: Path, pid: int, **words: int) -> Board | None:
    values = [0] * (Page.SIZE // 8)
    for name, value in {"VERSION_WORD": Page.VERSION, "PID": pid, **words}.items():
        values[WORDS[name]] = value
    (folder / "board_0_3").write_bytes(b"".join(value.to_bytes(8, sys.byteorder, signed=True) for value in values))
    return Board.open(folder, 0, Rank(3), os.getpid(), folder)


def test_a_board_is_read(tmp_path: Path) -> None:
    board = _board(tmp_path, os.getpid(), PHASE=3, PHASE_AT=5, STEPS=7, COLLECTIVE=13, COLLECTIVE_AT=9)
    assert board is not None
    look = board.look()
    assert (look.rank, look.phase, look.steps, look.collectives, look.progress_at) == (3, "training", 7, 13, 9)
    board.close()


def test_an_observer_lets_go_of_all_boards(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    board = _board(tmp_path, os.getpid())
    assert board is not None
    board.close()
    before = descriptors()
    observer = Observer([tmp_path], tmp_path, tmp_path, {}, HelperProcesses())
    rank = RankStarted(MonotonicNs(1), Rank(3), LocalRank(3), 0, os.getpid(), 4, 4, "", watched=True)
    observer.look(MonotonicNs(1), [rank], [])
    assert descriptors() == before + 1
    observer.close()
    assert descriptors() == before
    assert observer.boards.progress(MonotonicNs(2)) is None


def test_what_is_no_board_of_this_process_is_not_read(tmp_path: Path) -> None:
    assert Board.open(tmp_path, 0, Rank(3), os.getpid(), tmp_path) is None
    assert _board(tmp_path, os.getpid() + 1) is None
    assert _board(tmp_path, os.getpid(), VERSION_WORD=99) is None
    (tmp_path / "board_0_3").write_bytes(b"")
    assert Board.open(tmp_path, 0, Rank(3), os.getpid(), tmp_path) is None


@pytest.mark.parametrize(("mode", "used"), [(0o700, True), (0o755, False)])
def test_a_board_is_in_shared_memory_if_its_folder_there_is_private(tmp_path: Path, mode: int, used: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="ddp-run-test-", dir="/dev/shm") as shared:
        os.chmod(shared, mode)
        folder = tmp_path / Path(shared).name
        folder.mkdir()
        open_page(str(folder), 0, 3).hide()
        assert (Path(shared, "board_0_3").exists(), (folder / "board_0_3").exists()) == (used, not used)
        board = Board.open(Path(shared) if used else folder, 0, Rank(3), os.getpid(), folder)
        assert board is not None
        board.close()


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL, 9999, -1])
def test_no_signal_is_sent_before_the_rank_is_ready_for_it(tmp_path: Path, number: int) -> None:
    board = _board(tmp_path, os.getpid(), STACKS_READY=number)
    assert board is not None
    board.ask_for_stacks()
    assert not board.insist_on_stacks()
    assert board.stack() is None


def test_no_signal_is_sent_to_a_process_that_does_not_handle_it(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeps:
        _board(tmp_path, sleeps.pid, STACKS_READY=signal.SIGRTMIN + 5)
        board = Board.open(tmp_path, 0, Rank(3), sleeps.pid, tmp_path)
        assert board is not None
        board.ask_for_stacks()
        assert not board.insist_on_stacks()
        assert sleeps.poll() is None
        sleeps.kill()


def test_stacks_of_a_stall_of_days_fill_no_disk(tmp_path: Path) -> None:
    board = _board(tmp_path, os.getpid())
    assert board is not None
    stacks, most = tmp_path / "live_stacks.txt", 4 << 20
    sizes = []
    for _ in range(100):
        board.ask_for_stacks()
        with stacks.open("ab") as file:  # as the rank and faulthandler write: at the end, wherever that is by then
            file.write(b"x" * (100 << 10))
        sizes.append(stacks.stat().st_size)
    assert max(sizes) <= most + (100 << 10)
    assert sizes[30] == 31 * (100 << 10)
    board.close()


def test_stacks_are_found_in_a_file_that_another_process_has_emptied(tmp_path: Path) -> None:
    """Observer and `ddp-run stacks` may ask at the same time."""
    board = _board(tmp_path, os.getpid())
    assert board is not None
    stacks = tmp_path / "live_stacks.txt"
    stacks.write_text("x" * 100_000)
    board.ask_for_stacks()
    frame = '  File "/x/ddp_run/rank/__main__.py", line 12 in <module>\n'
    dump = f'Thread 0x0001 (most recent call first):\n  File "/home/me/t.py", line 7 in train\n{frame}'
    stacks.write_text(dump)
    found = board.stack()
    board.close()
    assert found is not None
    assert [each.place for each in found.frames] == ["t.py:7 in train"]


def test_a_rank_is_silent_once_its_sampling_thread_has_stopped_coming(tmp_path: Path) -> None:
    for beat, at, silent in ((0, 10**12, False), (10**12, 10**12 + 2 * 10**9, False), (10**12, 2 * 10**12, True)):
        board = _board(tmp_path, os.getpid(), HEARTBEAT=beat)
        assert board is not None
        assert board.is_silent(at) is silent


def test_an_unanswered_question_gives_no_collectives(tmp_path: Path) -> None:
    entry = '{"collective_seq_id": 1, "profiling_name": "gloo:barrier"}'
    (tmp_path / "flight.json").write_text(f'{{"recorders": [{{"entries": [{entry}]}}]}}')
    board = _board(tmp_path, os.getpid())
    assert board is not None
    board.ask_for_flight()
    assert board.flight() == ({}, None)
    board = _board(tmp_path, os.getpid(), ASKED=1, ANSWERED=1)
    assert board is not None
    assert [each.name for each in board.flight()[0].values()] == ["barrier"]
    for broken in ("", "[]", '{"entries": []}', '{"recorders": [{"entries": [1]}]}'):
        (tmp_path / "flight.json").write_text(broken)
        assert board.flight() == ({}, None)
        assert board.entered() == {}


def test_when_collectives_were_entered() -> None:
    entries = [
        _entry(1, time_created_ns=5),
        _entry(2, time_created_ns=9),
        _entry(2, time_created_ns=9, p2p=True),
        _entry(3),
        _nccl(1, "completed", time_created_ns=7),
    ]
    entered = {("gloo:0", 1): 5, ("gloo:0", 2): 9, ("nccl:0", 1): 7}
    assert times_entered(_recorded(*entries)) == entered
    assert times_entered({}) == {}


def _entry(
    number: int, group: str = "0", *, retired: bool | None = True, p2p: bool = False, **more: object
) -> dict[str, object]:
    return {
        "collective_seq_id": number,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[20]],
        "input_dtypes": ["Float"],
        "process_group": [group, "default_pg"],
        "is_p2p": p2p,
        "retired": retired,
        **more,
    }


def _recorded(*entries: dict[str, object]) -> dict[str, object]:
    return {"recorders": [{"entries": list(entries)}]}


def test_the_last_collectives() -> None:
    entries = [_entry(1), _entry(1, "1"), _entry(2), _entry(3, "1", retired=False), _entry(9, p2p=True)]
    last, current = last_collectives(_recorded(*entries))
    assert {group: each.number for group, each in last.items()} == {"gloo:0": 2, "gloo:1": 3}
    assert current is not None
    assert (current.group, current.said) == ("gloo:1", "all_reduce of [20]")
    assert last_collectives(_recorded(_entry(1)))[1] is None
    assert last_collectives(_recorded(_entry(1, retired=None)))[1] is None  # an older torch does not say
    assert last_collectives({"recorders": []}) == ({}, None)


def _nccl(number: int, state: str, group: str = "0", **more: object) -> dict[str, object]:
    more = {"profiling_name": "nccl:all_reduce", "state": state, "time_created_ns": number, **more}
    return _entry(number, group, retired=state == "completed", **more)  # type: ignore[arg-type]


def test_of_nccl_a_rank_waits_for_the_first_that_has_not_ended() -> None:
    entries = [_nccl(1, "completed"), _nccl(2, "completed"), _nccl(3, "started"), _nccl(4, "scheduled")]
    last, current = last_collectives(_recorded(*entries))
    assert {group: each.number for group, each in last.items()} == {"nccl:0": 4}
    assert current is not None
    assert (current.number, current.nccl) == (3, True)
    assert last_collectives(_recorded(*entries[:2]))[1] is None


def test_what_was_complete_when_it_was_asked_is_not_waited_for() -> None:
    seen_now = _nccl(2, "completed") | {"retired": False}
    assert last_collectives(_recorded(_nccl(1, "completed"), seen_now))[1] is None


def test_parts_of_a_coalesced_collective_are_not_waited_for_once_it_has_ended() -> None:
    part = _nccl(2, "scheduled", profiling_name="nccl:_all_gather_base")
    whole = _nccl(2, "completed", profiling_name="nccl:coalesced")
    assert last_collectives(_recorded(part, part, whole))[1] is None
    _, current = last_collectives(_recorded(part, part, whole | {"state": "started", "retired": False}))
    assert current is not None
    assert current.name == "_all_gather_base"


def test_of_two_groups_what_was_entered_first_is_waited_for() -> None:
    entries = [_nccl(5, "started", "1", time_created_ns=10), _nccl(9, "scheduled", time_created_ns=20)]
    _, current = last_collectives(_recorded(*reversed(entries)))
    assert current is not None
    assert current.group == "nccl:1"


def test_a_group_with_two_libraries_counts_for_each() -> None:
    gloo, nccl = [_entry(7, time_created_ns=2)], [_nccl(3, "completed", time_created_ns=1)]
    last, _ = last_collectives({"recorders": [{"entries": nccl}, {"entries": gloo}]})
    assert {group: each.number for group, each in last.items()} == {"gloo:0": 7, "nccl:0": 3}


def test_the_users_line_of_a_collective() -> None:
    frames = [
        {"name": "all_reduce", "filename": "/usr/lib/python3/site-packages/torch/distributed/c10d.py", "line": 3000},
        {"name": "step", "filename": "/home/user/train.py", "line": 88},
        {"name": "<module>", "filename": "/home/user/train.py", "line": 99},
    ]
    _, current = last_collectives(_recorded(_nccl(1, "started", frames=frames)))
    assert current is not None
    assert current.place == "train.py:88 in step"
