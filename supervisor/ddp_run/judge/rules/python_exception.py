"""Unhandled Python exception.

## What happened
The training program raised an unhandled exception on this rank, and no more specific cause matches.
## How to recognise it
The rank's traceback ends with this exception; its exit code is 1, or that of a signal if native code crashes during
interpreter shutdown. Other ranks are then stopped or lose their connection to this one: they are not the cause.
## What to do
Check the line of your code that the verdict names, and the full traceback in the rank's log. If only one rank fails,
check what differs there: data shard, device, files.
"""

from __future__ import annotations

import re

from ddp_run.evidence.exception_chain import chain, of_failed_rank, of_worker, raised_from
from ddp_run.evidence.exception_frames import functions, statement
from ddp_run.evidence.launcher_exceptions import started_python, tells_of_a_program
from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.traceback_text import is_library
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import ExceptionInfo
from ddp_run.values.signals import signal_name

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP600",
    layer=Layer.UNEXPLAINED,
    retry=Retry(helps=False, reason="same code, same data"),
)
_SHOWN = 160
_FRAME = re.compile(r'  File "([^"]+)", line \d+')
_MISTAKES = frozenset(
    {
        *("ArithmeticError", "AssertionError", "AttributeError", "IndexError", "KeyError", "LookupError", "NameError"),
        *("NotImplementedError", "OverflowError", "RecursionError", "StopIteration", "TypeError", "UnboundLocalError"),
        *("UnicodeDecodeError", "UnicodeEncodeError", "ValueError", "ZeroDivisionError"),
    }
)
"""Python raises these for mistakes in the code; an OSError or a custom class is about something else."""


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match any exception known to have ended the rank, but for one that tells of another program in a pasted log."""
    raised = death.exception
    if raised is None or (attempt.logs_only and started_python(raised)):
        return None
    raised = of_failed_rank(raised, death.rank) or raised
    where = f" in {raised.place}" if raised.place else ""
    said = _said(raised)
    alone = len(attempt.deaths) + len(attempt.clean_exits) > 1 and not any(
        other.exception and other.exception.type == raised.type for other in attempt.deaths if other.rank != death.rank
    )
    advice = (f"no other rank raised {raised.type}: check what differs on {death.who}: data shard, device",)
    if death.crashed_on_the_way_out:
        said += f"; {signal_name(death.code)} then killed the process during shutdown"
    if raised.type == "SystemExit":
        return Finding(RULE, f"{death.who} called sys.exit{where}{said}")
    return Finding(
        RULE,
        f"{death.who} raised {raised.type}{where}{said}",
        line_of(death.stderr, raised),
        advice if alone else (),
        confidence="certain" if _is_the_reason(raised, attempt) else "likely",
        exception=raised,
    )


def _said(raised: ExceptionInfo) -> str:
    """Return the first line of its message, of a worker's own and where it was caught if it came from one."""
    message, worker = raised.message.partition("\n")[0], of_worker(raised)
    if worker is not None:
        caught = message.partition(" in ")[2].removesuffix(".")
        return f": {worker.message.partition(chr(10))[0][:_SHOWN]} (in {caught})"
    said = f": {message[:_SHOWN]}" if message else ""
    said += " (in a thread)" if "_bootstrap_inner" in functions(raised) else ""
    origin = chain(raised)[-1]
    if origin.type == raised.type or not origin.place or not raised_from(raised, origin):
        return said
    first = origin.message.partition("\n")[0][:_SHOWN]
    return f"{said}; raised from {origin.type} in {origin.place}{first and f': {first}'}"


def _is_the_reason(raised: ExceptionInfo, attempt: Evidence) -> bool:
    """Whether it is certain: not if it only reports another program's failure; in a pasted log, only for a plain
    mistake in the user's own code.

    Libraries raise for bad input and for problems of their environment, and torch's operators raise RuntimeError below
    the line that called them. The real reason may have a more specific name.
    """
    if tells_of_a_program(raised):
        return False
    if not attempt.logs_only:
        return True
    frames = list(_FRAME.finditer(raised.traceback))
    if not frames or is_library(frames[-1][1]) or len(chain(raised)) > 1:
        return False
    return raised.type in _MISTAKES or (raised.type == "RuntimeError" and statement(raised).startswith("raise"))
