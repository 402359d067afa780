"""How the launcher speaks and how it ends: lines on stderr, exit codes, signals to stop."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn, TextIO

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
        try:
            print(f"vast_launch: {neutral(redact(line))}", file=sys.stderr, flush=True)
        except OSError:
            _give_up(sys.stderr)


def show(line: str) -> None:
    """A line of the training's log."""
    try:
        print(neutral(line), flush=True)
    except OSError as error:  # `| head` has ended, or the disk is full
        _give_up(sys.stdout)
        tell(f"the log is no longer shown: {error.strerror}; the run is followed to its end all the same")


def _give_up(stream: TextIO) -> None:
    """Nobody reads it any more: an instance that costs must be ended all the same."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


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
