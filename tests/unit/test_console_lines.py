from __future__ import annotations

import re
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unchanged import slow_if_unchanged
from tests.waiting import limit

from ddp_run.tell.held_lines import Collapser
from ddp_run.values.lines import LineBuffer, Stream, neutral, readable
from ddp_run.values.words import rank_list

slow = slow_if_unchanged(__file__)


def whole(buffer: LineBuffer, *pieces: bytes) -> bytes:
    return b"".join(buffer.take(piece) for piece in pieces)


@given(st.lists(st.binary(max_size=20).map(lambda text: text.replace(b"\x1b", b"e")), max_size=20))
def test_cutting_into_lines_loses_no_byte_of_ordinary_text(pieces: list[bytes]) -> None:
    pieces = [piece.replace(b"\r", b" ") for piece in pieces]
    buffer = LineBuffer()
    block = whole(buffer, *pieces)
    assert not block or block.endswith(b"\n")
    rest = buffer.rest()
    assert b"\n" not in rest
    assert block + rest == b"".join(pieces)


def test_progress_bar_keeps_only_its_newest_state() -> None:
    buffer = LineBuffer()
    assert whole(buffer, b"\r 10%", b"\r 20%", b"\r 30%") == b""
    assert buffer.state() == b"30%"
    assert buffer.held < 20
    assert readable(buffer.take(b" done\n"), colour=False) == b" 30% done\n"


def test_progress_bar_with_the_return_at_its_end() -> None:
    buffer = LineBuffer()
    whole(buffer, b"10%\r", b"20%\r")
    assert buffer.state() == b"20%"


def test_wiped_progress_bar_has_no_state() -> None:
    buffer = LineBuffer()
    whole(buffer, b"\r 10%|##  |", b"\r          \r")
    assert buffer.state() == b""


# What tqdm writes for position=1: newline, carriage return, bar, cursor up.
NESTED = b"\router 1/2" + b"".join(b"\n\rinner %d/9\x1b[A" % step for step in range(3))
NESTED += b"\n\r          \x1b[A" + b"\router 2/2\n"
WITHIN_UP = {match.end() - back for match in re.finditer(rb"\x1b\[A", NESTED) for back in (1, 2)}
"""tqdm writes the sequence at once: no read ends inside it."""


@pytest.mark.parametrize("cut", [cut for cut in range(1, len(NESTED)) if cut not in WITHIN_UP])
def test_nested_bars_of_tqdm_leave_one_line_of_the_outer(cut: int) -> None:
    buffer = LineBuffer()
    block = whole(buffer, NESTED[:cut], NESTED[cut:])
    assert readable(block, colour=False) == b"outer 1/2\nouter 2/2\n"


# What tqdm 4.70 writes for a bar of its own at position=1 or 2, in the pieces that it writes.
LOWERED = [piece for step in (0, 50, 100) for piece in (b"\n", b"\r%3d%%|#|" % step, b"\x1b[A")]
LOWER = [piece.replace(b"\n", b"\n\n").replace(b"\x1b[A", b"\x1b[A\x1b[A") for piece in LOWERED]


@pytest.mark.parametrize("drawn", [LOWERED, LOWER, [b"".join(LOWERED)], [b"".join(LOWER)]], ids=len)
@pytest.mark.parametrize("before", [b"", b"hello\n", b"hello\n\n"])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_bar_that_stands_lower_leaves_no_empty_line(drawn: list[bytes], before: bytes, leaves: bool) -> None:
    buffer = LineBuffer()
    last = [b"\r100%|#|\n"] if leaves else [drawn[0] if len(drawn) > 1 else b"\n", b"\r       ", b"\x1b[A"]
    shown = buffer.take(before)
    for piece in drawn:
        shown += buffer.take(piece)
    assert buffer.state().startswith(b"100%|#|")
    for piece in last:
        shown += buffer.take(piece)
    shown += buffer.rest()
    assert readable(shown, colour=False).rstrip(b" ") == before + (b"100%|#|\n" if leaves else b"")


@pytest.mark.parametrize("text", [b"a\n\nb\n", b"\n\n\n", b"a\n\n\n\r 5%\r 9%\n", b"\n\r 5%\r 9%\nb\n", b"\n" * 1000])
def test_empty_lines_stay(text: bytes) -> None:
    for cut in range(min(len(text), 20)):
        buffer = LineBuffer()
        shown = buffer.take(text[:cut]) + buffer.take(text[cut:]) + buffer.rest()
        assert readable(shown, colour=False) == readable(text, colour=False)


def test_an_empty_line_waits_for_what_follows_and_not_for_long() -> None:
    buffer = LineBuffer()
    assert buffer.take(b"a\n\n") == b"a\n"
    assert buffer.held == 1
    assert not buffer.progress
    assert buffer.take(b"b\n") == b"\nb\n"


UP = b"\r\x1b[2K\x1b[1A\x1b[2K"


def test_bars_of_rich_that_stand_below_each_other_are_one_state() -> None:
    buffer = LineBuffer()
    assert buffer.take(b"\x1b[?25l\r\x1b[2Kepoch 0%\nval 0%") == b"\x1b[?25l\r\x1b[2Kepoch 0%\n"
    assert buffer.take(UP + b"epoch 1%\nval 0%") == b""
    assert buffer.state() == b"epoch 1%  val 0%"
    assert buffer.take(UP + b"epoch 2%\nval 1%" + UP + b"epoch 3%\nval 2%") == b""
    assert buffer.state() == b"epoch 3%  val 2%"
    above = buffer.take(UP + b"hello\nepoch 3%\nval 2%")
    assert readable(above, colour=False) == b"hello\n"
    assert buffer.state() == b"epoch 3%  val 2%"
    assert (
        readable(buffer.take(UP + b"epoch 9%\nval 9%\n\x1b[?25hafter\n"), colour=False) == b"epoch 9%  val 9%\nafter\n"
    )
    assert buffer.held == 0
    assert readable(buffer.take(UP + b"epoch 9%\nval 9%\n\x1b[?25hafter"), colour=False) == b"epoch 9%  val 9%\n"
    assert readable(buffer.take(b" all\n"), colour=False) == b"after all\n"


@slow
def test_a_long_line_in_small_pieces_takes_linear_time() -> None:
    def seconds(pieces: int) -> float:
        buffer = LineBuffer()
        start = time.process_time()
        for _ in range(pieces):
            buffer.take(b"\x1b[31m" + b"x" * 95)
        block = buffer.take(b"\n")
        assert len(readable(block, colour=False)) == pieces * 95 + 1
        return time.process_time() - start

    small = min(seconds(5_000) for _ in range(3))
    large = seconds(50_000)
    assert large < 40 * small + 0.5


@slow
def test_a_line_in_tiny_pieces_takes_no_more_memory_than_its_bytes() -> None:
    buffer = LineBuffer()
    tracemalloc.start()
    try:
        for _ in range(200_000):
            buffer.take(b"xyz"[:2])
            buffer.take(b"z1")
        assert buffer.held == 800_000
        assert tracemalloc.get_traced_memory()[1] < 4 * buffer.held
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"tab\tstays", b"tab\tstays"),
        (b"\x1b[31mred\x1b[0m", b"red"),
        (b"clear\x1b[2J\x1b[Hscreen", b"clearscreen"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", b"link"),
        (b"\x1bPq#0;1\x1b\\sixel", b"sixel"),
        (b"\x1bcreset \x1b(0charset", b"reset charset"),
        (b"alt\x1b[?1049h", b"alt"),
        (b"bell\x07 nul\x00 back\x08 del\x7f", b"bell nul back^H del^?"),
        ("\x9b31mC1".encode(), b"\\x9b31mC1"),
        (b"lonely\x1b", b"lonely^["),
        (b"\x1b]0;never closed", b"0;never closed"),
        (b"bad \xff\xfe utf", "bad \ufffd\ufffd utf".encode()),
        ("gr\u00fc\u00dfe \u65e5\u672c".encode(), "gr\u00fc\u00dfe \u65e5\u672c".encode()),
        (b"windows\r", b"windows"),
        (b"50%\r100%", b"100%"),
    ],
)
def test_what_is_left_of_control_characters(written: bytes, shown: bytes) -> None:
    assert readable(b"a\n" + written + b"\nb\n", colour=False) == b"a\n" + shown + b"\nb\n"


def test_colours_stay_where_asked_and_end_with_their_line() -> None:
    block = b"\x1b[1;31mred\nplain\n\x1b[32mgreen\x1b[0m\n\x1b[2Kx\n"
    shown = readable(block, colour=True)
    assert shown == b"\x1b[1;31mred\x1b[0m\nplain\n\x1b[32mgreen\x1b[0m\nx\n"


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200)
def test_nothing_but_colours_reaches_a_terminal(block: bytes, colour: bool) -> None:
    shown = readable(block, colour=colour).decode()
    if colour:
        shown = re.sub("\x1b\\[[0-9;:]*m", "", shown)
    assert not [c for c in shown if (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f"]
    assert shown.count("\n") == block.count(b"\n")


QUICK = (b"\x1b[1", b"\r", b"\xff")
UNITS = (b"\x1b]", b"\x1b[", b"\x1b[1", b"\x1b", b"\x1bP ", b"\r", b"\xff")


@pytest.mark.parametrize("unit", [pytest.param(each, marks=[] if each in QUICK else [slow]) for each in UNITS])
def test_a_hostile_long_line_takes_linear_time(unit: bytes) -> None:
    start = time.process_time()
    readable(unit * (1_000_000 // len(unit)) + b"\n", colour=True)
    readable(unit + b"1" * 1_000_000 + b"\n", colour=True)
    assert time.process_time() - start < limit(20)


def test_neutral_is_one_line_of_text() -> None:
    assert neutral("a\nb\r\x1b[2Jc\udcff") == "a b c\ufffd"


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "3"), ([0, 1, 2, 3], "0-3"), ([7, 0, 2, 5, 6], "0,2,5-7"), ([0, 1], "0-1")]
)
def test_rank_list(ranks: list[int], text: str) -> None:
    assert rank_list(ranks) == text


Written = list[tuple[int, Stream, bytes]]
LINES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(("stdout", "stderr")), st.sampled_from((b"a", b"b", b"c", b""))),
    max_size=60,
)


@given(LINES, st.integers(1, 30))
@settings(max_examples=200)
def test_expanding_collapsed_lines_gives_each_rank_its_own_in_order(written: Written, step: int) -> None:
    collapser = Collapser(window_s=0.05)
    groups = []
    for index, (rank, stream, text) in enumerate(written):
        now = index * step / 1000
        collapser.add(rank, stream, text, now)
        groups += collapser.due(now, ranks=4)
    groups += collapser.all()
    assert not len(collapser)
    assert collapser.deadline is None
    for rank in range(4):
        expanded = [(group.stream, group.text) for group in groups for r in group.ranks if r == rank]
        assert expanded == [(stream, text) for r, stream, text in written if r == rank]


def test_a_line_of_one_rank_between_does_not_part_the_others() -> None:
    collapser = Collapser()
    for rank in range(3):
        collapser.add(rank, "stderr", b"warning", 0)
        if rank == 1:
            collapser.add(rank, "stderr", b"only here", 0)
        collapser.add(rank, "stderr", b"ready", 0)
    shown = [(group.text, group.ranks) for group in collapser.all()]
    assert shown == [(b"warning", [0, 1, 2]), (b"only here", [1]), (b"ready", [0, 1, 2])]


def test_lines_that_no_other_rank_has_stand_in_the_order_they_came() -> None:
    collapser = Collapser()
    for at, rank in enumerate((2, 0, 1, 0)):
        collapser.add(rank, "stdout", b"line %d" % at, at / 1000)
    assert [group.text for group in collapser.all()] == [b"line 0", b"line 1", b"line 2", b"line 3"]


def test_a_rank_that_writes_without_end_keeps_no_other_waiting() -> None:
    collapser = Collapser(window_s=0.05)
    collapser.add(0, "stdout", b"ready", 0.0)
    for number in range(20):
        collapser.add(1, "stdout", b"line %d" % number, number / 1000)
    collapser.add(1, "stdout", b"ready", 0.02)
    shown = [group.text for group in collapser.due(0.051, ranks=3)]
    assert shown == [b"line %d" % number for number in range(20)] + [b"ready"]


def test_a_full_group_goes_at_once_and_another_after_its_window() -> None:
    collapser = Collapser(window_s=0.05)
    for rank in range(2):
        collapser.add(rank, "stdout", b"both", 1.0)
    collapser.add(0, "stdout", b"one", 1.0)
    assert [group.text for group in collapser.due(1.0, ranks=2)] == [b"both"]
    assert collapser.deadline == pytest.approx(1.05)
    assert not collapser.due(1.04, ranks=2)
    assert [group.ranks for group in collapser.due(1.06, ranks=2)] == [[0]]
