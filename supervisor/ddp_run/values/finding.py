"""What a check of the doctor found: a value, what it was judged against, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from ddp_run.values.typed_fields import frozen


class Grade(StrEnum):
    """`fail` only where jobs cannot work; `warn` where they may be slow, or end early."""

    PASS = "pass"  # noqa: S105 - no password
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@frozen
class Finding:
    """One thing that was looked at."""

    looked_at: str
    value: str
    grade: Grade = Grade.PASS
    against: str = ""
    """What the value is judged against, or why it was skipped."""
    advice: tuple[str, ...] = ()
    """What to do, best first; commands that can be pasted."""
    detail: tuple[str, ...] = ()
    """Lines for people, below it: a table."""
    data: tuple[Mapping[str, Any], ...] = ()
    """The same for programs."""


def warned(looked_at: str, value: str, against: str = "", *advice: str, detail: Iterable[str] = ()) -> Finding:
    """Jobs may be slow, or end early."""
    return Finding(looked_at, value, Grade.WARN, against, advice, tuple(detail))


def failed(looked_at: str, value: str, against: str = "", *advice: str, detail: Iterable[str] = ()) -> Finding:
    """Jobs cannot work."""
    return Finding(looked_at, value, Grade.FAIL, against, advice, tuple(detail))


def skipped(looked_at: str, why: str, *advice: str) -> Finding:
    """It was not looked at, or could not be."""
    return Finding(looked_at, "not checked", Grade.SKIPPED, why, advice)
