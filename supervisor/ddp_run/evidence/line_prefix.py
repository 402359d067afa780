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
    """The prefix of each line of one traceback; its numbers (times, percentages) may change. `parts`: the text between
    its numbers.
    """

    parts: tuple[str, ...] = ("",)
    group: Prefix | None = None

    @classmethod
    def of(cls, before: str, following: Sequence[str]) -> Prefix:
        """Build it from the text before the header, if the next lines have it, too (a progress bar's rest is not
        repeated)."""
        before = before.removesuffix("Original ")
        base = before.removesuffix("  + ")
        group = cls(_parts(base)) if base != before and len(base) <= _PREFIX_CHARS else None
        if group is not None:
            before = f"{base}  | "
        prefix = cls(_parts(before), group) if len(before) <= _PREFIX_CHARS else cls(("",), group)
        return prefix if any(prefix.strip(line) is not None for line in following) else cls(("",), group)

    def strip(self, line: str) -> str | None:
        """Return the line without the prefix, None if it has a different one."""
        first, *others = self.parts
        if not line.startswith(first):
            return None
        end = len(first)
        for part in others:
            number = _DIGITS.match(line, end)
            if number is None or not line.startswith(part, number.end()):
                return None
            end = number.end() + len(part)
        return line[end:]

    def of_member(self, line: str) -> str | None:
        """Return a line of an exception group, drawn with `|` and `+`; in other tracebacks, what `strip` does."""
        if self.group is None:
            return self.strip(line)
        rest = self.group.strip(line)
        return rest if rest is not None and _GROUP_ROW.match(rest) is not None else None


def _parts(prefix: str) -> tuple[str, ...]:
    return tuple(_DIGITS.split(prefix))
