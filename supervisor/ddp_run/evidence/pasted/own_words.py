"""Finds the rank that printed a few words and left, while all others only report that they lost or awaited it. Pure.

Many programs catch what goes wrong, print one line and exit. Their peers then fill the log.
"""

from __future__ import annotations

import builtins
import errno
import re
from collections.abc import Sequence

from ddp_run.evidence.pasted.raised import Raised
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.went_on import HANDLED, is_native, is_news
from ddp_run.record.events import ExceptionInfo, Rank

_RAISED = re.compile(
    r"(?<![\w.])(?P<type>(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)): (?P<message>[^\n]{1,400})"
)
_IN_BRACKETS = re.compile(
    r"(?P<message>[^\n]{1,400}?) \((?P<type>[A-Z]\w{0,60}(?:Error|Exception))(?:, [\w./\-]{1,100}:\d{1,9})?\)"
)
"""As loggers append it."""
_LOGGERS = re.compile(r"[\[\d][\d\-:.,T\]]{3,30}(?: [\d:.,\]]{5,20})? [\[(]?rank[ =:]?(?P<rank>\d{1,9})\b")
"""A rank that a program's logger names behind its time stamp."""
_LABEL = re.compile(r"[\w.\-]{1,80}\[\d{1,6}\]: ")
"""A host and a number, which is a rank's if torch names that one behind it."""
_BY_OTHERS = (ConnectionError, TimeoutError, InterruptedError, ChildProcessError)
"""Python's classes for what another process did."""
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
_SAID = re.compile(rf"\b({'|'.join(_NUMBERS)})\b", re.IGNORECASE)
_AFTER = 2
"""A program that leaves may say this many lines more."""


def of_who_left(spoken: SpokenText, exceptions: Sequence[Raised]) -> Raised | None:
    """Return what the one rank which left said, as an exception without a traceback; None if there isn't one.

    `exceptions`: those of the ranks that lost it. If there are none, the others waited, until native code gave up.
    """
    shown = {index for raised in exceptions for index in raised.lines}
    others = [index for index, line in enumerate(spoken.lines) if index in shown or is_native(line)]
    if not others:
        return None
    loud = {rank for raised in exceptions for rank in raised.ranks}
    loud |= {rank for index in others for rank in spoken.by[index].ranks}
    last: dict[Rank, list[int]] = {}
    for index, ranks in enumerate(_ranks(spoken)):
        news = is_news(spoken.lines[index][spoken.by[index].start :])  # torch's threads may go on after the program
        if len(ranks) == 1 and news and not spoken.by[index].agent and not loud & set(ranks):
            last.setdefault(*ranks, []).append(index)
    found = [
        Raised(said, index, (rank,), True, frozenset((index,)))
        for rank, own in last.items()
        for index in own[-1 - _AFTER :]
        if index < others[-1] and (said := _said(spoken.lines[index][spoken.by[index].start :]))
    ]
    return found[0] if len({each.ranks for each in found}) == 1 else None


def _ranks(spoken: SpokenText) -> list[tuple[Rank, ...]]:
    """Return the ranks of each line, those that only loggers or labels name, too."""
    labels = [hit[0] if (hit := _LABEL.match(line)) else "" for line in spoken.lines]
    behind: dict[str, set[tuple[Rank, ...]]] = {}
    for label, each in zip(labels, spoken.by, strict=True):
        behind.setdefault(label, set()).update([each.ranks] if label and each.ranks else ())
    found = []
    for line, label, each in zip(spoken.lines, labels, spoken.by, strict=True):
        named = None if each.ranks else _LOGGERS.match(line)
        of_label = next(iter(behind[label])) if len(behind[label]) == 1 else ()
        found.append(each.ranks or ((Rank(int(named["rank"])),) if named else of_label))
    return found


def _said(line: str) -> ExceptionInfo | None:
    if HANDLED.search(line):
        return None
    raised = _RAISED.search(line) or _IN_BRACKETS.search(line)
    if raised is not None:
        known = getattr(builtins, raised["type"], None)
        if isinstance(known, type) and issubclass(known, _BY_OTHERS):
            return None
        return ExceptionInfo(raised["type"], raised["message"].strip(), None, None, None, "")
    hit = _SAID.search(line)
    if hit is None:
        return None
    return ExceptionInfo(type(OSError(_NUMBERS[hit[1].lower()], "")).__name__, line.strip(), None, None, None, "")
