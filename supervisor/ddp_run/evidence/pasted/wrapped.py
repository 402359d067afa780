"""Joins lines that a terminal, a mail client or a web form cut. Pure.

The breaks are not marked, and complete lines can look alike, so lines are joined only if single ones show no cause.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.evidence.went_on import form_of

NOTE = "lines were joined that look wrapped"
_MOST_LINES = 1000
_NARROWEST, _WIDEST = 40, 250
"""The columns at which terminals, mail clients and forms wrap."""
_FEW = 4
_NAMED = re.compile(r"\[(?:(?:\w{1,20}\d|[\w.\-]{1,255}:\d{1,6})\]:|[EWIF]\d{3,4} [\d:.]{8,20} )")
"""The writer's prefix of a line, or torch's own: there is no break before it."""
_BEGINS = re.compile(
    r"^(?:\s*$|\s*File \"|Traceback|[\[(]?\d{4}-\d\d-\d\d|\[?[EWIF]\d{4} |[=*-]{5}|\(\w{1,60} pid=\d"
    r"|step |Epoch)"
)
"""The start of a complete line."""


def joined(logs: Sequence[Log]) -> Iterator[list[Log]]:
    """Yield the logs with lines joined as a terminal cuts them, then as words are filled, then to those that name a
    rank; nothing if none look wrapped."""
    if sum(len(log.text.lines) for log in logs) > _MOST_LINES:
        return
    for join in (partial(_joined, follows=_cut), partial(_joined, follows=_filled), _below_names):
        found = [replace(log, text=join(log.text)) for log in logs]
        if any(len(new.text.lines) < len(old.text.lines) for new, old in zip(found, logs, strict=True)):
            yield found


def _joined(text: LogText, follows: Callable[[str, str, int], str | None]) -> LogText:
    width = _width(text.lines)
    if not _NARROWEST <= width <= _WIDEST:
        return text
    lines: list[str] = []
    numbers: list[int] = []
    last = ""
    for index, line in enumerate(text.lines):
        bar = "%|" in line or "%|" in last  # equally long, and each complete
        between = follows(last, line, width) if lines and not bar else None
        if between is None:
            lines.append(line)
            numbers.append(text.number(index) or 0)
        else:
            lines[-1] += between + line.lstrip()
        last = line
    return LogText(text.source, tuple(lines), numbers[0] if numbers else None, tuple(numbers))


def _below_names(text: LogText) -> LogText:
    """Join to each line that names its writer the ones below it that name none: a chat cut them anywhere."""
    lines: list[list[str]] = []
    numbers: list[int] = []
    inside = False
    for index, line in enumerate(text.lines):
        named = _NAMED.match(line) is not None
        inside = named or (inside and bool(line.strip()) and not _BEGINS.match(line))
        if inside and not named:
            lines[-1].append(line)
        else:
            lines.append([line])
            numbers.append(text.number(index) or 0)
    return LogText(text.source, tuple(map("".join, lines)), numbers[0] if numbers else None, tuple(numbers))


def _width(lines: Sequence[str]) -> int:
    """Return the width of most lines if many are equally long, else of the longest: wide characters make one longer."""
    differing = {
        form_of(line): len(line) for line in lines if len(line) >= _NARROWEST
    }  # progress bars are equally long
    often = Counter(differing.values()).most_common(1)
    longest = max((len(line) for line in lines), default=0)
    return often[0][0] if often and often[0][1] >= max(_FEW, len(lines) // 5) else longest


def _cut(line: str, following: str, width: int) -> str | None:
    """Return the text between two lines that a terminal cut at its last column; None if it did not."""
    if not following.strip() or _NAMED.match(following):
        return None
    if form_of(line) == form_of(following):
        return None  # progress lines, which are equally long
    return "" if len(line) == width else " " if len(line) == width - 1 else None


def _filled(line: str, following: str, width: int) -> str | None:
    """The same for filled words: the next word would not have fitted."""
    if not line.strip() or _BEGINS.match(following) or _NAMED.match(following):
        return None
    word = following.split(None, 1)[0]
    return " " if len(line.rstrip()) + 1 + len(word) > width else None
