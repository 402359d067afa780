"""Reads a line that several processes wrote at once, in pieces. Pure."""

from __future__ import annotations

import re

_COLONS = re.compile(r"(?:: ){2,8}")
"""Between the name of an exception and its message."""
_MARKS = re.compile(r"\^[\^ ]{0,400}")
"""Those below a statement, since Python 3.11."""
_LONGEST = 1000
_FEW = 6


def once(line: str) -> str:
    """Return the line as one process wrote it, if several wrote the same pieces at once (`ErrorError: : no xno x`).

    Of an exception, the messages may differ: the first one follows the name. Others' marks may stand around the name.
    """
    if "^" in line[:_LONGEST].partition(": ")[0]:
        line = _MARKS.sub("", line)
    for times in range(8 if len(line) <= _LONGEST else 0, 1, -1):
        # Each character occurs a multiple of times; a few of them rule out most lines.
        pieces = _pieces(line, times) if all(line.count(c) % times == 0 for c in line[:_FEW]) else None
        if pieces is not None:
            return pieces
    colons = _COLONS.search(line, 0, _LONGEST)
    name = _pieces(line[: colons.end()], len(colons[0]) // 2) if colons is not None else None
    return line if colons is None or name is None else name + line[colons.end() :]


def _pieces(line: str, times: int) -> str | None:
    parts: list[str] = []
    start = 0
    while start < len(line):
        longest = (len(line) - start) // times
        size = next((n for n in range(longest, 0, -1) if _repeats(line, start, n, times)), 0)
        if not size or len(parts) > 12:
            return None
        parts.append(line[start : start + size])
        start += size * times
    return "".join(parts) if parts and len(line) > 12 else None


def _repeats(line: str, start: int, size: int, times: int) -> bool:
    """Whether the piece of that size occurs this many times."""
    if line[start] != line[start + size]:
        return False
    piece = line[start : start + size]
    return all(line.startswith(piece, start + k * size) for k in range(1, times))
