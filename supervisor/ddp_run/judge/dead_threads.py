"""Finds the exception that ended a thread of a rank: its main thread may go on, wait for it, or fail of that. Pure."""

from __future__ import annotations

from dataclasses import replace

from ddp_run.evidence import traceback_text
from ddp_run.evidence.model import Death
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.quoted_line import line_of
from ddp_run.record.events import ExceptionInfo

_AWAITED = frozenset({"Empty", "Full", "BrokenBarrierError", "TimeoutError"})
"""Python's classes for what another thread, or a process, should have done in time: with no message, of nobody else."""


def of_thread(death: Death) -> ExceptionInfo | None:
    """Return the last exception that ended a thread of the rank before its program failed; None if none did."""
    shown = traceback_text.find(death.stderr.ending(LAST_WORDS).lines)
    ended = max((each.index for each in shown if each.final), default=None) if death.exception is not None else None
    threads = [each for each in shown if not (each.final or each.ignored) and (ended is None or each.index < ended)]
    return threads[-1].info if threads else None


def awaited_by(death: Death) -> Death | None:
    """Return the death with the exception of the thread for which its program waited in vain; None if it didn't."""
    raised = death.exception
    if raised is None or raised.message or raised.type.rpartition(".")[2] not in _AWAITED:
        return None
    thread = of_thread(death)
    return None if thread is None else replace(death, exception=thread)


def note_on(death: Death) -> str | None:
    """Return a note about the exception that ended a thread of the rank, unless it is the one that is shown."""
    thread = of_thread(death)
    if thread is None or (death.exception is not None and thread.type == death.exception.type):
        return None
    where = f" in {thread.place}" if thread.place else ""
    said = thread.message.partition("\n")[0][:160]
    quote = next(iter(line_of(death.stderr, thread)), None)
    shown = "" if quote is None else f" ({quote.source}:{quote.line})"
    return f"before that, a thread of {death.who} had raised {thread.type}{where}{said and f': {said}'}{shown}"
