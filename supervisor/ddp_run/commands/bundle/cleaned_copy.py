"""A copy of a log without its secrets, in memory: of a limited size and within a time limit, however long the log is.

A log is read from its end: if room or time run out, what is left out lies between its first lines and its last ones.
Pieces begin with a line, so that no secret is cut; `redact` knows both parts of a private key in two pieces.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, final
from urllib.parse import quote

from ddp_run.values.redaction import REDACTED, kinds_in, redact
from ddp_run.values.secret_names import Grade, grade_of, hides
from ddp_run.values.words import size_in_words

_AT_ONCE = 1 << 20
"""A log up to this size is one text."""
_PIECE = 256 << 10
_LAST_LINES_BYTES = 256 << 10
"""Read for a log's last lines: the marks of a private key among them may stand before them."""
_MOST_TOLD = 300
"""Lines of one piece whose kinds of secrets are looked for; each costs 20 us."""
_LEAST_KNOWN = 8
"""Characters of a value that is looked for as it is."""
_PART_OF_A_KEY = "part of a private key"
_MORE = "in further lines, kind not determined"


@final
@dataclass(slots=True)
class Removed:
    """What a text lacks: its changed lines, from 1, with their kinds of secrets; how many more. Never the values."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    more: int = 0

    @property
    def kinds(self) -> Counter[str]:
        """How many lines of each kind."""
        return Counter(kind for _line, kind in self.lines) + Counter({_MORE: self.more})

    def add(self, other: Removed, lines_before: int) -> None:
        """What a later part of the same text lacks."""
        self.lines += [(lines_before + line, kind) for line, kind in other.lines]
        self.more += other.more


@final
class Cleaner:
    """Removes secrets by their names and forms, and this environment's secrets wherever they stand."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._known: list[tuple[str, str]] = []
        for name, value in environ.items():
            grade = grade_of(name)
            if grade >= Grade.LIKELY and len(value) >= _LEAST_KNOWN and hides(grade, value, bare=False):
                self._known += [(f"value of ${name}", form) for form in dict.fromkeys((value, quote(value, safe="")))]

    def clean(self, text: str) -> tuple[str, Removed]:
        """The text without secrets, with as many lines as before, and what it lacks."""
        known = [(kind, value) for kind, value in self._known if value in text]
        cleaned = text
        for _kind, value in known:
            cleaned = cleaned.replace(value, REDACTED + "\n" * value.count("\n"))
        cleaned = redact(cleaned)
        return cleaned, _removed(text, cleaned, known) if cleaned != text else Removed()


def _removed(text: str, cleaned: str, known: Sequence[tuple[str, str]]) -> Removed:
    before, after = text.split("\n"), cleaned.split("\n")
    changed = [index for index, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    removed = Removed(more=max(0, len(changed) - _MOST_TOLD))
    for index in changed[:_MOST_TOLD]:
        line = before[index]
        kinds = (*(kind for kind, value in known if value in line), *kinds_in(line))
        if not kinds and index:  # `--api-key` and its value may stand in two lines
            kinds = kinds_in(f"{before[index - 1]}\n{line}")
        removed.lines += [(index + 1, kind) for kind in kinds or (_PART_OF_A_KEY,)]
    return removed


@dataclass(frozen=True, slots=True)
class Copy:
    """A cleaned text; `left_out` says what of the original it lacks."""

    text: str
    removed: Removed
    left_out: str | None = None


def last_lines(log: BinaryIO, count: int, cleaner: Cleaner) -> Copy:
    """A log's last lines, with a mark in place of those before them. Raises OSError."""
    size = log.seek(0, os.SEEK_END)
    begin = max(0, size - _LAST_LINES_BYTES)
    log.seek(begin)
    data = log.read(size - begin)
    if begin:
        data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
    cleaned, removed = cleaner.clean(data.decode("utf-8", "replace"))
    lines = cleaned.split("\n")
    ended = lines[-1] == ""
    first = max(0, len(lines) - count - ended)
    if not begin and not first:
        return Copy(cleaned, removed)
    mark = _mark("the lines before these were left out")
    shown = Removed([(line - first + 1, kind) for line, kind in removed.lines if line > first], removed.more)
    left_out = f"the last {len(lines) - ended - first} lines, of {size_in_words(size)}"
    return Copy(mark + "\n".join(lines[first:]), shown, left_out)


def whole(log: BinaryIO, limit: int, deadline: float, cleaner: Cleaner) -> Copy:
    """A log's first lines and, from its end, as much as `limit` bytes and the deadline (on time.monotonic()) allow.

    Raises OSError.
    """
    size = log.seek(0, os.SEEK_END)
    head = _head(log, size if size <= min(limit, _AT_ONCE) else min(limit // 8, _PIECE), size)
    pieces: list[tuple[str, Removed]] = []
    kept_from = size
    for begin, data in _backwards(log, len(head), max(len(head), size - (limit - len(head))), size):
        pieces.append(cleaner.clean(data.decode("utf-8", "replace")))
        kept_from = begin
        if time.monotonic() >= deadline:
            break
    left_out, missing = None, kept_from - len(head)
    if missing > 0:
        pieces.append((_mark(f"{size_in_words(missing)} were left out here"), Removed()))
        left_out = f"without {size_in_words(missing)} of {size_in_words(size)}, in its middle"
    pieces.append(cleaner.clean(head.decode("utf-8", "replace")))
    removed, lines = Removed(), 0
    for text, found in reversed(pieces):
        removed.add(found, lines)
        lines += text.count("\n")
    return Copy("".join(text for text, _removed in reversed(pieces)), removed, left_out)


def _head(log: BinaryIO, most: int, size: int) -> bytes:
    """The first lines, whole ones."""
    log.seek(0)
    data = log.read(most)
    return data if len(data) == size else data[: data.rfind(b"\n") + 1]


def _backwards(log: BinaryIO, head: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of [first, last) from its end, whole lines each, with the offset where each begins.

    A carriage return ends a line too, as in progress bars. A line that is longer than a piece is left out.
    """
    end, dropped = last, 0
    while end > first:
        begin = end - _PIECE if end - first > 5 * _PIECE // 4 else first  # none so small that a key has no mark in it
        log.seek(begin)
        data = log.read(end - begin)
        if dropped:
            kept = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            dropped += len(data) - kept
            data = data[:kept]
            if kept or begin == first == head:
                yield begin + kept, _mark(f"a line of {size_in_words(dropped)} was left out here").encode()
                dropped = 0
            end = begin + kept
            if not data:
                continue
        cut = 0 if begin == head else _after_first_line(data[:-1])
        if begin != head and not cut:
            dropped, end = len(data), begin
            continue
        yield begin + cut, data[cut:]
        end = begin if begin == first else begin + cut


def _after_first_line(data: bytes) -> int:
    """Behind the first line feed or carriage return; 0 if there is none."""
    return min((at + 1 for sign in (b"\n", b"\r") if (at := data.find(sign)) >= 0), default=0)


def _mark(text: str) -> str:
    return f"[ddp-run bundle: {text}]\n"
