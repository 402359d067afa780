"""Large logs: every line with a word is read, with its true number, by each engine; memory and time stay bounded."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unchanged import slow_if_unchanged
from tests.waiting import limit

from ddp_run.evidence import scan, unpacked, word_search
from ddp_run.evidence.scan import LINE_CHARS, TAIL_BYTES, Excerpt, read_log, read_stream
from ddp_run.evidence.word_search import ENGINES, Engine

WORDS = ("NCCL WARN ", "CUDA out of memory", "пример без памяти")
FILLER = b"step 12345 loss 0.1234 lr 3.0e-04 tokens/s 123456 mem 12345 MiB\n"
SEARCHED = 6 << 20
"""Bytes before the tail: enough for places that stand apart."""
slow = slow_if_unchanged(__file__)
engines = pytest.mark.parametrize("engine", ENGINES)


def _pairs(excerpt: Excerpt) -> list[tuple[int | None, str]]:
    text = excerpt.text
    return [(text.number(index), line) for index, line in enumerate(text.lines)]


def _numbers(excerpt: Excerpt, words: str) -> list[int | None]:
    return [number for number, line in _pairs(excerpt) if words in line]


def _write(path: Path, *parts: bytes) -> bytes:
    data = b"".join(parts)
    path.write_bytes(data)
    return data


def _large(path: Path, planted: bytes, at: int = 3 << 20) -> int:
    """A log with `planted` in its middle, beyond head and tail; the number of the line that begins there."""
    before = FILLER * (at // len(FILLER))
    _write(path, before, planted, FILLER * ((SEARCHED + TAIL_BYTES) // len(FILLER)))
    return before.count(b"\n") + 1


# ------------------------------------------------------------------------------------------------ small logs


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", ()),
        (b"a\nb\n", ("a", "b")),
        (b"a\nb", ("a", "b")),
        (b"a\n\nb\n\n", ("a", "", "b", "")),
        (b"a\r\nb\r\n", ("a", "b")),
        (b"\xff\xfe x\n", ("\ufffd\ufffd x",)),
        (b"\0\0\0back\n", ("back",)),
        ("a\r\nb\r\n".encode("utf-16-le"), ("a", "b", "")),
        (b" 1%|\r 2%|\r 3%|\nend\n", (" 3%|", "end")),
    ],
)
def test_a_small_log_is_read_whole(tmp_path: Path, data: bytes, lines: tuple[str, ...]) -> None:
    _write(tmp_path / "log", data)
    excerpt = read_log(tmp_path / "log", "train.log", WORDS)
    assert (excerpt.text.lines, excerpt.text.source, excerpt.left_out) == (lines, "train.log", None)
    assert excerpt.text.numbers is None
    assert excerpt.text.number(0) == 1 if lines else True


def test_carriage_returns_alone_end_lines(tmp_path: Path) -> None:
    traceback = ["\ufeff[rank0]: Traceback (most recent call last):", '[rank0]:   File "a.py", line 1', "KeyError: 'x'"]
    _write(tmp_path / "log", "\r".join(traceback).encode())
    assert _pairs(read_log(tmp_path / "log", "log", ())) == [
        (1, traceback[0].removeprefix("\ufeff")),
        (2, traceback[1]),
        (3, traceback[2]),
    ]


def test_a_bar_hides_no_traceback(tmp_path: Path) -> None:
    _write(tmp_path / "log", b"ok\n 1%|\r 2%|Traceback (most recent call last):\r 3%|\r 4%|\n  File\n")
    excerpt = read_log(tmp_path / "log", "log", ())
    assert _pairs(excerpt) == [(1, "ok"), (2, " 2%|Traceback (most recent call last):"), (2, " 4%|"), (3, "  File")]


def test_a_line_twice_and_one_left_out_are_not_taken_for_a_whole_log(tmp_path: Path) -> None:
    """Two states of one line and one number skipped add up to as many lines as numbers."""
    kept = scan._Kept(("Traceback (most recent call last)",))
    (tmp_path / "log").write_bytes(b"Traceback (most recent call last)\r1%\n")
    (tmp_path / "next").write_bytes(b"x\n")
    for name, number in (("log", 1), ("next", 3)):
        with (tmp_path / name).open("rb") as log:
            kept.add(log.fileno(), (0, os.fstat(log.fileno()).st_size), number)
    assert kept.text("log").numbers == (1, 1, 3)


def test_what_cannot_be_read_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "none", "none", WORDS)
    with pytest.raises(IsADirectoryError):
        read_log(tmp_path, "folder", WORDS)


# ------------------------------------------------------------------------------------------------ large logs


@slow
@engines
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_planted_line_is_read_with_its_number(tmp_path: Path, engine: Engine, data: st.DataObject) -> None:
    tail_bytes = 128 << 10
    ending = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    body = bytearray((FILLER.rstrip(b"\n") + ending) * ((2 << 20) // len(FILLER)))
    places = st.integers(0, len(body) - 200)
    border = st.integers(1, (2 << 20) // word_search.CHUNK - 1).map(lambda n: n * word_search.CHUNK)
    block = st.integers(1, (2 << 20) // word_search.BLOCK - 1).map(lambda n: n * word_search.BLOCK)
    tail = st.just(len(body) - tail_bytes)
    near = st.tuples(st.one_of(border, block, tail), st.integers(-40, 4)).map(sum)
    for number, place in enumerate(data.draw(st.lists(st.one_of(places, near), min_size=1, max_size=12))):
        word = data.draw(st.sampled_from(WORDS))
        said = f"<{number} {word} {number}>".encode()
        body[place : place + len(said)] = said  # over whatever stands there, newlines and other plants too
    if data.draw(st.booleans()):
        body = body.rstrip(b"\r\n")
    (tmp_path / "log").write_bytes(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "TAIL_BYTES", tail_bytes)
        if data.draw(st.booleans()):  # grep is asked several times, and kinds of lines are forgotten
            patch.setattr(word_search, "_TOGETHER", 1)
            patch.setattr(word_search, "_KNOWN", data.draw(st.sampled_from([0, 400])))
        excerpt = read_log(tmp_path / "log", "log", WORDS, [engine])
    assert excerpt.left_out is None
    lines = body.decode(errors="replace").split("\n")
    expected = {number for number, line in enumerate(lines, 1) if any(word in line for word in WORDS)}
    read = _pairs(excerpt)
    assert {number for number, line in read if any(word in line for word in WORDS)} == expected
    assert all(number is not None and line in lines[number - 1] for number, line in read)


@engines
def test_what_stands_around_a_word_is_read(tmp_path: Path, engine: Engine) -> None:
    number = _large(tmp_path / "log", b"NCCL WARN here\n")
    excerpt = read_log(tmp_path / "log", "log", WORDS, [engine])
    read = dict(_pairs(excerpt))
    before, after = word_search.BEFORE // len(FILLER) - 2, word_search.AFTER // len(FILLER) - 2
    assert set(range(number - before, number + after)) <= set(read)
    assert number // 2 not in read, "far from any word"
    assert set(range(1, scan.HEAD_LINES + 1)) <= set(read)
    size = sum(len(line) + 1 for line in excerpt.text.lines)
    assert size < TAIL_BYTES + (1 << 20)


def test_without_words_ends_are_enough(tmp_path: Path) -> None:
    _large(tmp_path / "log", b"")
    excerpt = read_log(tmp_path / "log", "log", ())
    assert excerpt.left_out is None
    assert excerpt.text.number(scan.HEAD_LINES - 1) == scan.HEAD_LINES
    assert excerpt.text.number(scan.HEAD_LINES) != scan.HEAD_LINES + 1


def test_without_an_engine_the_reader_is_told(tmp_path: Path) -> None:
    _large(tmp_path / "log", b"NCCL WARN here\n")
    excerpt = read_log(tmp_path / "log", "log", WORDS, [])
    assert _numbers(excerpt, "NCCL WARN") == []
    assert excerpt.left_out == (
        "only the first 200 lines and the last 4.0 MiB of 13.0 MiB were read: "
        "pip install 'ddp-run[scan]' to search all of it"
    )
    total = (tmp_path / "log").read_bytes().count(b"\n")
    assert excerpt.text.number(len(excerpt.text.lines) - 1) == total


def test_a_grep_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "grep"
    other.write_text("#!/bin/sh\nexit 2\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    _large(tmp_path / "log", b"NCCL WARN here\n")
    left_out = read_log(tmp_path / "log", "log", WORDS, ["grep"]).left_out or ""
    assert "grep gave up; pip install" in left_out


@engines
def test_digits_of_a_word_count(tmp_path: Path, engine: Engine) -> None:
    number = _large(tmp_path / "log", b"code 17 came\ncode 42 came\n")
    excerpt = read_log(tmp_path / "log", "log", ["code 42"], [engine])
    assert _numbers(excerpt, "code 42") == [number + 1]


@engines
def test_a_word_of_several_lines(tmp_path: Path, engine: Engine) -> None:
    number = _large(tmp_path / "log", b"first\nthe second, longer line\n")
    excerpt = read_log(tmp_path / "log", "log", ["first\nthe second, longer"], [engine])
    assert _numbers(excerpt, "second") == [number + 1]


@engines
def test_words_are_literal(tmp_path: Path, engine: Engine) -> None:
    number = _large(tmp_path / "log", b"-e [CUDA]: a.b* \\d\n")
    for word in ("-e [CUDA]: a.b*", "\\d"):
        assert _numbers(read_log(tmp_path / "log", "log", [word], [engine]), word) == [number]


@engines
def test_bytes_that_are_no_text(tmp_path: Path, engine: Engine) -> None:
    number = _large(tmp_path / "log", b"\0" * 300_000 + b"\xff NCCL WARN \xe2\x96\n")
    excerpt = read_log(tmp_path / "log", "log", WORDS, [engine])
    shown = [(n, line) for n, line in _pairs(excerpt) if "NCCL WARN" in line]
    assert shown == [(number, "\ufffd NCCL WARN \ufffd")]


# ---------------------------------------------------------------------------------------------- pathological


@slow
@engines
def test_one_line_of_50_megabytes(tmp_path: Path, engine: Engine) -> None:
    noise = b"x" * (25 << 20)
    _write(tmp_path / "log", b"first\n", noise, b" CUDA out of memory ", noise, b"\nlast\n")
    excerpt = read_log(tmp_path / "log", "log", WORDS, [engine])
    assert _numbers(excerpt, "CUDA out of memory") == [2]
    assert max(map(len, excerpt.text.lines)) < 10 * LINE_CHARS
    assert (excerpt.text.lines[-1], excerpt.text.number(len(excerpt.text.lines) - 1)) == ("last", 3)


@engines
def test_a_bar_of_20_megabytes_without_a_newline(tmp_path: Path, engine: Engine) -> None:
    bar = b"\r 12%|##        | 12/100 [00:01<00:09,  9.9it/s]" * 200_000
    _write(tmp_path / "log", b"first\n", bar, b"\rCUDA out of memory\r", bar, b"\nlast\n")
    excerpt = read_log(tmp_path / "log", "log", WORDS, [engine])
    assert _numbers(excerpt, "CUDA out of memory") == [2]
    assert excerpt.text.lines[-1] == "last"


PATHOLOGICAL = {
    "a word in every line": b"NCCL WARN CUDA out of memory\n",
    "nothing but words": b"NCCL WARN ",
    "nothing but newlines": b"\n",
    "short lines": b".\n",
    "wide characters": "🤗é NCCL WARN x\n".encode(),
}
MEASURE = """
import json, re, sys, time
from pathlib import Path
from ddp_run.evidence.scan import read_log
before = time.process_time()
excerpt = read_log(Path(sys.argv[1]), "log", ("NCCL WARN ", "CUDA out of memory"), [sys.argv[2]])
spent = time.process_time() - before
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])  # maxrss survives exec
text = excerpt.text
print(json.dumps([spent, peak, len(text.lines), text.number(len(text.lines) - 1), excerpt.left_out]))
"""


@engines
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "a word in every line" else [slow]) for kind in PATHOLOGICAL]
)
def test_memory_and_time_are_bounded(tmp_path: Path, engine: Engine, kind: str) -> None:
    line = PATHOLOGICAL[kind]
    data = line * ((20 << 20) // len(line))
    (tmp_path / "log").write_bytes(data)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "log"), engine]
    spent, peak_kib, lines, last, left_out = json.loads(subprocess.check_output(command, text=True))
    assert peak_kib <= 100 << 10
    assert spent < 5
    assert 0 < lines <= scan.FIRST_LINES + scan.LAST_LINES
    assert last == max(1, data.count(b"\n"))
    if b"\n" in line or engine == "hyperscan":
        assert left_out is not None, "what was left out must be said"


@engines
def test_the_first_and_the_latest_places_are_kept(tmp_path: Path, engine: Engine) -> None:
    count = (20 << 20) // len(FILLER)
    with (tmp_path / "log").open("wb") as log:
        for number in range(1, count + 1):
            log.write(b"NCCL WARN line %d\n" % number if number % 500 == 0 else FILLER)
    excerpt = read_log(tmp_path / "log", "log", WORDS, [engine])
    found = [number for number in _numbers(excerpt, "NCCL WARN") if number is not None]
    assert found[:10] == [500 * n for n in range(1, 11)]
    kept = min((word_search.LAST_BYTES + TAIL_BYTES // 2) // len(FILLER), scan.LAST_LINES)
    latest = range((count - kept) // 500 + 1, count // 500 + 1)
    assert set(found) >= {500 * n for n in latest}
    assert "between them were not" in (excerpt.left_out or "")


@engines
def test_a_line_that_begins_before_the_end_that_is_read(tmp_path: Path, engine: Engine) -> None:
    """The tail begins with its first whole line; here a chunk ends where the tail begins, within a line."""
    line = b"CUDA out of memory".rjust(100) + b"\n"
    tail_start = 24 * word_search.CHUNK
    before = (FILLER * (tail_start // len(FILLER)))[: tail_start - 50].rpartition(b"\n")[0] + b"\n"
    before += b"x" * (tail_start - 50 - len(before) - 1) + b"\n"
    after = (FILLER * (TAIL_BYTES // len(FILLER)))[: TAIL_BYTES - len(line) + 50]
    data = _write(tmp_path / "log", before, line, after)
    assert len(data) - TAIL_BYTES == tail_start
    excerpt = read_log(tmp_path / "log", "log", WORDS, [engine])
    assert _numbers(excerpt, "CUDA out of memory") == [before.count(b"\n") + 1]


# --------------------------------------------------------------------------------------------------- streams


class _Pipe:
    """A pipe with a thread that writes into it."""

    def __init__(self, data: bytes) -> None:
        read, self._write = os.pipe()
        self.stream: BinaryIO = os.fdopen(read, "rb")
        self._data = data
        self._thread = threading.Thread(target=self._feed)

    def _feed(self) -> None:
        with os.fdopen(self._write, "wb") as end:
            end.write(self._data)

    def __enter__(self) -> BinaryIO:
        self._thread.start()
        return self.stream

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self._thread.join()


@engines
def test_a_pipe_reads_as_a_file_does(tmp_path: Path, engine: Engine) -> None:
    _large(tmp_path / "log", b"NCCL WARN here\n")
    expected = read_log(tmp_path / "log", "-", WORDS, [engine])
    with _Pipe((tmp_path / "log").read_bytes()) as stream:
        assert read_stream(stream, "-", WORDS, [engine]) == expected
    with (tmp_path / "log").open("rb") as stream:
        assert read_stream(stream, "-", WORDS, [engine]) == expected
    assert read_stream(io.BytesIO((tmp_path / "log").read_bytes()), "-", WORDS, [engine]) == expected


def test_a_stream_is_read_from_where_it_stands(tmp_path: Path) -> None:
    _write(tmp_path / "log", b"read already\nnew\n")
    with (tmp_path / "log").open("rb") as stream:
        stream.readline()
        assert _pairs(read_stream(stream, "-", WORDS)) == [(1, "new")]


def test_a_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=lambda: (tmp_path / "fifo").write_bytes(b"a\nb\n"))
    writer.start()
    assert read_log(tmp_path / "fifo", "fifo", WORDS).text.lines == ("a", "b")
    writer.join()


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    taken = []

    def full(descriptor: int, data: bytes) -> int:
        taken.append(len(data))
        if sum(taken) > 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    excerpt = read_stream(io.BytesIO(FILLER * 100_000), "-", WORDS)
    assert (excerpt.left_out or "").startswith("only the first 1.0 MiB were read: ")
    assert "No space left on device" in (excerpt.left_out or "")
    assert excerpt.text.lines[0] == FILLER.decode().strip()


def test_a_log_with_a_large_hole(tmp_path: Path) -> None:
    """256 MiB of NUL bytes, as a log that was emptied under its writer has, and a word in their middle."""
    with (tmp_path / "log").open("wb") as log:
        log.write(b"first\n")
        log.seek(128 << 20)
        log.write(b"\nNCCL WARN here\n")
        log.seek((256 << 20) - 5)
        log.write(b"last\n")
    start = time.process_time()
    excerpt = read_log(tmp_path / "log", "log", WORDS, ["hyperscan"])
    assert time.process_time() - start < limit(10)
    assert _numbers(excerpt, "NCCL WARN") == [3]
    assert excerpt.text.lines[0] == "first"


# ------------------------------------------------------------------------------------- what has no end, or is packed


def test_an_endless_device_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "SPOOL_BYTES", 4 << 20)
    excerpt = read_log(Path("/dev/zero"), "log", WORDS)
    assert excerpt.left_out is not None
    assert excerpt.left_out.startswith("only the first 4.0 MiB were read: a pipe or packed log is copied to ")


def test_an_endless_pipe_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "SPOOL_BYTES", 1 << 20)
    with subprocess.Popen(["yes", "NCCL WARN x"], stdout=subprocess.PIPE) as process:
        assert isinstance(process.stdout, io.BufferedReader)
        excerpt = read_stream(process.stdout, "log", WORDS)
        process.kill()
    assert (excerpt.left_out or "").startswith("only the first 1.0 MiB were read")
    assert excerpt.text.lines[0] == "NCCL WARN x"


def test_a_packed_log(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"a\nNCCL WARN b\n") + gzip.compress(b"c\n"))
    excerpt = read_log(tmp_path / "log.gz", "log", WORDS)
    assert (excerpt.text.lines, excerpt.left_out) == (("a", "NCCL WARN b", "c"), None)
    piped = read_stream(io.BytesIO((tmp_path / "log.gz").read_bytes()), "log", WORDS)
    assert piped.text.lines == excerpt.text.lines


def test_a_packed_log_that_is_cut(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"line %d\n" % number for number in range(100_000)))
    (tmp_path / "log.gz").write_bytes(whole[: len(whole) // 2])
    excerpt = read_log(tmp_path / "log.gz", "log", WORDS)
    assert "could be unpacked" in (excerpt.left_out or "")
    (tmp_path / "log.gz").write_bytes(whole[:200] + b"\xff" * 200 + whole[400:])
    assert "could be unpacked" in (read_log(tmp_path / "log.gz", "log", WORDS).left_out or "")


def test_a_packed_log_is_unpacked_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "SPOOL_BYTES", 4 << 20)
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"\0" * (32 << 20)))
    assert "only the first 4.0 MiB were read" in (read_log(tmp_path / "log.gz", "log", WORDS).left_out or "")


def test_many_logs_share_the_room_of_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(FILLER * 20_000)
    alone, one_of_many = (read_log(tmp_path / "log", "log", WORDS, logs=logs) for logs in (1, 1000))
    assert len(alone.text.lines) == 20_000 + 1 - (alone.text.lines[-1] != "")
    assert len(one_of_many.text.lines) < 2_000
    assert one_of_many.text.number(len(one_of_many.text.lines) - 1) == 20_000


def test_a_long_line_in_memory_is_cut() -> None:
    excerpt = scan.read_text("x" * (1 << 20) + "\nCUDA out of memory", "log", WORDS)
    assert len(excerpt.text.lines[0]) <= LINE_CHARS + 10
    assert _numbers(excerpt, "CUDA out of memory") == [2]
