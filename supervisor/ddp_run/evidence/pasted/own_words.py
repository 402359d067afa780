"""Finds the rank that printed a few words and left, while all others only report that they lost or awaited it. Pure.

Many programs catch what goes wrong, print one line and exit. Their peers then fill the log.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

from ddp_run.evidence.exception_frames import by_others
from ddp_run.evidence.pasted.labels import LOGGERS, ranks_of
from ddp_run.evidence.pasted.raised import OfException, Raised, Shows
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.went_on import HANDLED, WentOn, is_native, is_news
from ddp_run.record.events import ExceptionInfo, Rank

_RAISED = re.compile(
    r"(?<![\w.])(?P<type>(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)|(?:[a-z_]\w{0,40}\.){1,6}[A-Z]\w{0,60})"
    r": (?P<message>[^\n]{1,400})"
)
_REPR = re.compile(
    r"(?<![\w.])(?P<type>[A-Z]\w{0,60}(?:Error|Exception))\((?P<quote>['\"])(?P<message>[^\n]{1,400}?)(?P=quote)\)"
)
"""As Python shows it within other words."""
_IN_BRACKETS = re.compile(
    r"(?P<message>[^\n]{1,400}?) \((?P<type>[A-Z]\w{0,60}(?:Error|Exception))(?:, [\w./\-]{1,100}:\d{1,9})?\)"
)
"""As loggers append it."""
_NUMBERS = {
    "address already in use": errno.EADDRINUSE,
    "cannot allocate memory": errno.ENOMEM,
    "disk quota exceeded": errno.EDQUOT,
    "input/output error": errno.EIO,
    "no space left on device": errno.ENOSPC,
    "no such directory": errno.ENOENT,
    "no such file": errno.ENOENT,
    "no such file or directory": errno.ENOENT,
    "operation not permitted": errno.EPERM,
    "permission denied": errno.EACCES,
    "read-only file system": errno.EROFS,
    "stale file handle": errno.ESTALE,
    "too many open files": errno.EMFILE,
}
"""strerror(3)'s words, and programs', for what one may leave for."""
_WORDS = {number: words.capitalize() for words, number in _NUMBERS.items()}
_NUMBERS |= {errno.errorcode[number].lower(): number for number in _WORDS}
_NO_MODULE = re.compile(r"No module named '?[\w.]{1,200}'?")
"""Python's words, whatever class a program's own line names."""
_SAID = re.compile(rf"\b({'|'.join(_NUMBERS)})\b", re.IGNORECASE)
_NATIVES = re.compile(
    r"\.(?:cpp|hpp|cc|cu|h):\d|frame #\d|^\s*(?:Exception raised from|what\(\)|Last error:|nccl\w{1,30}Error)"
)
"""Written by torch's threads, not by the program that left."""
_LEAVES = re.compile(
    r"(?i)\b(?:exit(?:s|ing|ed)?|leav(?:es?|ing)|stop(?:s|ping|ped)?|quit(?:s|ting)?|giv(?:es|ing) up)\b"
)
"""Says that a program leaves."""
_AFTER = 2
"""A program that leaves may say this many lines more."""


def of_others(spoken: SpokenText, exceptions: Sequence[Raised]) -> list[int]:
    """Return the lines of those who only lost the rank that left, or waited for it: of these exceptions, and those in
    which native code gives up."""
    shown = {index for raised in exceptions for index in raised.lines}
    return [index for index, line in enumerate(spoken.lines) if index in shown or is_native(line)]


def of_who_left(
    spoken: SpokenText, exceptions: Sequence[Raised], others: Sequence[int], shows: OfException
) -> Raised | None:
    """Return what the one rank which left said, as an exception without a traceback; None if there isn't one.

    `others`: as above, at least one, in order. `shows` knows which words are a reason.
    """
    lines = spoken.without_names()
    loud = {rank for raised in exceptions for rank in raised.ranks}
    loud |= {rank for index in others for rank in spoken.by[index].ranks}
    last: dict[Rank, list[int]] = {}
    for index, ranks in enumerate(map(ranks_of, spoken.lines, spoken.by)):
        news = is_news(lines[index])  # torch's threads may go on after the program
        if len(ranks) == 1 and news and not spoken.by[index].agent and not loud & set(ranks):
            last.setdefault(*ranks, []).append(index)
    found = [
        Raised(said, index, (rank,), True, frozenset((index,)))
        for rank, own in last.items()
        for index in own[-1 - _AFTER :]
        if index < others[-1] and (said := _said(lines[index], shows))
    ]
    awaited = {rank for raised in exceptions if (rank := shows(raised.info).awaited) is not None}
    found = [each for each in found if not awaited or awaited & set(each.ranks)]
    if len({each.ranks for each in found}) != 1:
        return None
    went_on = WentOn(lines, silent=set(others))
    return next((each for each in found if not went_on.between(each.index, others[-1])), None)


def of_no_rank(
    spoken: SpokenText, nobodys: Sequence[Raised], others: Sequence[int], shows: OfException
) -> Raised | None:
    """Return the last of these exceptions, which name no rank, before the others gave up; if there is none, the line
    before them."""
    early = [raised for raised in nobodys if raised.index < others[-1]]
    causes = [raised for raised in early if not HANDLED.search(spoken.lines[raised.index])]
    kinds = (Shows.A_CAUSE, Shows.NO_CAUSE)
    own = [raised for raised in causes if shows(raised.info).what in kinds and not by_others(raised.info)]
    return own[-1] if own else _last_words(spoken, others[0], shows)


def _last_words(spoken: SpokenText, end: int, shows: OfException) -> Raised | None:
    """Return the last line before `end`, if it names no rank, and says who leaves and why."""
    lines = spoken.without_names()
    index = next((k for k in range(end - 1, -1, -1) if is_news(lines[k]) and not spoken.by[k].agent), -1)
    if index < 0 or spoken.by[index].ranks or not _LEAVES.search(lines[index]):
        return None
    said = _said(lines[index], shows)
    return None if said is None else Raised(said, index, (), True, frozenset((index,)))


def _said(line: str, shows: OfException) -> ExceptionInfo | None:
    if HANDLED.search(line):
        return None
    logged = LOGGERS.match(line)
    said = line.strip() if logged is None else line[logged.end() :].lstrip("]):| ").rstrip()
    raised = _RAISED.search(said) or _REPR.search(said) or _IN_BRACKETS.search(said)
    if raised is not None:
        own = ExceptionInfo(raised["type"], raised["message"].strip(), None, None, None, "")
        return None if by_others(own) or shows(own).what in (Shows.A_LOSS, Shows.A_WAIT) else own
    hit = _NO_MODULE.search(said)
    if hit is not None:
        return ExceptionInfo("ModuleNotFoundError", hit[0], None, None, None, "")
    hit = _SAID.search(said)
    if hit is not None:
        number = _NUMBERS[hit[1].lower()]
        words = f"{said}\n{_WORDS[number]}"  # rules may not know other words for it
        return ExceptionInfo(type(OSError(number, "")).__name__, words, None, None, None, "")
    if _NATIVES.search(said):
        return None
    info = ExceptionInfo("RuntimeError", said, None, None, None, "")
    return info if shows(info).what is Shows.A_CAUSE else None
