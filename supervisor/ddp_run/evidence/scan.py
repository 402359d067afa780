"""Reads the relevant parts of a log of any size: its first lines, its end, and the context of the words of rules.

Memory is bounded whatever the log contains. Words are found by hyperscan (the extra `scan`), else by GNU grep. If
neither is available, the reader is told what was not searched. The caller chooses the words.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from ddp_run.evidence.model import LogText
from ddp_run.evidence.traceback_text import HEADER
from ddp_run.evidence.unpacked import copy, is_whole_file
from ddp_run.evidence.word_search import (
    AFTER,
    BEFORE,
    CHUNK,
    ENGINES,
    FIRST_BYTES,
    LAST_BYTES,
    Engine,
    Places,
    Span,
    chunks,
    merged,
    search,
)
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import size_in_words

TAIL_BYTES = 4 << 20
"""Ranks die near the end of their output."""
COUNTED_BYTES = 256 << 20
"""Above this size, lines before a run's tail are not counted."""
LINE_CHARS = 8 << 10
"""Of a longer line, only both ends are kept, and what is around words."""
HEAD_LINES = 200
"""Launchers print facts about the job there: versions, world size, addresses."""
_HEAD_BYTES = 128 << 10
FIRST_LINES = 40_000
LAST_LINES = 80_000
_AROUND = 2 << 10
_STATES = 16
_BYTE_ORDER_MARK = "\ufeff"
_LINES_END_WITH_CR = re.compile(rf'{re.escape(HEADER)}:\r[^\r\n]{{0,200}}File "')
"""As old editors and some captures of terminals write them. A progress bar's line has no such text."""


@frozen
class Excerpt:
    """The text read from a log. `left_out` says in one line what was not searched; None if nothing can be missing.

    Lines far from any word are left out of `text` without a note: `LogText.numbers` shows where.
    """

    text: LogText
    left_out: str | None = None


def read_log(
    path: Path, source: str, words: Collection[str], engines: Collection[Engine] = ENGINES, *, logs: int = 1
) -> Excerpt:
    """Read the log at `path`, all of it up to `TAIL_BYTES`; unpack gzip.

    `logs`: how many logs share the limit of one. Raises OSError if it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as log:
        return read_stream(log, source, words, engines, logs=logs)


def read_stream(
    stream: BinaryIO, source: str, words: Collection[str], engines: Collection[Engine] = ENGINES, *, logs: int = 1
) -> Excerpt:
    """Read a pipe, by copying it to an unnamed temporary file first. Raises OSError."""
    room = _Room.of(logs)
    if is_whole_file(stream):
        return _read(stream.fileno(), source, words, engines, room)
    with tempfile.TemporaryFile(prefix="ddp-run-", buffering=0) as spool:
        full = copy(stream, spool.fileno())
        excerpt = _read(spool.fileno(), source, words, engines, room)
    return Excerpt(excerpt.text, full or excerpt.left_out)


def read_text(text: str, source: str, words: Collection[str]) -> Excerpt:
    """Read data that is already in memory."""
    kept = _Kept(tuple(dict.fromkeys([HEADER, *words])), _Room.of(1))
    for number, line in enumerate(text.split("\n"), 1):
        kept.take(line, number)
    return Excerpt(kept.text(source), kept.left_out())


def read_end(log: int, source: str, limit: int) -> LogText:
    """Read the last `limit` bytes of an open file as complete lines. Raises OSError.

    If a progress bar overwrote a line with carriage returns, its last state is kept.
    """
    status = os.fstat(log)
    size = status.st_size
    start, end = _whole_lines(log, (max(0, size - limit), size), size)
    kept = _Kept((), _Room.of(1))
    counted = start == 0 or min(size, status.st_blocks * 512) <= COUNTED_BYTES  # holes cost nothing
    before = _newlines_before(log, chunks(log, start + 1), start) if counted and start else 0
    kept.add(log, (start, end), before + 1)
    text = kept.text(source)
    return text if counted else replace(text, first_line=None, numbers=None)


@dataclass(frozen=True, slots=True)
class _Room:
    """How much of one log is kept: less if there are many."""

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


# --------------------------------------------------------------------------------------------------- what to read


def _read(log: int, source: str, words: Collection[str], engines: Collection[Engine], room: _Room) -> Excerpt:
    size = os.fstat(log).st_size
    texts = tuple(dict.fromkeys([HEADER, *words]))
    kept = _Kept(texts, room)
    if size <= room.tail:
        kept.add(log, (0, size), 1)
        return Excerpt(kept.text(source), kept.left_out())
    head, tail = _end_of_head(log), size - room.tail
    end = min(size, tail + BEFORE)  # the tail starts with its first complete line: a word may be in the line before
    places = Places(room.first_bytes, room.last_bytes)
    marks, unread = search(log, end, _needles(frozenset(words)), engines, places)
    spans = merged([(0, head), *places.spans(), (tail, size)])
    for span in spans:
        start, stop = _whole_lines(log, span, size)
        kept.add(log, (start, stop), 1 + _newlines_before(log, marks, start))
    if unread is not None:
        last = f"{size_in_words(room.tail)} of {size_in_words(size)}"
        unread = f"only the first {HEAD_LINES} lines and the last {last} were read: {unread}"
    return Excerpt(kept.text(source), unread or places.left_out() or kept.left_out())


@lru_cache(maxsize=2)
def _needles(words: frozenset[str]) -> tuple[bytes, ...]:
    """Return what to search for: the longest line of each word, since logs are read by line."""
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


def _whole_lines(log: int, span: Span, size: int) -> Span:
    """Return the span without partial lines at its ends; a line longer than the context of words is cut."""
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
    mark = position // CHUNK
    return marks[mark] + os.pread(log, position - mark * CHUNK, mark * CHUNK).count(b"\n")


# --------------------------------------------------------------------------------------------------------- lines


@dataclass(slots=True)
class _Kept:
    """The lines read so far with their numbers: the first and the last of them, bounded."""

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

    def add(self, log: int, span: Span, number: int) -> None:
        """Read the span, whose first line has this number."""
        position, end = span
        rest = b""
        while position < end:
            chunk = os.pread(log, min(CHUNK, end - position), position)
            if not chunk:  # the log was truncated while it was read
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
        """Add one line of any length; more, if carriage returns end the lines of a traceback in it."""
        if "\r" in line and _LINES_END_WITH_CR.search(line):
            for place, each in enumerate(line.split("\r"), number):
                self.take(each, place)
            return
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        for state in self._states(line):
            self.count += 1
            if len(self.first) < self.room.first_lines:
                self.first.append(state)
                self.first_numbers.append(number)
            else:
                self.last.append(state)
                self.last_numbers.append(number)

    def _states(self, line: str) -> list[str]:
        """Return the line's last state, and earlier ones that contain words: a progress bar may precede a traceback."""
        if "\0" in line:  # a hole: the log was truncated while its writer kept its offset; or PowerShell's UTF-16
            line = line.replace("\0", "")
        line = line.rstrip("\r")
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
        """Return a note if there were too many lines."""
        dropped = self.count - len(self.first) - len(self.last)
        if dropped <= 0:
            return None
        kept = f"the first {len(self.first)} and the last {len(self.last)}"
        return f"{kept} lines were read; {dropped} between them were not"


def _cut(line: str, words: Collection[str]) -> str:
    """Return a long line's two ends and the context of each word's first occurrence."""
    if len(line) <= LINE_CHARS:
        return line
    places = sorted(place for word in words if (place := line.find(word)) >= 0)[:_STATES]
    side = LINE_CHARS // (4 if places else 2)
    wanted = [(0, side), (len(line) - side, len(line))]
    wanted += [(max(0, place - _AROUND), min(len(line), place + 2 * _AROUND)) for place in places]
    return " … ".join(line[start:end] for start, end in merged(wanted))
