"""How the launcher speaks and how it ends: lines on stderr, exit codes, signals to stop."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from ddp_run.values.lines import neutral
from ddp_run.values.redaction import redact

USAGE, UNAVAILABLE, LOST, NO_CLIENT = 2, 69, 75, 127
"""Exit codes that are not the training's: see scripts/vast_launch.py. 75 is ddp-run's, too."""
STOPS = (signal.SIGINT, signal.SIGTERM)


class Failed(Exception):
    """The end, with a message and an exit code."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(lines[0])
        self.code = code
        self.lines = lines


class Stopped(BaseException):
    """A signal to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def tell(text: str) -> None:
    """A line of ours, on stderr: stdout has what the training's log says."""
    for line in text.splitlines():
        print(f"vast_launch: {neutral(redact(line))}", file=sys.stderr, flush=True)


def show(line: str) -> None:
    """A line of the training's log."""
    print(neutral(line), flush=True)


def on_stop(signum: int, _frame: FrameType | None) -> NoReturn:
    """The handler of the signals to stop."""
    raise Stopped(signum)


class stops_put_off:
    """Signals to stop wait until the end of this, and are in its list: a rental that is being made must be known."""

    def __enter__(self) -> list[int]:
        came: list[int] = []
        for signum in STOPS:
            signal.signal(signum, lambda number, _frame: came.append(number))
        return came

    def __exit__(self, *_exc: object) -> None:
        for signum in STOPS:
            signal.signal(signum, on_stop)
