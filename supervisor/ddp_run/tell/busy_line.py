"""Shows on a terminal that a command still works, and for how long: a line that is gone when it has finished."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ddp_run.values.terminal import ERASE

_QUIET_S = 2
"""Seconds that a command may take without a word."""


@contextmanager
def busy(step: str) -> Iterator[None]:
    """Show what the command does, and the seconds so far, on stderr if that's a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    finished = threading.Event()
    shower = threading.Thread(target=_show, args=(step, finished), daemon=True)
    shower.start()
    try:
        yield
    finally:
        finished.set()
        shower.join()


def _show(step: str, finished: threading.Event) -> None:
    seconds = _QUIET_S
    if finished.wait(_QUIET_S):
        return
    while True:
        sys.stderr.write(f"{ERASE}{step}, {seconds} s")
        sys.stderr.flush()
        if finished.wait(1):
            break
        seconds += 1
    sys.stderr.write(ERASE)
    sys.stderr.flush()
