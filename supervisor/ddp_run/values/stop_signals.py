"""The signals that end a job, and those that only tell its ranks something."""

from __future__ import annotations

from signal import Signals

STOP_SIGNALS = frozenset({Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT})
"""Signals that end a job: torchrun forwards these four to the ranks (its `--signals-to-handle` default)."""
NOTICE_SIGNALS = frozenset({Signals.SIGUSR1, Signals.SIGUSR2})
"""Signals that only tell the ranks something (SLURM sends them ahead of a time limit)."""
