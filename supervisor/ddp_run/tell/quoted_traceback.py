"""A traceback as it is quoted: the user's frames and the innermost one; what lies between in libraries is counted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddp_run.evidence.traceback_text import is_library

_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line \d+')
_PACKAGE = re.compile(r"(?:site|dist)-packages/(?P<name>[\w\-]+)")
_HEADER = "Traceback (most recent call last)"
_MOST_MESSAGE = 8
_SOURCE = re.compile(r"^ {4}")
_CARETS = re.compile(r"^\s*[\^~]+\s*$")
_FEW = 1
"""Library frames in a row that are shown as they are."""


def short(lines: Sequence[str], most: int) -> list[str]:
    """The lines of a printed traceback, of which at most so many are shown: first Python's marks below the source go,
    then its heading, then the outermost frames. Of a chain's earlier exceptions only what they say is shown.
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
    index = headers[-1] if headers else 0
    shown = [line for line in lines[:index] if line[:1].strip() and _HEADER not in line][-_MOST_MESSAGE:]
    libraries: list[list[str]] = []
    while index < len(lines):
        frame = _FRAME.match(lines[index])
        end = _end_of_frame(lines, index) if frame is not None else index
        if frame is None:
            shown += _run(libraries, last=True)
            libraries = []
            end = _end_of_words(lines, index)
            shown += _words(lines[index:end])
        elif is_library(frame["file"]):
            libraries.append(list(lines[index:end]))
        else:
            shown += _run(libraries, last=False)
            libraries = []
            shown += lines[index:end]
        index = end
    return shown + _run(libraries, last=True)


def _end_of_frame(lines: Sequence[str], index: int) -> int:
    """The index behind a frame and its lines of source."""
    indent = len(lines[index]) - len(lines[index].lstrip())
    end = index + 1
    while end < len(lines) and not _FRAME.match(lines[end]) and lines[end][: indent + 1].isspace():
        end += 1
    return end


def _end_of_words(lines: Sequence[str], index: int) -> int:
    end = index + 1
    while end < len(lines) and not _FRAME.match(lines[end]):
        end += 1
    return end


def _words(lines: Sequence[str]) -> list[str]:
    """A message; of a long one the beginning."""
    more = len(lines) - _MOST_MESSAGE
    return list(lines) if more <= 1 else [*lines[:_MOST_MESSAGE], f"  … {more} lines"]


def _run(frames: list[list[str]], *, last: bool) -> list[str]:
    """Frames of libraries in a row; the innermost of all is shown."""
    kept = frames[-1:] if last else []
    counted = frames[: len(frames) - len(kept)]
    if len(counted) <= _FEW:
        return [line for each in frames for line in each]
    names = dict.fromkeys(hit["name"] if (hit := _PACKAGE.search(each[0])) else "Python" for each in counted)
    return [f"  … {len(counted)} frames of {', '.join(names)}", *(line for each in kept for line in each)]
