"""Finds the rank that printed a few words and left, while all others only report that they lost it. Pure.

Many programs catch what goes wrong, print one line and exit. Their peers then fill the log.
"""

from __future__ import annotations

import builtins
import errno
import re
from collections.abc import Sequence

from ddp_run.evidence.pasted.raised import Raised
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.went_on import is_native
from ddp_run.record.events import ExceptionInfo, Rank

_RAISED = re.compile(
    r"(?<![\w.])(?P<type>(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)): (?P<message>[^\n]{1,400})"
)
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

    `exceptions`: those of the ranks that lost it.
    """
    shown = {index for raised in exceptions for index in raised.lines}
    others = [index for index, line in enumerate(spoken.lines) if index in shown or is_native(line)]
    if not others:
        return None
    loud = {rank for raised in exceptions for rank in raised.ranks}
    loud |= {rank for index in others for rank in spoken.by[index].ranks}
    last: dict[Rank, list[int]] = {}
    for index, each in enumerate(spoken.by):
        if len(each.ranks) == 1 and not each.agent and each.ranks[0] not in loud:
            last.setdefault(each.ranks[0], []).append(index)
    found = [
        Raised(said, index, (rank,), True, frozenset((index,)))
        for rank, own in last.items()
        for index in own[-1 - _AFTER :]
        if index < others[-1] and (said := _said(spoken.lines[index][spoken.by[index].start :]))
    ]
    return found[0] if len({each.ranks for each in found}) == 1 else None


def _said(line: str) -> ExceptionInfo | None:
    raised = _RAISED.search(line)
    if raised is not None:
        known = getattr(builtins, raised["type"], None)
        if isinstance(known, type) and issubclass(known, _BY_OTHERS):
            return None
        return ExceptionInfo(raised["type"], raised["message"].strip(), None, None, None, "")
    hit = _SAID.search(line)
    if hit is None:
        return None
    return ExceptionInfo(type(OSError(_NUMBERS[hit[1].lower()], "")).__name__, line.strip(), None, None, None, "")
