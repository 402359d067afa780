"""The signals that end a job."""

from __future__ import annotations

from signal import Signals

STOP_SIGNALS = frozenset({Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT})
"""Signals that end a job: torchrun forwards these four to the ranks (its `--signals-to-handle` default)."""
