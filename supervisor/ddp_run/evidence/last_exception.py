"""Finds the exception at the end of a log: what a rank wrote about its own failure. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace

from ddp_run.evidence import exception_frames, traceback_text
from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.json_lines import unfolded
from ddp_run.evidence.traceback_text import HEADER
from ddp_run.evidence.went_on import WentOn
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.record.events import ExceptionInfo


def last_exception(code: int | None, log: LogText) -> ExceptionInfo | None:
    """Return the exception at the end of a log; None if the log ends with anything else, or a signal ended the rank.

    Earlier exceptions were handled: the program went on and wrote more.
    """
    if code is not None and code < 0 and code not in (-signal.SIGINT, -signal.SIGABRT):
        return None
    if any(line.startswith("{") and HEADER in line for line in log.lines):  # a logger's, as JSON
        log = replace(log, lines=tuple(more for line in log.lines for more in unfolded(line)))
    printed = traceback_text.last(log.lines)
    if printed is None:
        return None
    if exception_frames.lost_its_parent(printed.info):
        parents = last_exception(code, replace(log, lines=log.lines[: printed.start]))
        return parents or printed.info
    if len(log.lines) - printed.end > LAST_WORDS:
        return None
    first = max(0, printed.start - LAST_WORDS)
    went_on = WentOn(log.lines[first:])
    over = went_on.after(printed.start - first, printed.index - first, printed.end - first)
    return None if over else printed.info
