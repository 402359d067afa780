"""Finds the lines that show how a process crashed, as quotations. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_run.evidence.crash_text import crash_of
from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.judge.signs import Sign, anywhere


def crash_lines(death: Death, attempt: Evidence, signs: Sequence[Sign]) -> tuple[Quote, ...]:
    """Return faulthandler's lines, else one with a sign of the crash; and the kernel's."""
    crash = crash_of(death)
    caught = anywhere(death.stderr, signs) if crash is None else None
    said = attempt.kernel_line(death.pid)
    shown = (*(crash.quotes if crash is not None else ()), caught.quote if caught is not None else None, said)
    return tuple(quote for quote in shown if quote is not None)
