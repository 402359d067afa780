"""Standard input and output: that they are there, and what text of ddp-run's own may use of a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import IO

_LEAST_COLUMNS = 40


def open_what_is_closed() -> None:
    """/dev/null on each of the descriptors 0 to 2 that is closed (`>&-`, as daemons start others).

    Else a file that is opened later is one of them: ranks' lines would go into the journal. Raises OSError.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def columns() -> int:
    """Columns for text of our own: the terminal's, 100 where there is none, never more than can be read."""
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
    """What tells a rank's libraries that the console, for `ranks` ranks of this node, shows their lines on a terminal.

    A rank's own stdout and stderr are files. rich, and lightning's bars by it, draw live bars then only with the first
    two (rich 15, Console.is_terminal and is_interactive); what the user set about it stays. What is left beside the
    prefix is told to rich and others by COLUMNS; to tqdm by COLUMNS and LINES, and from 4.68 on, which asks the file
    only, by TQDM_NCOLS. Not FORCE_COLOR: Python 3.13 colours tracebacks by it, in the files too.
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
    """Whether colours are wanted without a terminal too (force-color.org, bixense.com/clicolors).

    NO_COLOR (no-color.org) is stronger: see `colour`.
    """
    return any(
        os.environ.get(name, "0").lower() not in ("", "0", "false") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    )
