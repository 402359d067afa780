"""Finds words in a log of any size: with hyperscan (the extra `scan`), else with grep in one line of each kind.

A log of a gigabyte has few kinds of lines if digits don't count: grep reads a hundred lines of it, not ten million.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from ddp_run.record.run_folder import next_data
from ddp_run.values.words import size_in_words

Engine = Literal["hyperscan", "grep"]
ENGINES: tuple[Engine, ...] = ("hyperscan", "grep")
"""In the order tried. CPU seconds for 1 GB and 1,317 words: hyperscan 1.8, grep 3 (13 if no line is like another)."""


BEFORE = 16 << 10
AFTER = 64 << 10
"""The bytes read around a word: tracebacks precede it, launchers' summaries follow it."""
Span = tuple[int, int]
"""A range of bytes in a file: from, to."""
CHUNK = 256 << 10
FIRST_BYTES = 2 << 20
LAST_BYTES = 6 << 20
"""The limits for all context: the first shows the first of several failures, the last shows what ended the job."""
BLOCK = 64 << 10
_TOGETHER = 32
"""Chunks whose lines grep gets together."""
_KNOWN = 64 << 20
"""Bytes of lines whose kinds are remembered."""
_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")


def search(
    log: int, end: int, needles: tuple[bytes, ...], engines: Collection[Engine], places: Places
) -> tuple[list[int], str | None]:
    """Return the newlines before each chunk up to `end`, and why words may have been missed."""
    longest = max(map(len, needles), default=0)
    if not needles:
        return chunks(log, end), None
    contains = _hyperscan(needles) if "hyperscan" in engines else None
    if contains is not None:
        return chunks(log, end, places, contains, longest - 1), None
    grep = shutil.which("grep") if "grep" in engines else None
    kinds = _Kinds(grep, needles, places) if grep is not None else None
    if kinds is not None:
        marks = kinds.read(log, end)
        if not kinds.failed:
            return marks, None
    why = f"{'grep gave up; ' if kinds is not None else ''}pip install 'ddp-run[scan]' to search all of it"
    return chunks(log, end), why


def chunks(
    log: int,
    end: int,
    places: Places | None = None,
    contains: Callable[[memoryview], bool] | None = None,
    overlap: int = 0,
) -> list[int]:
    """Read everything up to `end` once. Return the newlines before each chunk; record the blocks that contain words.

    Without words, holes are skipped.
    """
    buffer = bytearray(overlap + CHUNK)
    marks, lines, data_at = [], 0, 0
    with memoryview(buffer) as view:
        for start in range(0, end, CHUNK):
            if contains is None and data_at <= start:
                data_at = next_data(log, start)
            if data_at >= start + CHUNK:
                marks.append(lines)
                continue
            count = os.preadv(log, [view[overlap:]], start)
            marks.append(lines)
            lines += buffer.count(b"\n", overlap, overlap + count)
            if contains is not None and places is not None:
                for block in range(0, count, BLOCK):
                    stop = min(block + BLOCK, count)
                    if contains(view[block : stop + overlap]):
                        places.add(start + block - overlap, start + stop)
                view[:overlap] = view[count : count + overlap]
    return marks


@lru_cache(maxsize=2)
def _hyperscan(needles: tuple[bytes, ...]) -> Callable[[memoryview], bool] | None:
    """Return a function that checks a block of bytes for any of the words; None if hyperscan is not available."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        single = [hyperscan.HS_FLAG_SINGLEMATCH] * len(needles)
        database.compile(expressions=needles, elements=len(needles), flags=single, literal=True)
        scratch = hyperscan.Scratch(database)
    except hyperscan.error:  # for example, a processor without SSE 4.2
        return None
    scan: Any = database.scan  # its stub has only bytes and str

    def found(*_: object) -> bool:
        return True  # the first is enough: the whole block is kept

    def contains(block: memoryview) -> bool:
        try:
            scan(block, found, scratch=scratch)
        except hyperscan.ScanTerminated:
            return True
        return False

    return contains


@dataclass(slots=True)
class _Kinds:
    """The kinds of lines met so far: lines whose digits are all alike. Those with words are told by `grep -F`."""

    grep: str
    needles: tuple[bytes, ...]
    places: Places
    known: set[bytes] = field(default_factory=set)
    with_words: set[bytes] = field(default_factory=set)
    bytes_known: int = 0
    failed: bool = False

    def read(self, log: int, end: int) -> list[int]:
        """Read everything up to `end` once; return the newlines before each chunk."""
        marks, newlines, rest = [], 0, b""
        waiting: list[tuple[int, int, set[bytes]]] = []
        for start in range(0, end, CHUNK):
            data = rest + os.pread(log, CHUNK, start)
            marks.append(newlines)
            lines = data.translate(_ONE_DIGIT).split(b"\n")
            newlines += len(lines) - 1
            first = start - len(rest)
            # a line without an end is read again with what follows, from a very long one only what a word may need
            rest = data[-min(len(lines[-1]), CHUNK) :] if lines[-1] else b""
            waiting.append((first, first + len(data), set(lines)))
            if len(waiting) == _TOGETHER:
                self._ask(log, waiting)
                waiting = []
        self._ask(log, waiting)
        return marks

    def _ask(self, log: int, waiting: Sequence[tuple[int, int, set[bytes]]]) -> None:
        """Record where words are in these stretches of the log (from, to), given the kinds of lines in each."""
        fresh = list(set[bytes]().union(*(kinds for _start, _stop, kinds in waiting)) - self.known)
        if fresh:
            words = (part for word in self.needles for part in (b"-e", word.translate(_ONE_DIGIT)))
            command = [self.grep.encode(), b"-aFn", *words]
            told = subprocess.run(
                command, input=b"\n".join(fresh), capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False
            )
            self.failed = self.failed or told.returncode not in (0, 1)
            shown = told.stdout.removesuffix(b"\n").split(b"\n") if told.stdout else []
            self.with_words |= {fresh[int(line[: line.index(b":")]) - 1] for line in shown}
        before = -1
        for start, stop, kinds in waiting:
            if not self.with_words.isdisjoint(kinds):
                if start <= before:  # stretch after stretch has some
                    self.places.add(start, stop)
                else:
                    self._record(log, start, stop)
                before = stop
        self.known.update(fresh)
        self.bytes_known += sum(map(len, fresh))
        if self.bytes_known > _KNOWN:
            self.known.clear()
            self.with_words.clear()
            self.bytes_known = 0

    def _record(self, log: int, start: int, stop: int) -> None:
        for line in os.pread(log, stop - start, start).split(b"\n"):
            if line.translate(_ONE_DIGIT) in self.with_words:
                self.places.add(start, start + len(line))
            start += len(line) + 1


@dataclass(slots=True)
class Places:
    """The places of words with their context: the first and the last ones, bounded in bytes."""

    room: int = FIRST_BYTES
    last_bytes: int = LAST_BYTES
    first: list[Span] = field(default_factory=list)
    last: deque[Span] = field(default_factory=deque)
    first_bytes: int = 0
    held: int = 0
    end: int = 0
    dropped: int = 0

    def add(self, start: int, end: int) -> None:
        """Record a word between these offsets; starts must not decrease."""
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

    def spans(self) -> Iterator[Span]:
        """The spans in order."""
        yield from self.first
        yield from self.last

    def left_out(self) -> str | None:
        """A note if not all places were kept."""
        if not self.dropped:
            return None
        kept = f"the first {size_in_words(self.first_bytes)} and the last {size_in_words(self.last_bytes)}"
        return f"{kept} around words of known causes were read; {size_in_words(self.dropped)} between them were not"


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, merging those that overlap."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined
