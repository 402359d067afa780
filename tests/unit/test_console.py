from __future__ import annotations

import os
import pty
import re
import select
import socket
import termios
import time
import tty
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unchanged import slow_if_unchanged

from ddp_run.tell.console import Console, Read
from ddp_run.tell.outlet import LeftS
from ddp_run.tell.output import Patience
from ddp_run.tell.selection import Prefix, prefix_of, shown_by
from ddp_run.tell.tail import Chunk
from ddp_run.values.lines import MAX_HELD, Stream
from ddp_run.values.terminal import colour as uses_colour


def out(rank: int, text: bytes | str, stream: Stream = "stdout", *, fresh: bool = False) -> Chunk:
    return Chunk(rank, rank, stream, text.encode() if isinstance(text, str) else text, fresh)


def patient() -> float:
    return 60


class Screen:
    """Two files that a console writes to."""

    def __init__(self, folder: Path) -> None:
        self.files = (folder / "out", folder / "err")
        self.fds = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in self.files]

    def console(self, ranks: int = 0, prefix: Prefix | None = None) -> Console:
        return Console(*self.fds, ranks=ranks, prefix=prefix)

    @property
    def out(self) -> str:
        return self.files[0].read_text()

    @property
    def err(self) -> str:
        return self.files[1].read_text()


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path)
    yield screen
    for fd in screen.fds:
        os.close(fd)


@pytest.mark.parametrize(("lines", "shown"), [(800, "[rank0-1]: \n"), (5000, "[rank0]: \n")])
def test_many_short_lines_at_once_are_not_compared(screen: Screen, lines: int, shown: str) -> None:
    console = screen.console(ranks=2)
    console.feed([out(rank, "\n" * (lines // 2)) for rank in (0, 1)], 0)
    console.end_attempt(1)
    assert screen.out.startswith(shown)
    assert len(screen.out.splitlines()) == (lines // 2 if "-" in shown else lines)


def test_a_bar_that_nobody_moves_any_more_hides_no_other(screen: Screen) -> None:
    console = screen.console(ranks=2)
    console.feed([out(0, "\rold 3%", "stderr"), out(1, "\rnew 0%", "stderr")], 0)
    for second in range(60):
        console.feed([out(1, f"\rnew {second}%", "stderr")], second)
    shown = screen.err.splitlines()
    assert shown[0] == "[rank0]: old 3%"
    assert shown[-1].startswith("[rank1]: new ")


def test_streams_go_to_their_own_descriptor_with_a_prefix(screen: Screen) -> None:
    console = screen.console(ranks=1)
    console.feed([out(0, "hello\n"), out(0, "oops\n", "stderr")], 0)
    assert (screen.out, screen.err) == ("[rank0]: hello\n", "[rank0]: oops\n")


def test_line_with_torchs_own_prefix_gets_no_second(screen: Screen) -> None:
    console = screen.console(ranks=1)
    console.feed([out(3, "[rank3]: Traceback\n[rank3]: x\n[rank1]: y\n [rank3]: z\n", "stderr")], 0)
    assert screen.err == "[rank3]: Traceback\n[rank3]: x\n[rank3]: [rank1]: y\n[rank3]:  [rank3]: z\n"


def test_tracebacks_with_torchs_prefix_collapse_too(screen: Screen) -> None:
    console = screen.console(ranks=2)
    console.feed([out(rank, f"[rank{rank}]: ValueError\n", "stderr") for rank in (0, 1)], 0)
    assert screen.err == "[rank0-1]: ValueError\n"


def test_torchruns_template(screen: Screen) -> None:
    prefix = prefix_of("<${role_name} ${rank}/${local_rank} ${other}> ", "trainer")
    console = screen.console(ranks=2, prefix=prefix)
    console.feed([Chunk(5, 1, "stdout", b"a\nb\n"), Chunk(4, 0, "stdout", b"a\n")], 0)
    lines = ["<trainer 5/1 ${other}> a", "<trainer 5/1 ${other}> b", "<trainer 4/0 ${other}> a", ""]
    assert screen.out.split("\n") == lines
    assert prefix_of(None) is None


def test_an_empty_template_is_no_prefix(screen: Screen) -> None:
    console = screen.console(ranks=2, prefix=prefix_of(""))
    console.feed([out(0, "a\n\nb\n"), out(1, "a\n")], 0)
    assert screen.out == "a\n\nb\na\n"


def test_raw_passes_what_ranks_write_in_whole_lines(screen: Screen) -> None:
    console = Console(*screen.fds, ranks=2, raw=True)
    console.feed([out(0, "\x1b[31mre"), out(1, "one\r\n5%\rha"), out(0, "d\x07\n"), out(1, "a\n", "stderr")], 0)
    assert screen.files[0].read_bytes() == b"one\r\n5%\r\x1b[31mred\x07\n"
    assert screen.err == "a\n"
    assert console.deadline == 0.2
    console.tick(0.3)
    console.feed([out(0, "end")], 1)
    console.finish(patient)
    assert screen.files[0].read_bytes().endswith(b"red\x07\nhaend")


@pytest.mark.parametrize(
    ("colour", "forced", "shown"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_colours_go_into_a_pipe_where_they_are_forced(screen: Screen, colour: bool, forced: bool, shown: bool) -> None:
    console = Console(*screen.fds, ranks=1, colour=colour, force_colour=forced)
    console.feed([out(0, "\x1b[31mred\x1b[0m\n")], 0)
    assert ("\x1b[31m" in screen.out) is shown


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"FORCE_COLOR": "0", "CLICOLOR_FORCE": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
    ids=str,
)
def test_who_decides_about_colour(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with open(os.devnull, "w") as pipe:
        assert uses_colour(pipe) is expected


def test_unfinished_line_waits_for_its_end(screen: Screen) -> None:
    console = screen.console(ranks=1)
    console.feed([out(0, "hel")], 10)
    assert screen.out == ""
    assert console.deadline == 12
    console.feed([out(0, "lo\n")], 11)
    assert screen.out == "[rank0]: hello\n"
    assert console.deadline is None


def test_unfinished_lines_of_many_ranks_share_one_room(screen: Screen) -> None:
    console = screen.console(ranks=64)
    for _ in range(8):
        for rank in range(64):
            console.feed([out(rank, b"x" * (96 << 10))], 0)
        assert sum(source.lines.held for source in console._sources.values()) <= MAX_HELD


def test_unfinished_line_is_shown_after_silence_and_at_the_end(screen: Screen) -> None:
    console = screen.console(ranks=1)
    console.feed([out(0, "Continue? ")], 10)
    console.tick(12)
    assert screen.out == "[rank0]: Continue? \n"
    console.feed([out(0, "yes")], 13)
    console.end_attempt(13)
    assert screen.out == "[rank0]: Continue? \n[rank0]: yes\n"


def test_another_file_does_not_continue_the_line_of_the_first(screen: Screen) -> None:
    console = screen.console(ranks=1)
    console.feed([out(0, "died in mid")], 0)
    console.feed([out(0, "again\n", fresh=True)], 0)
    assert screen.out == "[rank0]: died in mid\n[rank0]: again\n"


def test_equal_lines_collapse_and_a_missing_rank_is_not_waited_for(screen: Screen) -> None:
    console = screen.console(ranks=4)
    console.feed([out(rank, "same\n") for rank in (0, 1, 3)], 0)
    assert screen.out == ""
    assert console.deadline == pytest.approx(0.05)
    console.tick(0.06)
    assert screen.out == "[rank0-1,3]: same\n"


def test_one_rank_is_never_delayed(screen: Screen) -> None:
    console = screen.console(ranks=1)
    console.feed([out(0, "a\n")], 0)
    assert screen.out == "[rank0]: a\n"


TEXTS = st.sampled_from(("a", "b", "[rank0]: c", "", "tail ", "x" * 30_000))


@given(st.lists(st.tuples(st.integers(0, 2), TEXTS, st.booleans(), st.integers(0, 60)), max_size=40))
@settings(max_examples=80, deadline=None)
def test_every_line_of_every_rank_is_shown_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, bool, int]]
) -> None:
    screen = Screen(tmp_path_factory.mktemp("screen"))
    console = screen.console(ranks=3)
    written = dict.fromkeys(range(3), "")
    now = 0.0
    for rank, text, newline, pause in steps:
        data = text + "\n" * newline
        written[rank] += data
        now += pause / 1000
        console.feed([out(rank, data)], now)
    console.finish(patient)
    for fd in screen.fds:
        os.close(fd)
    shown: dict[int, list[str]] = {rank: [] for rank in range(3)}
    for line in screen.out.splitlines():
        label, text = line.split(": ", 1)
        for rank in ranks_of(label):
            shown[rank].append(text)
    for rank, text in written.items():
        lines = text.split("\n")
        lines = lines if lines[-1].strip() else lines[:-1]
        # The end of a line after 2 s of silence does not happen here: no pause is that long.
        assert shown[rank] == [line.removeprefix(f"[rank{rank}]: ") for line in lines]


def ranks_of(label: str) -> list[int]:
    ranks: list[int] = []
    for span in label.removeprefix("[rank").removesuffix("]").split(","):
        first, _, last = span.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


FLOODS = ("[rank1]: own", "\x1b[31mred\x1b[0m", "10%\r20%", "gr\u00fcn")


@pytest.mark.parametrize("line", ["plain", *(pytest.param(each, marks=slow_if_unchanged(__file__)) for each in FLOODS)])
def test_a_flood_looks_like_single_lines(tmp_path: Path, line: str) -> None:
    texts = []
    for name, count in (("slow", 100), ("flood", 20_000)):
        (tmp_path / name).mkdir()
        screen = Screen(tmp_path / name)
        console = screen.console(ranks=2)
        for _ in range(20_000 // count):
            console.feed([out(1, f"{line}\n" * count)], 0)
        console.finish(patient)
        texts.append(screen.out)
        for fd in screen.fds:
            os.close(fd)
    assert texts[0] == texts[1]
    assert texts[0].count("[rank1]: ") == texts[0].count("\n") == 20_000


def test_a_line_of_5_mb_is_shown_whole(screen: Screen) -> None:
    console = screen.console(ranks=2)
    for _ in range(80):
        console.feed([out(0, b"x" * 65536)], 0)
    console.feed([out(0, b"\n")], 0)
    console.finish(patient)
    assert screen.out == "[rank0]: " + "x" * 80 * 65536 + "\n"


def test_off_a_terminal_a_bar_is_a_line_at_its_end_and_every_10_s(screen: Screen) -> None:
    console = screen.console(ranks=2)
    for second in range(26):
        console.feed([out(rank, f"\r{second}/25 rank {rank}", "stderr") for rank in (1, 0)], second)
    assert screen.err.splitlines() == ["[rank0]: 10/25 rank 0", "[rank0]: 20/25 rank 0"]
    console.feed([out(0, "\r25/25 done\n", "stderr")], 26)
    console.tick(27)
    assert screen.err.splitlines()[2:] == ["[rank0]: 25/25 done"]


def test_filter_of_ranks_and_streams() -> None:
    assert shown_by("all")(3, 3, "stdout")
    assert not shown_by("none")(0, 0, "stderr")
    assert not shown_by("failed")(0, 0, "stderr")
    assert shown_by("rank0")(0, 2, "stdout")
    assert not shown_by("rank0")(2, 0, "stdout")


@pytest.mark.parametrize(
    ("redirects", "tee", "local_ranks", "expected"),
    [
        (0, 0, (), "o0 e0 o1 e1"),
        (3, 0, (), ""),
        (1, 0, (), "e0 e1"),
        (3, 2, (), "e0 e1"),
        (0, 3, (1,), "o1 e1"),
        (0, 0, (0,), "o0 e0"),
        ({0: 3}, {}, (), "o1 e1"),
        ({0: 3, 1: 2}, {0: 1}, (), "o0 o1"),
    ],
)
def test_filter_follows_torchruns_options(
    redirects: int | dict[int, int], tee: int | dict[int, int], local_ranks: tuple[int, ...], expected: str
) -> None:
    shown = shown_by("all", redirects, tee, local_ranks)
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    seen = [f"{stream[3]}{local}" for local in (0, 1) for stream in streams if shown(local + 8, local, stream)]
    assert " ".join(seen) == expected


def test_hidden_ranks_are_not_shown_and_not_waited_for(screen: Screen) -> None:
    console = Console(*screen.fds, shown=shown_by("rank0"))
    console.feed([out(1, "hidden\n"), out(0, "seen\n")], 0)
    assert screen.out == "[rank0]: seen\n"


def test_own_lines_come_after_what_was_written_before(screen: Screen) -> None:
    console = screen.console(ranks=2)
    console.feed([out(0, "before\n", "stderr")], 0)
    console.say("ddp-run: now", 0)
    assert screen.err == "[rank0]: before\nddp-run: now\n"


# ------------------------------------------------------------------------------------------ slow and broken readers


@contextmanager
def channel(kind: Literal["pipe", "tty", "socket"]) -> Iterator[tuple[int, int]]:
    """(reading end, writing end)."""
    if kind == "tty":
        reader, writer = pty.openpty()
        tty.setraw(writer)
    elif kind == "socket":
        one, other = socket.socketpair()
        reader, writer = one.detach(), other.detach()
    else:
        reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


def read_all(reader: int, size: int, within_s: float = 10) -> bytes:
    data = b""
    while len(data) < size and select.select([reader], [], [], within_s)[0]:
        data += os.read(reader, 65536)
    return data


@pytest.mark.parametrize("kind", ["pipe", "tty", "socket"])
def test_a_stuck_reader_blocks_nothing_and_bounds_the_memory(
    kind: Literal["pipe", "tty", "socket"], screen: Screen
) -> None:
    with channel(kind) as (reader, writer):
        assert os.get_blocking(writer)
        console = Console(writer, screen.fds[1], ranks=1)
        fed = 0
        while "stdout" in console.outlets.taking and fed < 1000:
            console.feed([out(0, b"%08d\n" % fed * 4000)], 0)
            fed += 1
        assert fed < 1000
        assert console.outlets.pending < 2 << 20
        assert console.outlets.writable_fds == [writer]
        assert os.get_blocking(writer)
        assert console.outlets.taking == ERR
        console.feed([out(0, "still here\n", "stderr")], 0)
        assert screen.err == "[rank0]: still here\n"
        expected = b"".join(b"[rank0]: %08d\n" % number * 4000 for number in range(fed))
        data = b""
        while len(data) < len(expected) and select.select([reader], [], [], 10)[0]:
            data += os.read(reader, 65536)
            console.tick(0)
        assert data == expected
        assert "stdout" in console.outlets.taking
        assert console.finish(patient) == 0


class Clock:
    """Goes on by a second each time somebody asks for the time that is left."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def left_s(self, until: float) -> LeftS:
        def left() -> float:
            self.now += 1
            return until - self.now

        return left


OUT: tuple[Stream, ...] = ("stdout",)
ERR: tuple[Stream, ...] = ("stderr",)
LINES = b"".join(b"line %05d\n" % number for number in range(20_000))


def rest_of(**streams: bytes) -> Read:
    """Gives what these streams have, in pieces."""
    left = dict(streams)

    def read(wanted: Collection[Stream]) -> list[Chunk]:
        for stream in [each for each in wanted if left.get(each)]:
            piece, left[stream] = left[stream][:65536], left[stream][65536:]
            return [out(0, piece, stream)]
        return []

    return read


@pytest.mark.parametrize("kind", ["pipe", "tty", "socket"])
@pytest.mark.parametrize("lines", [40, 50_000, 100_000])
def test_a_reader_that_never_reads_is_waited_for_as_long_as_that_is_wanted(
    kind: Literal["pipe", "tty", "socket"], lines: int, screen: Screen
) -> None:
    """Up to a megabyte, a pipe is made to hold all of it for its reader."""
    with channel(kind) as (reader, writer):
        console, clock = Console(screen.fds[0], writer, ranks=1), Clock()
        console.feed([out(0, b"".join(b"%07d\n" % number for number in range(lines)), "stderr")], 0)
        is_shown = console.show_rest(rest_of(), clock.left_s(103), ERR)
        assert is_shown is (lines == 40 or (kind == "pipe" and lines == 50_000))
        left_out = 0 if is_shown else console.drop(ERR)[0]
        console.say("the block", 0)
        given_up = console.finish(clock.left_s(105))
        assert (given_up == 0) is (kind == "pipe" or lines == 40)
        assert clock.now < 107
        shown = read_all(reader, 1 << 30, within_s=0.1)
        if not given_up:
            assert shown.endswith(b"\nthe block\n")
            assert shown.count(b"[rank0]: ") == lines - left_out
            assert {len(line) for line in shown.split(b"\n")} <= {0, 9, 16}, "no line is torn"


def test_what_is_dropped_is_whole_lines_of_ranks_only(screen: Screen) -> None:
    with channel("tty") as (reader, writer):
        console = Console(screen.fds[0], writer, ranks=1)
        console.feed(
            [out(0, b"x" * 70_000 + b"\n" + LINES[:1100], "stderr")], 0
        )  # more than it takes: a line has begun
        console.say("ddp-run: a warning", 0)
        console.feed([out(0, LINES, "stderr")], 0)
        lines, _size = console.drop(ERR)
        assert lines == 100 + 20_000
        assert console.outlets.pending < 70_000
        console.say("the block", 0)
        shown = b""
        while console.outlets.pending or select.select([reader], [], [], 0)[0]:
            shown += os.read(reader, 65536)
            console.tick(0)
        assert shown == b"[rank0]: " + b"x" * 70_000 + b"\nddp-run: a warning\nthe block\n"


def test_a_stdout_that_nobody_reads_does_not_hold_back_stderr(screen: Screen) -> None:
    with channel("pipe") as (reader, writer):
        console, clock = Console(writer, screen.fds[1], ranks=1), Clock()
        read = rest_of(stdout=LINES * 20, stderr=b"a\n" * 100_000 + b"no end")
        assert console.show_rest(read, clock.left_s(150), ERR)
        console.say("the block", 0)
        assert screen.err.endswith("[rank0]: no end\nthe block\n")
        at = clock.now
        assert at < 140, "it did not wait"
        assert not console.show_rest(read, clock.left_s(at + 5))
        lines, _size = console.drop(OUT)
        console.say("the last line", 0)
        console.finish(clock.left_s(at + 10))
        assert lines > 50_000
        assert screen.err.endswith("the block\nthe last line\n")
        shown = read_all(reader, 1 << 30, within_s=0.1)
        assert shown.endswith(b"\n")
        unread = sum(chunk.data.count(b"\n") for chunks in iter(lambda: read(OUT), []) for chunk in chunks)
        assert shown.count(b"\n") + lines + unread == 400_000


def test_a_stderr_that_nobody_reads_costs_stdout_nothing(screen: Screen) -> None:
    with channel("pipe") as (_, writer):
        console, clock = Console(screen.fds[0], writer, ranks=1), Clock()
        assert not console.show_rest(rest_of(stdout=LINES, stderr=LINES * 20), clock.left_s(110), ERR)
        assert screen.out.count("\n") == 20_000


def test_both_streams_into_one_pipe_stay_in_order() -> None:
    with channel("pipe") as (reader, writer):
        console = Console(os.dup(writer), writer, ranks=1)
        console.feed([out(0, LINES), out(0, "after\n", "stderr"), out(0, "last\n")], 0)
        assert console.outlets.writable_fds == [writer]
        shown = b""
        while console.outlets.pending or select.select([reader], [], [], 0)[0]:
            shown += os.read(reader, 65536)
            console.tick(0)
        assert shown.replace(b"[rank0]: ", b"") == LINES + b"after\nlast\n"


@pytest.mark.parametrize(
    ("stops", "asked_at", "left"),
    [
        ((), 100, (30, 60)),
        ((), 140, (-10, 20)),
        ((100,), 100, (0, 1)),
        ((101,), 140, (-39, -38)),
        ((100, 100), 100, (0, 0)),
        ((140,), 140, (0, 0)),
        ((110,), 105, (25, 55)),
    ],
    ids=str,
)
def test_how_long_readers_are_waited_for(stops: tuple[int, ...], asked_at: int, left: tuple[float, float]) -> None:
    """Ranks' lines for half of the time; a signal to stop leaves a second for ddp-run's own, another one nothing."""
    clock, to_come = Clock(), sorted(stops)

    def stopped() -> bool:
        return bool(to_come) and to_come[0] <= clock.now and to_come.pop(0) > 0

    patience = Patience(60, stopped, clock)
    while clock.now < asked_at:
        patience.for_ranks()
        clock.now += 1
    for _ in stops:
        patience.for_own()
    assert (patience.for_ranks(), patience.for_own()) == left
    patience.add(10)
    assert (patience.for_ranks(), patience.for_own()) == (left[0] + 10, left[1] + 10)


def test_the_end_goes_on_while_the_reader_moves(screen: Screen) -> None:
    with channel("pipe") as (reader, writer):
        console = Console(writer, screen.fds[1], ranks=1)
        child = os.fork()
        if not child:
            os.close(writer)
            total = 0
            for _ in range(100_000):
                time.sleep(0.005)
                data = os.read(reader, 65536)
                total += len(data)
                if total >= 3000 * 1009:
                    os._exit(0)
            os._exit(1)
        batches = iter([[out(0, b"x" * 999 + b"\n") for _ in range(300)] for _ in range(10)])
        assert console.show_rest(lambda _streams: next(batches, []), patient)
        assert console.finish(patient) == 0
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_closed_pipe_silences_one_stream_only(screen: Screen) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with closing(os.fdopen(writer, "wb")):
        console = Console(writer, screen.fds[1], ranks=1)
        console.feed([out(0, "nobody reads\n"), out(0, "but this\n", "stderr")], 0)
        assert console.outlets.pending == 0
        assert console.outlets.taking == ("stderr",)
    assert screen.err == "[rank0]: but this\n"


def test_a_full_disk_loses_output_only(screen: Screen) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    console = Console(full, screen.fds[1], ranks=1)
    console.feed([out(0, "no room\n"), out(0, "fine\n", "stderr")], 0)
    assert console.outlets.pending == 0
    assert screen.err == "[rank0]: fine\n"
    os.close(full)


def test_closed_descriptors_are_no_error(screen: Screen) -> None:
    fd = os.dup(screen.fds[0])
    os.close(fd)
    console = Console(fd, screen.fds[1], ranks=1)
    console.feed([out(0, "lost\n"), out(0, "shown\n", "stderr")], 0)
    assert screen.err == "[rank0]: shown\n"


# ------------------------------------------------------------------------------------------ terminals


class Terminal:
    """What a person sees: the rows that carriage return, newline and erase leave."""

    def __init__(self, reader: int) -> None:
        self.reader = reader
        self.rows = [""]
        self.raw = b""

    def look(self) -> list[str]:
        while select.select([self.reader], [], [], 0.2)[0]:
            self._show(os.read(self.reader, 65536))
        return self.rows

    def _show(self, data: bytes) -> None:
        self.raw += data
        for token in re.findall(r"\x1b\[K|\x1b\[[0-9;]*m|\r|\n|[^\x1b\r\n]+", data.decode()):
            if token == "\n":
                self.rows.append("")
            elif token in {"\r", "\x1b[K"}:
                self.rows[-1] = ""
            elif not token.startswith("\x1b"):
                self.rows[-1] += token


@pytest.fixture
def terminal() -> Iterator[tuple[Terminal, int]]:
    with channel("tty") as (reader, writer):
        yield Terminal(reader), writer


def test_bar_stays_below_other_output_and_becomes_a_line(terminal: tuple[Terminal, int]) -> None:
    screen, fd = terminal
    console = Console(fd, fd, ranks=1)
    console.feed([out(0, "\r 10%", "stderr")], 0)
    assert screen.look() == ["[rank0]: 10%"]
    console.feed([out(0, "epoch 1\n")], 1)
    assert screen.look() == ["[rank0]: epoch 1", "[rank0]: 10%"]
    console.feed([out(0, "\r 20%", "stderr")], 2)
    assert screen.look() == ["[rank0]: epoch 1", "[rank0]: 20%"]
    console.suspend()
    assert screen.look() == ["[rank0]: epoch 1", ""]
    console.feed([out(0, "\r100%\n", "stderr")], 3)
    console.say("done", 3)
    assert screen.look() == ["[rank0]: epoch 1", "[rank0]: 100%", "done", ""]


def test_a_status_stays_below_everything_until_the_attempt_ends(terminal: tuple[Terminal, int], screen: Screen) -> None:
    shown, fd = terminal
    console = Console(fd, fd, ranks=1)
    console.status("step 5", 0)
    console.feed([out(0, "epoch 1\n")], 1)
    assert shown.look() == ["[rank0]: epoch 1", "step 5"]
    console.feed([out(0, "\r 20%", "stderr")], 2)
    console.status("step 6", 3)
    assert shown.look() == ["[rank0]: epoch 1", "step 6   [rank0]: 20%"]
    console.end_attempt(4)
    console.say("done", 5)
    assert shown.look() == ["[rank0]: epoch 1", "[rank0]:  20%", "done", ""]
    files = screen.console(1)
    files.status("step 5", 0)
    files.feed([out(0, "epoch 1\n")], 1)
    files.finish(patient)
    assert (screen.out, screen.err, files.is_on_terminal) == ("[rank0]: epoch 1\n", "", False)


def test_bar_is_redrawn_at_a_rate_that_a_terminal_bears(terminal: tuple[Terminal, int]) -> None:
    screen, fd = terminal
    console = Console(fd, fd, ranks=2)
    for step in range(1000):
        console.feed([out(rank, f"\r{step}/1000", "stderr") for rank in (1, 0)], 5 + step / 1000)
    assert console.deadline == pytest.approx(6, abs=0.11)
    console.tick(7)
    assert screen.look() == ["[rank0]: 999/1000"]
    assert screen.raw.count(b"/1000") < 15


def test_bar_is_cut_to_the_width_so_that_it_can_be_erased(terminal: tuple[Terminal, int]) -> None:
    screen, fd = terminal
    termios.tcsetwinsize(fd, (24, 20))
    console = Console(fd, fd, ranks=1)
    console.feed([out(0, "\r" + "\u65e5" * 50, "stderr")], 0)
    assert screen.look() == ["[rank0]: " + "\u65e5" * 5]


def test_bar_on_a_terminal_without_a_size(terminal: tuple[Terminal, int]) -> None:
    screen, fd = terminal
    assert os.get_terminal_size(fd).columns == 0
    console = Console(fd, fd, ranks=1)
    console.feed([out(0, "\r50% \u2588\u2588", "stderr")], 0)
    assert screen.look() == ["[rank0]: 50% \u2588\u2588"]


def test_colours_pass_on_a_terminal_when_wanted(terminal: tuple[Terminal, int], screen: Screen) -> None:
    tty_screen, fd = terminal
    console = Console(fd, screen.fds[1], ranks=1, colour=True)
    red = "\x1b[31mred\x1b[2J\n"
    console.feed([out(0, red), out(0, red, "stderr")], 0)
    tty_screen.look()
    assert tty_screen.raw == b"[rank0]: \x1b[31mred\x1b[0m\n"
    assert screen.err == "[rank0]: red\n"


def test_a_terminal_that_hangs_up_is_given_up(screen: Screen) -> None:
    reader, writer = pty.openpty()
    console = Console(writer, screen.fds[1], ranks=1)
    os.close(reader)
    console.feed([out(0, "gone\n"), out(0, "here\n", "stderr")], 0)
    assert console.outlets.pending == 0
    assert screen.err == "[rank0]: here\n"
    os.close(writer)
