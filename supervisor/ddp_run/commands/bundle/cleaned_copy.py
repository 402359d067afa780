"""A copy of a log without its secrets, whatever the log's size: bounded in bytes, in memory and in time.

It is read from its end: where room or time run out, what is left out lies between the log's first lines and its last
ones. Pieces begin with a line, so that no secret is cut; of a private key in two pieces, `redact` knows both parts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, final
from urllib.parse import quote

from ddp_run.values.redaction import REDACTED, kinds_in, redact
from ddp_run.values.secret_names import Grade, grade_of, hides
from ddp_run.values.words import size_in_words

_AT_ONCE = 1 << 20
"""A smaller log is one text."""
_PIECE = 256 << 10
_LAST_LINES_BYTES = 256 << 10
"""Read for a log's last lines: a private key among them is known by its marks, which may stand before them."""
_MOST_TOLD = 300
"""Lines of one piece whose kinds of secrets are looked for; each costs 20 us."""
_LEAST_KNOWN = 8
"""Characters of a value that is looked for as it is."""
_PART_OF_A_KEY = "part of a private key"
_MORE = "in further lines, kind not determined"


@final
@dataclass(slots=True)
class Removed:
    """What a text lacks: how many lines by kind, and which lines, from 1; never the values."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Removed, lines_before: int) -> None:
        """What a later part of the same text lacks."""
        self.lines += [(lines_before + line, kind) for line, kind in other.lines]
        self.kinds += other.kinds


@final
class Cleaner:
    """Removes secrets by their names, by their forms, and those that this environment holds wherever they stand."""

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
        return cleaned, self._removed(text, cleaned, known) if cleaned != text else Removed()

    def _removed(self, text: str, cleaned: str, known: Sequence[tuple[str, str]]) -> Removed:
        removed = Removed()
        before, after = text.split("\n"), cleaned.split("\n")
        changed = [index for index, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
        for index in changed[:_MOST_TOLD]:
            line = before[index]
            kinds = (*(kind for kind, value in known if value in line), *kinds_in(line))
            if not kinds and index:  # `--api-key` and its value may stand in two lines
                kinds = kinds_in(f"{before[index - 1]}\n{line}")
            for kind in kinds or (_PART_OF_A_KEY,):
                removed.lines.append((index + 1, kind))
                removed.kinds[kind] += 1
        if len(changed) > _MOST_TOLD:
            removed.kinds[_MORE] += len(changed) - _MOST_TOLD
        return removed


@dataclass(frozen=True, slots=True)
class Copy:
    """A cleaned text in a temporary file, at its start; `left_out` says what of the original it lacks."""

    file: BinaryIO
    size: int
    removed: Removed
    left_out: str | None = None


def of_text(text: str, cleaner: Cleaner) -> Copy:
    """Of a text in memory."""
    cleaned, removed = cleaner.clean(text)
    return _copy([cleaned.encode("utf-8", "backslashreplace")], removed, None)


def last_lines(log: BinaryIO, count: int, cleaner: Cleaner) -> Copy:
    """Of a log's last lines, with a mark in place of those before them. Raises OSError."""
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
    told = Removed([(line - first, kind) for line, kind in removed.lines if line > first])
    told.kinds.update(kind for _line, kind in told.lines)
    if not begin and not first:
        return _copy([cleaned.encode("utf-8", "backslashreplace")], told, None)
    mark = _mark("what stands before these lines was left out")
    shown = Removed()
    shown.add(told, 1)
    shown.kinds += removed.kinds if _MORE in removed.kinds else Counter()
    text = "\n".join(lines[first:]).encode("utf-8", "backslashreplace")
    return _copy([mark, text], shown, f"the last {len(lines) - ended - first} lines, of {size_in_words(size)}")


def whole(log: BinaryIO, limit: int, deadline: float, cleaner: Cleaner, folder: Path | None = None) -> Copy:
    """Of a log's first lines and, from its end, as much as `limit` bytes and the deadline (on time.monotonic()) allow.

    `folder` is where temporary files go. Raises OSError.
    """
    size = log.seek(0, os.SEEK_END)
    head = _head(log, size if size <= min(limit, _AT_ONCE) else min(limit // 8, _PIECE), size)
    done: list[tuple[int, int, int, Removed]] = []
    with tempfile.TemporaryFile(dir=folder) as spool:
        kept_from = size
        for begin, data in _backwards(log, len(head), max(len(head), size - (limit - len(head))), size):
            text, removed = cleaner.clean(data.decode("utf-8", "replace"))
            at, cleaned = spool.tell(), text.encode("utf-8", "backslashreplace")
            spool.write(cleaned)
            done.append((at, len(cleaned), text.count("\n"), removed))
            kept_from = begin
            if time.monotonic() >= deadline:
                break
        text, removed = cleaner.clean(head.decode("utf-8", "replace"))
        lines = text.count("\n")
        copied = _copy([text.encode("utf-8", "backslashreplace")], Removed(), None, folder)
        copied.file.seek(0, os.SEEK_END)
        missing = kept_from - len(head)
        if missing > 0:
            copied.file.write(_mark(f"{size_in_words(missing)} were left out here"))
            lines += 1
        for at, length, count, found in reversed(done):
            spool.seek(at)
            shutil.copyfileobj(_Bounded(spool, length), copied.file)
            removed.add(found, lines)
            lines += count
    end = copied.file.tell()
    copied.file.seek(0)
    left_out = f"without {size_in_words(missing)} of {size_in_words(size)}, in its middle" if missing > 0 else None
    return Copy(copied.file, end, removed, left_out)


def _head(log: BinaryIO, most: int, size: int) -> bytes:
    """The first lines, whole ones."""
    log.seek(0)
    data = log.read(most)
    return data if len(data) == size else data[: data.rfind(b"\n") + 1]


def _backwards(log: BinaryIO, head: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of [first, last) from its end, each of whole lines, with the offset of its begin.

    A line ends with a carriage return too, as progress bars have it. One that is longer than a piece is left out.
    """
    end, dropped = last, 0
    while end > first:
        begin = end - _PIECE if end - first > 5 * _PIECE // 4 else first  # none so small that a key has no mark in it
        log.seek(begin)
        data = log.read(end - begin)
        if dropped:
            kept = _line_end(data, last=True)
            dropped += len(data) - kept
            data = data[:kept]
            if kept or begin == first == head:
                yield begin + kept, _mark(f"a line of {size_in_words(dropped)} was left out here")
                dropped = 0
            end = begin + kept
            if not data:
                continue
        cut = 0 if begin == head else _line_end(data[:-1], last=False)
        if begin != head and not cut:
            dropped, end = len(data), begin
            continue
        yield begin + cut, data[cut:]
        end = begin if begin == first else begin + cut


def _line_end(data: bytes, *, last: bool) -> int:
    """Behind the first line feed or carriage return, or the last one; 0 where there is none."""
    find = data.rfind if last else data.find
    found = [at + 1 for sign in (b"\n", b"\r") if (at := find(sign)) >= 0]
    return (max(found) if last else min(found)) if found else 0


def _mark(text: str) -> bytes:
    return f"[ddp-run bundle: {text}]\n".encode()


def _copy(parts: Sequence[bytes], removed: Removed, left_out: str | None, folder: Path | None = None) -> Copy:
    file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed when it is in the archive
    size = sum(file.write(part) for part in parts)
    file.seek(0)
    return Copy(file, size, removed, left_out)


@final
class _Bounded:
    """So many bytes of a file, from where it stands."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._left = file, length

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data
