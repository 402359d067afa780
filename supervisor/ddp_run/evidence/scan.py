"""Reads what matters of a log of any size: its first lines, its end, and all around the words that rules look for.

Memory is bounded whatever the log holds. The words are found by hyperscan (the extra `scan`), else by GNU grep; where
neither is there, the reader is told what was not looked at. Which words matter is the caller's to say.
"""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import stat
import subprocess
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ddp_run.evidence.log_tail import LINE_CHARS, TAIL_BYTES
from ddp_run.evidence.model import LogText
from ddp_run.values.frozen import frozen

Engine = Literal["hyperscan", "grep"]
ENGINES: tuple[Engine, ...] = ("hyperscan", "grep")
"""In the order tried. For 1 GB and 545 words, in CPU seconds: hyperscan 1.8, grep 11, neither 1.2 (to count lines)."""

HEAD_LINES = 200
"""What launchers say of the job: versions, world size, addresses."""
_HEAD_BYTES = 128 << 10
BEFORE = 16 << 10
AFTER = 64 << 10
"""Bytes read around a place where a word stands: tracebacks stand before it, launchers' summaries after it."""
FIRST_BYTES = 2 << 20
LAST_BYTES = 6 << 20
"""Of all that stands around words: the first shows the first failure of several, the latest what ended the job."""
FIRST_LINES = 40_000
LAST_LINES = 80_000
SPOOL_BYTES = 4 << 30
"""Of a pipe, a device or what is packed at most so much is copied, and never more than half of the room that is there.
"""
_AROUND = 2 << 10
_STATES = 16
_CHUNK = 256 << 10
_BLOCK = 64 << 10
_GREP_HITS = 20_000
_GREP_SKIP = 4 << 20
_GREP_BYTES = 512 << 20
_ALWAYS = "Traceback (most recent call last)"
"""Kept of a line that a progress bar wrote over, whatever the words are."""

_Span = tuple[int, int]


@frozen
class Excerpt:
    """What was read of a log; `left_out` says in one line what was not looked at, null where nothing can be missing.

    Lines far from any word are left out of `text` without a note: `LogText.numbers` shows where.
    """

    text: LogText
    left_out: str | None = None


def read_log(
    path: Path, source: str, words: Collection[str], engines: Collection[Engine] = ENGINES, *, logs: int = 1
) -> Excerpt:
    """The log at `path`, whole where it has at most `TAIL_BYTES`; unpacked where it is gzip's.

    `logs`: how many share the room that there is for one. Raises OSError where it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as log:
        return read_stream(log, source, words, engines, logs=logs)


def read_stream(
    stream: BinaryIO, source: str, words: Collection[str], engines: Collection[Engine] = ENGINES, *, logs: int = 1
) -> Excerpt:
    """The same of a pipe, which is first copied into a temporary file without a name. Raises OSError."""
    room = _Room.of(logs)
    if _is_whole_file(stream):
        return _read(stream.fileno(), source, words, engines, room)
    with tempfile.TemporaryFile(prefix="ddp-run-", buffering=0) as spool:
        full = _copy(stream, spool.fileno())
        excerpt = _read(spool.fileno(), source, words, engines, room)
    return Excerpt(excerpt.text, full or excerpt.left_out)


def read_text(text: str, source: str, words: Collection[str]) -> Excerpt:
    """The same of what is in memory already."""
    kept = _Kept(tuple(dict.fromkeys([_ALWAYS, *words])), _Room.of(1))
    for number, line in enumerate(text.split("\n"), 1):
        kept.take(line, number)
    return Excerpt(kept.text(source), kept.left_out())


@dataclass(frozen=True, slots=True)
class _Room:
    """How much of one log is kept: less where there are many."""

    tail: int
    first_bytes: int
    last_bytes: int
    first_lines: int
    last_lines: int

    @classmethod
    def of(cls, logs: int) -> _Room:
        return cls(
            max(TAIL_BYTES // logs, AFTER),
            max(FIRST_BYTES // logs, AFTER),
            max(LAST_BYTES // logs, AFTER),
            max(FIRST_LINES // logs, HEAD_LINES),
            max(LAST_LINES // logs, 3 * HEAD_LINES),
        )


def _is_whole_file(stream: BinaryIO) -> bool:
    try:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode) or stream.tell() != 0:
            return False
        return os.pread(stream.fileno(), len(_GZIP), 0) != _GZIP
    except OSError:  # io.UnsupportedOperation too: no descriptor
        return False


_GZIP = b"\x1f\x8b\x08"


class _Again:
    """A stream whose first bytes were read already."""

    def __init__(self, first: bytes, stream: BinaryIO) -> None:
        self._first, self._stream = first, stream

    def read(self, size: int) -> bytes:
        """At most so many bytes."""
        first, self._first = self._first[:size], self._first[size:]
        return first or self._stream.read(size)


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    """What it holds, piece by piece. Raises OSError, EOFError and zlib.error where packed bytes are damaged."""
    first = stream.read(_CHUNK)
    again: Any = _Again(first, stream)
    source = gzip.GzipFile(fileobj=again) if first.startswith(_GZIP) else again
    while chunk := source.read(_CHUNK):
        yield chunk


def _copy(stream: BinaryIO, spool: int) -> str | None:
    """Copies what it holds, unpacked, as far as there is room; says what it did not."""
    copied = 0
    free = os.fstatvfs(spool)
    room = min(SPOOL_BYTES, free.f_bavail * free.f_frsize // 2)
    pieces = _unpacked(stream)
    while True:
        try:
            chunk = next(pieces, b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            return f"only the first {_size(copied)} could be unpacked: {type(error).__name__}"
        if not chunk:
            return None
        if copied + len(chunk) > room:
            return (
                f"only the first {_size(copied)} were read: a pipe or packed log is copied to {tempfile.gettempdir()}"
            )
        view = memoryview(chunk)
        while view:
            try:
                written = os.write(spool, view)
            except OSError as error:
                why = f"{tempfile.gettempdir()}: {error.strerror} (TMPDIR names another folder)"
                return f"only the first {_size(copied)} were read: {why}"
            copied += written
            view = view[written:]


# --------------------------------------------------------------------------------------------------- what to read


def _read(log: int, source: str, words: Collection[str], engines: Collection[Engine], room: _Room) -> Excerpt:
    size = os.fstat(log).st_size
    texts = tuple(dict.fromkeys([_ALWAYS, *words]))
    kept = _Kept(texts, room)
    if size <= room.tail:
        kept.add(log, (0, size), 1)
        return Excerpt(kept.text(source), kept.left_out())
    head, tail = _end_of_head(log), size - room.tail
    end = min(size, tail + BEFORE)  # the tail begins with its first whole line: a word may stand in the one before
    places = _Places(room.first_bytes, room.last_bytes)
    marks, unread = _search(log, end, _needles(frozenset(words)), engines, places)
    spans = _merged([(0, head), *places.spans(), (tail, size)])
    for span in spans:
        start, stop = _whole_lines(log, span, size)
        kept.add(log, (start, stop), 1 + _newlines_before(log, marks, start))
    if unread is not None:
        unread = (
            f"only the first {HEAD_LINES} lines and the last {_size(room.tail)} of {_size(size)} were read: {unread}"
        )
    return Excerpt(kept.text(source), unread or places.left_out() or kept.left_out())


@lru_cache(maxsize=2)
def _needles(words: frozenset[str]) -> tuple[bytes, ...]:
    """What to look for: the longest line of each word, since logs are read by line."""
    lines = {max(word.split("\n"), key=len).encode() for word in words}
    return tuple(sorted(line for line in lines if line and b"\0" not in line))


def _end_of_head(log: int) -> int:
    data = os.pread(log, _HEAD_BYTES, 0)
    end = 0
    for _ in range(HEAD_LINES):
        end = data.find(b"\n", end) + 1
        if not end:
            return len(data)
    return end


def _whole_lines(log: int, span: _Span, size: int) -> _Span:
    """The span without the parts of lines at its ends; a line longer than what stands around words is cut."""
    start, end = span
    if start > 0:
        newline = os.pread(log, BEFORE, start - 1).find(b"\n")
        start += max(newline, 0)
    if end < size:
        last = max(start, end - AFTER)
        newline = os.pread(log, end - last, last).rfind(b"\n")
        end = last + newline + 1 if newline >= 0 else end
    return start, end


def _newlines_before(log: int, marks: list[int], position: int) -> int:
    mark = position // _CHUNK
    return marks[mark] + os.pread(log, position - mark * _CHUNK, mark * _CHUNK).count(b"\n")


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    merged: list[_Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


@dataclass(slots=True)
class _Places:
    """Where words stand, with what stands around them: the first and the latest, bounded in bytes."""

    room: int = FIRST_BYTES
    last_bytes: int = LAST_BYTES
    first: list[_Span] = field(default_factory=list)
    last: deque[_Span] = field(default_factory=deque)
    first_bytes: int = 0
    held: int = 0
    end: int = 0
    dropped: int = 0

    def add(self, start: int, end: int) -> None:
        """A word stands between these; starts must not fall."""
        start, end = max(0, start - BEFORE, self.end), end + AFTER
        if end <= start:
            return
        self.end = end
        if self.room:
            cut = min(end, start + self.room)
            self.room -= cut - start
            self.first_bytes += cut - start
            self.first.append((start, cut))
            start = cut
        if start < end:
            self._add_last(start, end)

    def _add_last(self, start: int, end: int) -> None:
        if self.last and self.last[-1][1] == start:
            self.last[-1] = self.last[-1][0], end
        else:
            self.last.append((start, end))
        self.held += end - start
        while self.held > self.last_bytes:
            oldest = self.last.popleft()
            over = min(self.held - self.last_bytes, oldest[1] - oldest[0])
            self.held -= over
            self.dropped += over
            if oldest[0] + over < oldest[1]:
                self.last.appendleft((oldest[0] + over, oldest[1]))

    def spans(self) -> Iterator[_Span]:
        yield from self.first
        yield from self.last

    def left_out(self) -> str | None:
        """A note where not all places were kept."""
        if not self.dropped:
            return None
        kept = f"the first {_size(self.first_bytes)} and the last {_size(self.last_bytes)}"
        return f"{kept} around words of known causes were read; {_size(self.dropped)} between them were not"


# --------------------------------------------------------------------------------------------- where words stand


def _search(
    log: int, end: int, needles: tuple[bytes, ...], engines: Collection[Engine], places: _Places
) -> tuple[list[int], str | None]:
    """The newlines before each chunk up to `end`, and why places of words may be missing."""
    longest = max(map(len, needles), default=0)
    if not needles:
        return _chunks(log, end, 0, None, places), None
    contains = _hyperscan(needles) if "hyperscan" in engines else None
    if contains is not None:
        return _chunks(log, end, longest - 1, contains, places), None
    unread: str | None = "pip install 'ddp-run[scan]' to search all of it"
    if "grep" in engines and (grep := _gnu_grep()):
        unread = None if _grep(grep, log, end, needles, places) else f"grep gave up; {unread}"
    return _chunks(log, end, 0, None, places), unread


def _chunks(
    log: int, end: int, overlap: int, contains: Callable[[memoryview], bool] | None, places: _Places
) -> list[int]:
    """Reads all up to `end` once: counts newlines and asks, block by block, whether a word stands there."""
    buffer = bytearray(overlap + _CHUNK)
    marks, lines = [], 0
    with memoryview(buffer) as view:
        for start in range(0, end, _CHUNK):
            count = os.preadv(log, [view[overlap:]], start)
            marks.append(lines)
            lines += buffer.count(b"\n", overlap, overlap + count)
            if contains is not None:
                for block in range(0, count, _BLOCK):
                    stop = min(block + _BLOCK, count)
                    if contains(view[block : stop + overlap]):
                        places.add(start + block - overlap, start + stop)
                view[:overlap] = view[count : count + overlap]
    return marks


@lru_cache(maxsize=2)
def _hyperscan(needles: tuple[bytes, ...]) -> Callable[[memoryview], bool] | None:
    """Says of a block of bytes whether any of the words is in it; null where hyperscan is not there."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        single = [hyperscan.HS_FLAG_SINGLEMATCH] * len(needles)
        database.compile(expressions=needles, elements=len(needles), flags=single, literal=True)
        scratch = hyperscan.Scratch(database)
    except hyperscan.error:  # a processor without SSE 4.2, say
        return None
    scan: Any = database.scan  # its stub knows only bytes and str

    def found(*_: object) -> bool:
        return True  # the first is enough: the whole block is kept

    def contains(block: memoryview) -> bool:
        try:
            scan(block, found, scratch=scratch)
        except hyperscan.ScanTerminated:
            return True
        return False

    return contains


def _gnu_grep() -> str | None:
    """Its path; others know no byte offsets."""
    path = shutil.which("grep")
    return path if path is not None and _is_gnus(path) else None


@lru_cache(maxsize=1)
def _is_gnus(grep: str) -> bool:
    try:
        said = subprocess.run([grep, "--version"], capture_output=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"GNU grep" in said


def _grep(path: str, log: int, end: int, needles: tuple[bytes, ...], places: _Places) -> bool:
    """Finds the places with grep; false where it failed before `end`, as it does on a line that fills its memory.

    Where words stand in line after line it is stopped, the next stretch counts as full of words, and it starts again.
    """
    command = [path.encode(), b"-aFbo", *(part for needle in needles for part in (b"-e", needle))]
    environment = {**os.environ, "LC_ALL": "C"}
    longest = max(map(len, needles))
    position = 0
    while position < end:
        os.lseek(log, position, os.SEEK_SET)
        with subprocess.Popen(
            command, stdin=log, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        ) as process:
            try:
                resource.prlimit(process.pid, resource.RLIMIT_AS, (_GREP_BYTES, _GREP_BYTES))
                last = _hits(process, position, end, longest, places)
            except BaseException:
                process.kill()
                raise
            if last is not None:
                process.kill()
        if last is None:
            return process.returncode in (0, 1)
        dense = last - position < 16 * _GREP_SKIP
        position = last + (_GREP_SKIP if dense else 1)
        places.add(last, min(position, end))
    return True


def _hits(process: subprocess.Popen[bytes], position: int, end: int, longest: int, places: _Places) -> int | None:
    """Notes where grep finds words; null where it came to its end, else the last place before it was left."""
    assert process.stdout is not None
    for count, line in enumerate(process.stdout, 1):
        place = position + int(line[: line.index(b":")])
        places.add(place, min(place + longest, end))
        if place >= end or count >= _GREP_HITS:
            return place
    return None


# --------------------------------------------------------------------------------------------------------- lines


@dataclass(slots=True)
class _Kept:
    """The lines read so far, each with its number: the first and the last of them, bounded."""

    words: tuple[str, ...]
    room: _Room = field(default_factory=lambda: _Room.of(1))
    first: list[str] = field(default_factory=list)
    first_numbers: list[int] = field(default_factory=list)
    last: deque[str] = field(default_factory=deque)
    last_numbers: deque[int] = field(default_factory=deque)
    count: int = 0

    def __post_init__(self) -> None:
        self.last = deque(maxlen=self.room.last_lines)
        self.last_numbers = deque(maxlen=self.room.last_lines)

    def add(self, log: int, span: _Span, number: int) -> None:
        """Reads the span, whose first line has this number."""
        position, end = span
        rest = b""
        while position < end:
            chunk = os.pread(log, min(_CHUNK, end - position), position)
            if not chunk:  # the log was cut while it was read
                break
            position += len(chunk)
            whole, newline, after = chunk.rpartition(b"\n")
            if not newline:
                rest += chunk
                continue
            for line in (rest + whole).decode("utf-8", errors="replace").split("\n"):
                self.take(line, number)
                number += 1
            rest = after
        if rest:
            self.take(rest.decode("utf-8", errors="replace"), number)

    def take(self, line: str, number: int) -> None:
        """One line, whatever its length."""
        for state in self._states(line):
            self.count += 1
            if len(self.first) < self.room.first_lines:
                self.first.append(state)
                self.first_numbers.append(number)
            else:
                self.last.append(state)
                self.last_numbers.append(number)

    def _states(self, line: str) -> list[str]:
        """The line as it was last seen, and what it said before that has words: a bar may stand before a traceback."""
        line = line.rstrip("\r")
        if "\0" in line:  # a hole: the log was emptied while its writer held its place
            line = line.replace("\0", "")
        if "\r" not in line and len(line) <= LINE_CHARS:
            return [line]
        words = [word for word in self.words if word in line]
        *over, last = line.split("\r") if "\r" in line else [line]
        kept = deque((state for state in over if any(word in state for word in words)), maxlen=_STATES)
        return [_cut(state, words) for state in (*kept, last)]

    def text(self, source: str) -> LogText:
        numbers = (*self.first_numbers, *self.last_numbers)
        lines = (*self.first, *self.last)
        if not numbers:
            return LogText(source)
        if numbers == tuple(range(numbers[0], numbers[0] + len(numbers))):
            return LogText(source, lines, numbers[0])
        return LogText(source, lines, numbers[0], numbers)

    def left_out(self) -> str | None:
        """A note where there were too many lines."""
        dropped = self.count - len(self.first) - len(self.last)
        if dropped <= 0:
            return None
        kept = f"the first {len(self.first)} and the last {len(self.last)}"
        return f"{kept} lines were read; {dropped} between them were not"


def _cut(line: str, words: Collection[str]) -> str:
    """A long line's two ends and what stands around each word's first place."""
    if len(line) <= LINE_CHARS:
        return line
    places = sorted(place for word in words if (place := line.find(word)) >= 0)[:_STATES]
    quarter = LINE_CHARS // 4
    wanted = [(0, quarter), (len(line) - quarter, len(line))]
    wanted += [(max(0, place - _AROUND), min(len(line), place + 2 * _AROUND)) for place in places]
    return " … ".join(line[start:end] for start, end in _merged(wanted))


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
