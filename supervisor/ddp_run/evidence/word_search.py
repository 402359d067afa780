"""Finds words in a log of any size: with hyperscan (the extra `scan`), else with GNU grep."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from ddp_run.values.words import size_in_words

Engine = Literal["hyperscan", "grep"]
ENGINES: tuple[Engine, ...] = ("hyperscan", "grep")
"""In the order tried. CPU seconds for 1 GB and 545 words: hyperscan 1.8, grep 11, neither 1.2 (to count lines)."""


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
_GREP_HITS = 20_000
_GREP_SKIP = 4 << 20
_GREP_BYTES = 512 << 20


def search(
    log: int, end: int, needles: tuple[bytes, ...], engines: Collection[Engine], places: Places
) -> tuple[list[int], str | None]:
    """Return the newlines before each chunk up to `end`, and why words may have been missed."""
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
    log: int, end: int, overlap: int, contains: Callable[[memoryview], bool] | None, places: Places
) -> list[int]:
    """Read everything up to `end` once: count newlines and check each block for words."""
    buffer = bytearray(overlap + CHUNK)
    marks, lines = [], 0
    with memoryview(buffer) as view:
        for start in range(0, end, CHUNK):
            count = os.preadv(log, [view[overlap:]], start)
            marks.append(lines)
            lines += buffer.count(b"\n", overlap, overlap + count)
            if contains is not None:
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


def _gnu_grep() -> str | None:
    """Return the path of GNU grep; others have no byte offsets."""
    path = shutil.which("grep")
    return path if path is not None and _is_gnus(path) else None


@lru_cache(maxsize=1)
def _is_gnus(grep: str) -> bool:
    try:
        said = subprocess.run([grep, "--version"], capture_output=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"GNU grep" in said


def _grep(path: str, log: int, end: int, needles: tuple[bytes, ...], places: Places) -> bool:
    """Find the places with grep; return False if it failed before `end`, as it does on a line that fills its memory.

    If line after line contains words, it is stopped, the next stretch counts as full of words, and it starts again.
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


def _hits(process: subprocess.Popen[bytes], position: int, end: int, longest: int, places: Places) -> int | None:
    """Record where grep finds words; return None if it reached its end, else the last place before it was stopped."""
    assert process.stdout is not None
    for count, line in enumerate(process.stdout, 1):
        place = position + int(line[: line.index(b":")])
        places.add(place, min(place + longest, end))
        if place >= end or count >= _GREP_HITS:
            return place
    return None


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
