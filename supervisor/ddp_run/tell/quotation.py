"""What the verdict's block quotes: lines of logs, tracebacks, and the user's line of source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ddp_run.evidence.model import Quote
from ddp_run.evidence.traceback_text import is_library
from ddp_run.record.events import ExceptionInfo

_MOST_LINES: Final = 16
_MOST_MESSAGE: Final = 8
_FEW: Final = 1
"""Library frames in a row that are shown rather than counted."""
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line \d+')
_PACKAGE: Final = re.compile(r"(?:site|dist)-packages/(?P<name>[\w\-]+)")
_HEADER: Final = "Traceback (most recent call last)"
_SOURCE: Final = re.compile(r"^ {4}")
_CARETS: Final = re.compile(r"^\s*[\^~]+\s*$")


def source_line(file: str, line: int) -> str | None:
    """Line `line` (from 1) of a Python program on disk; None if it can't be read."""
    if line < 1:
        return None
    try:
        path = Path(file)
        if not path.is_file():
            return None
        with path.open(encoding="utf-8", errors="replace") as lines:
            first = lines.readline(200)
            if not (file.endswith((".py", ".pyx", ".pyw")) or (first.startswith("#!") and "python" in first)):
                return None  # a log or a journal may name any file
            lines.seek(0)
            return next(islice(lines, line - 1, line), None)
    except (OSError, ValueError):
        return None


def cut(text: str, limit: int) -> str:
    """At most `limit` characters; longer text says how long it is."""
    return text if len(text) <= limit else f"{text[:limit].rstrip()}… ({len(text)} characters)"


def by_place(evidence: Sequence[Quote]) -> list[list[Quote]]:
    """Quotes in order: lines that follow each other in one file form one list, and so do lines without a number."""
    places: list[list[Quote]] = []
    for quote in evidence:
        last = places[-1][-1] if places else None
        if last is not None and (last.source, last.line and last.line + 1) == (quote.source, quote.line):
            places[-1].append(quote)
        else:
            places.append([quote])
    return places


def quoted(quotes: Sequence[Quote], raised: ExceptionInfo | None, most: int) -> list[str]:
    """The quoted lines, at most `most`; if they end the traceback, as much of that as fits."""
    lines = [quote.text for quote in quotes]
    traceback = raised.traceback.rstrip("\n").split("\n") if raised else []
    if len(traceback) < 3 or not lines[-1].endswith(traceback[-1]):
        return lines[: max(most, _MOST_LINES)]
    return short(traceback, most)


# -------------------------------------------------------------------------------------------- tracebacks


def short(lines: Sequence[str], most: int) -> list[str]:
    """A printed traceback in at most `most` lines, with the user's frames and the innermost one.

    Frames of libraries are counted. If the rest is too long, Python's marks below the source go first, then the
    heading, then the outermost frames. Of a chain's earlier exceptions only the messages are shown.
    """
    shown = _shortened(lines)
    if len(shown) > most:
        shown = [line for line in shown if not _CARETS.match(line)]
    if len(shown) > most:
        shown = [line for line in shown if _HEADER not in line]
    if len(shown) <= most:
        return shown
    start = len(shown) - most + 1
    while start < len(shown) - 1 and _SOURCE.match(shown[start]):  # no line of source without its frame
        start += 1
    return [f"  … {start} lines", *shown[start:]]


def _shortened(lines: Sequence[str]) -> list[str]:
    headers = [index for index, line in enumerate(lines) if _HEADER in line]
    begin = headers[-1] if headers else 0
    shown = [line for line in lines[:begin] if line[:1].strip() and _HEADER not in line][-_MOST_MESSAGE:]
    libraries: list[Sequence[str]] = []
    for part in _parts(lines[begin:]):
        frame = _FRAME.match(part[0])
        if frame is not None and is_library(frame["file"]):
            libraries.append(part)
            continue
        shown += [*_run(libraries, innermost=frame is None), *(part if frame is not None else _message(part))]
        libraries = []
    return shown + _run(libraries, innermost=True)


def _parts(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Frames, each with its lines of source, and the text between them."""
    begin = 0
    while begin < len(lines):
        frame, end = _FRAME.match(lines[begin]), begin + 1
        indent = len(lines[begin]) - len(lines[begin].lstrip())
        while end < len(lines) and not _FRAME.match(lines[end]):
            if frame is not None and not lines[end][: indent + 1].isspace():
                break
            end += 1
        yield lines[begin:end]
        begin = end


def _message(lines: Sequence[str]) -> list[str]:
    """A message, or the beginning of a long one."""
    more = len(lines) - _MOST_MESSAGE
    return list(lines) if more <= 1 else [*lines[:_MOST_MESSAGE], f"  … {more} lines"]


def _run(frames: Sequence[Sequence[str]], *, innermost: bool) -> list[str]:
    """Library frames in a row, counted; the last one is shown if it is the innermost of all."""
    kept = frames[-1:] if innermost else []
    counted = frames[: len(frames) - len(kept)]
    if len(counted) <= _FEW:
        return [line for each in frames for line in each]
    names = dict.fromkeys(hit["name"] if (hit := _PACKAGE.search(each[0])) else "Python" for each in counted)
    return [f"  … {len(counted)} frames of {', '.join(names)}", *(line for each in kept for line in each)]
