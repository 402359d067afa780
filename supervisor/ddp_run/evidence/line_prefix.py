"""Finds the prefix of each line of one traceback, and strips it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_DIGITS = re.compile(r"\d+")
_GROUP_ROW = re.compile(r"^\s+[|+]")
_PREFIX_CHARS = 400


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of each line of one traceback; its numbers (times, percentages) may change.

    `group`: the same for the lines around an exception group, if it is part of one.
    """

    before: re.Pattern[str]
    group: re.Pattern[str] | None = None

    @classmethod
    def of(cls, before: str, following: Sequence[str]) -> Prefix:
        """Build it from the text before the header, or the end of it, that the next lines have, too: a progress bar's
        rest is not repeated."""
        before = _repeated(before.removesuffix("Original "), following)
        base = before.removesuffix("  + ")
        grouped = base != before
        prefix = cls(_numbers_apart(f"{base}  | " if grouped else base), _numbers_apart(base) if grouped else None)
        has_one = len(base) <= _PREFIX_CHARS and any(prefix.strip(line) is not None for line in following)
        return prefix if has_one else cls(_numbers_apart(""), prefix.group)

    def strip(self, line: str) -> str | None:
        """Return the line without the prefix, None if it has a different one."""
        hit = self.before.match(line)
        return None if hit is None else line[hit.end() :]

    def of_member(self, line: str) -> str | None:
        """Return a line of an exception group, drawn with `|` and `+`; in other tracebacks, what `strip` does."""
        if self.group is None:
            return self.strip(line)
        hit = self.group.match(line)
        return line[hit.end() :] if hit is not None and _GROUP_ROW.match(line[hit.end() :]) is not None else None


def _repeated(before: str, following: Sequence[str]) -> str:
    """Return the end of the text that a frame in the next lines begins with, else all of it."""
    shown = (line.partition('  File "') for line in following)
    begun = next((begin for begin, found, _ in shown if found and begin.strip()), "")
    end = re.compile(f"{_numbers_apart(begun).pattern}$").search(before) if begun else None
    return end[0] if end is not None else before


def _numbers_apart(prefix: str) -> re.Pattern[str]:
    return re.compile(r"\d+".join(map(re.escape, _DIGITS.split(prefix))))
