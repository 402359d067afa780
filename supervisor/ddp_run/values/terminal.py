"""Standard input and output: makes sure that they're open, and says how wide and colourful text on them may be."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import IO

_LEAST_COLUMNS = 40
ERASE = "\r\033[K"
"""Puts the cursor at the start of an empty line, in place of what the line showed."""


def open_what_is_closed() -> None:
    """Open /dev/null for each of the descriptors 0 to 2 that is closed (`>&-`, or started by a daemon).

    Otherwise a file opened later would get its number: ranks' lines would go into the journal. Raises OSError.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(opened, True)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))


def columns() -> int:
    """Columns for ddp-run's own text: the terminal's, 100 without one, and at most 120."""
    try:
        width = int(os.environ.get("COLUMNS", "")) or 100
    except ValueError:
        try:
            width = os.get_terminal_size(2).columns or 100
        except OSError:
            width = 100
    return min(120, width)


def width_of(fd: int) -> int | None:
    """Columns of a terminal; None if it isn't one, doesn't say, or is too narrow to wrap for."""
    try:
        width = os.get_terminal_size(fd).columns
    except OSError:
        return None
    return width if width >= _LEAST_COLUMNS else None


def variables_for_ranks(environ: Mapping[str, str], ranks: int) -> dict[str, str]:
    """Variables that tell a rank's libraries that the console shows their lines on a terminal, with `ranks` ranks here.

    A rank's own stdout and stderr are files. There rich, and lightning's bars through it, draw live bars only with the
    first two variables (rich 15, Console.is_terminal and is_interactive). What the user has set stays. The columns left
    beside the prefix: rich and others read COLUMNS, tqdm COLUMNS and LINES. From 4.68 on tqdm reads TQDM_NCOLS, since
    it asks only the file otherwise. FORCE_COLOR isn't set: Python 3.13 would colour tracebacks, in the files too.
    """
    if not (os.isatty(1) and os.isatty(2)) or environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return {}
    bars = {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1"}
    asked = {} if environ.keys() & bars else bars
    prefix = "[rank0]: " if ranks == 1 else f"[rank0-{max(ranks, 2) - 1}]: "
    try:
        columns, lines = os.get_terminal_size(2)
    except OSError:
        return asked
    room = columns - len(prefix)
    if room >= _LEAST_COLUMNS and "COLUMNS" not in environ:
        sizes = {"COLUMNS": str(room), "LINES": str(lines), "TQDM_NCOLS": str(room - 1)}
        asked |= {name: size for name, size in sizes.items() if name not in environ}
    return asked


def colour(stream: IO[str]) -> bool:
    """Whether to use colour on a stream: on terminals that know it, or anywhere if it is forced, unless NO_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    return colour_forced() or (stream.isatty() and os.environ.get("TERM") != "dumb")


def colour_forced() -> bool:
    """Whether colours are wanted even without a terminal (force-color.org, bixense.com/clicolors).

    NO_COLOR (no-color.org) is stronger: see `colour`.
    """
    return any(
        os.environ.get(name, "0").lower() not in ("", "0", "false") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    )


def fitting(line: bytes, columns: int) -> bytes:
    """As much of `line` as fits on one row of a terminal: only one row can be erased."""
    if line.isascii():
        return line[: columns - 1]
    from unicodedata import combining, east_asian_width

    text, used = line.decode("utf-8", "replace"), 0
    for index, character in enumerate(text):
        used += 0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        if used > columns - 1:
            return text[:index].encode()
    return line
