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

from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.pasted.raised import AGENT_FRAME
from ddp_run.evidence.traceback_text import chain, is_library, line_of, tells_of_a_program
from ddp_run.judge.verdict import Area, Finding, Retry, Rule
from ddp_run.record.events import ExceptionInfo
from ddp_run.values.signals import signal_name

RULE = Rule(
    code="DDP600",
    name="python-exception",
    title="Unhandled Python exception",
    area=Area.USER_CODE,
    retry=Retry(helps=False, reason="same code, same data"),
    since="0.1",
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
"""What Python raises for the code itself; an OSError, or a class of one's own, is about something else."""
_RAISED = re.compile(r"[^\n]{0,200}\n\s{1,40}raise\b")
"""Behind a frame's place: its line of source raises by itself."""
_ENDING = 40
_PYTHONS_CODE = 1


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Any exception that is known to have ended the rank."""
    raised = death.exception
    if raised is None:
        return _cut_off(death)
    where = f" in {raised.file.rpartition('/')[2]}:{raised.line}" if raised.file else ""
    message = raised.message.partition("\n")[0]
    said = f": {message[:_SHOWN]}" if message else ""
    quote = line_of(death.stderr, raised)
    alone = len(attempt.deaths) + len(attempt.clean_exits) > 1 and not any(
        other.exception and other.exception.type == raised.type for other in attempt.deaths if other.rank != death.rank
    )
    advice = (f"no other rank raised {raised.type}: check what differs on {death.who}: data shard, device",)
    if death.crashed_on_the_way_out:
        said += f"; {signal_name(death.code)} then killed the process during shutdown"
    if raised.type == "SystemExit":
        return Finding(RULE, death.rank, f"{death.who} called sys.exit{where}{said}", exception=raised)
    return Finding(
        RULE,
        death.rank,
        f"{death.who} raised {raised.type}{where}{said}",
        (quote,) if quote else (),
        advice if alone else (),
        confidence="certain" if _is_the_reason(raised, attempt) else "likely",
        exception=raised,
    )


def _is_the_reason(raised: ExceptionInfo, attempt: Evidence) -> bool:
    """Not where it only tells of another program; in a pasted log only where the user's own code made a plain mistake.

    Libraries raise for what they were given and what they run on, and torch's operators raise RuntimeError below the
    line that called them: the reason may have a name that a person knows.
    """
    if tells_of_a_program(raised):
        return False
    if not attempt.logs_only:
        return True
    frames = list(_FRAME.finditer(raised.traceback))
    if not frames or is_library(frames[-1][1]) or len(chain(raised)) > 1:
        return False
    return raised.type in _MISTAKES or (
        raised.type == "RuntimeError" and _RAISED.match(raised.traceback, frames[-1].end()) is not None
    )


def _cut_off(death: Death) -> Finding | None:
    """Frames of a traceback at the end, but no line that names the exception: a log that was cut, or torn."""
    ending = death.stderr.ending(_ENDING)
    frames = [index for index, line in enumerate(ending.lines) if _FRAME.search(line)]
    if death.code != _PYTHONS_CODE or len(frames) < 2:
        return None
    if AGENT_FRAME.search(
        ending.lines[frames[-1]]
    ):  # torch's launcher tells of the ranks: these are no words of this one
        return None
    after = [index for index in range(frames[-1] + 1, len(ending.lines)) if ending.lines[index][:1].strip()]
    quote = ending.quote(after[0] if after else frames[-1])
    cause = f"{death.who} died with a traceback that is cut off: {quote.text.strip()[:_SHOWN]}"
    return Finding(RULE, death.rank, cause, (quote,), confidence="likely")
