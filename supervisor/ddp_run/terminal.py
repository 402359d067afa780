"""What text of ddp-run's own may use of a terminal."""

from __future__ import annotations

import os
from typing import IO


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


def colour(stream: IO[str]) -> bool:
    """Whether to use colour on a stream: on terminals that know it, unless NO_COLOR (no-color.org) is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
