"""Finds the line of a log that shows an exception, as its quotation. Pure."""

from __future__ import annotations

import re

from ddp_run.evidence.model import LogText, Quote
from ddp_run.record.events import ExceptionInfo
from ddp_run.values.redaction import REDACTED


def line_of(log: LogText, exception: ExceptionInfo) -> tuple[Quote, ...]:
    """Return the last line of the log that shows this exception: its type and the first line of its message.

    Otherwise the last that starts with its type: a SyntaxError's message is printed without the position that `str`
    adds. Empty if no line does.
    """
    name = exception.type.rpartition(".")[2]
    message = exception.message.partition("\n")[0].partition(REDACTED)[0].strip()  # the log is not redacted
    alone = re.compile(rf"(?<!\w){re.escape(name)}(?::|$)")
    named = [index for index, line in enumerate(log.lines) if name in line]
    own = bool(message) and not exception.traceback  # a program's own words may name no class
    found = [index for index in (range(len(log.lines)) if own else named) if message in log.lines[index]]
    found = found or [index for index in named if alone.search(log.lines[index])]
    return tuple(map(log.quote, found[-1:]))
