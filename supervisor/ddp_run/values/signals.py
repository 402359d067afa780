"""The signals that end a job, and exit codes in words. Pure.

A negative code is the negated number of a signal, as in Python.
"""

from __future__ import annotations

import signal
from signal import Signals

STOP_SIGNALS = frozenset({Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT})
"""Signals that end a job: torchrun forwards these four to the ranks (its `--signals-to-handle` default)."""
NOTICE_SIGNALS = frozenset({Signals.SIGUSR1, Signals.SIGUSR2})
"""Signals that only tell the ranks something (SLURM sends them ahead of a time limit)."""


def signal_name(code: int | None) -> str | None:
    """The name of the signal that ended a process ("SIGKILL"); None if none did."""
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def shell_code(code: int | None) -> int:
    """What a shell reports: 128+N for signal N; 1 if the code isn't known."""
    if code is None:
        return 1
    return 128 - code if code < 0 else code & 0xFF


def in_words(code: int | None) -> str:
    """`exit code 7`, `SIGKILL` or `an unknown exit code`."""
    if code is None:
        return "an unknown exit code"
    return signal_name(code) or f"exit code {code}"
