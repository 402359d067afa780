"""What checks found: values, what they were judged against and what to do; as a table, a log's lines or JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from ddp_run.values.lines import neutral_text
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


# ------------------------------------------------------------------------------------------------ shown

_COLOURS = {"pass": "\033[32m", "warn": "\033[33;1m", "fail": "\033[31;1m", "skipped": "\033[2m"}
_PLAIN = "\033[0m"
_NAME_COLUMNS = 26
_INDENT = 9
"""Columns before a name: two spaces and the grade."""
_MARKS = {"skipped": "skip"}


@frozen
class Row:
    """A finding, and the check that found it."""

    check: str
    group: str
    found: Finding


def is_fit(rows: Sequence[Row]) -> bool:
    """Return whether nothing failed."""
    return not any(row.found.grade is Grade.FAIL for row in rows)


def heading(group: str, *, colour: bool) -> str:
    """Return the line above the rows of a group."""
    return f"\033[1m{group}{_PLAIN}\n" if colour else f"{group}\n"


def table_rows(row: Row, *, width: int, colour: bool) -> str:
    """Return a row of the table, and what belongs under it: reasons, advice, and its own table."""
    found = row.found
    mark = f"{_MARKS.get(found.grade, found.grade):<7}"
    shown = f"{_COLOURS[found.grade]}{mark}{_PLAIN}" if colour else mark
    name = neutral_text(found.looked_at)
    is_pass = found.grade is Grade.PASS
    value = found.against if found.grade is Grade.SKIPPED else found.value
    texts = _wrapped(f"{value} ({found.against})" if is_pass and found.against else value, width)
    if len(name) > _NAME_COLUMNS:
        lines = [f"  {shown}{name}", *texts]
    else:
        first, *rest = texts or [""]
        lines = [f"  {shown}{name:<{_NAME_COLUMNS}}{first[_INDENT + _NAME_COLUMNS :]}", *rest]
    if found.grade in (Grade.WARN, Grade.FAIL):
        lines += _wrapped(found.against, width)
    lines += [" " * (_INDENT + 2) + neutral_text(line) for line in found.detail]
    for number, advice in enumerate(() if is_pass else found.advice):
        lines.append(" " * _INDENT + ("help: " if number == 0 else "      ") + neutral_text(advice))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _wrapped(text: str, width: int) -> list[str]:
    before = " " * (_INDENT + _NAME_COLUMNS)
    return textwrap.wrap(
        neutral_text(text), max(width, 70), initial_indent=before, subsequent_indent=before, break_on_hyphens=False
    )


def plain_lines(row: Row, node: str = "") -> str:
    """Return a finding for a log: one line, then its table. Each line has a prefix, and names the node if there are
    several: lines of other programs and nodes stand beside it."""
    before, found = _prefix(node), row.found
    advice = f"; help: {'; '.join(found.advice)}" if found.advice and found.grade is not Grade.PASS else ""
    against = f" ({found.against})" if found.against else ""
    value = found.against if found.grade is Grade.SKIPPED else f"{found.value}{against}"
    line = f"{before}: {found.grade}: {found.looked_at}: {value}{advice}"
    lines = [line, *(f"{before}:   {each}" for each in found.detail)]
    return "".join(f"{neutral_text(each)}\n" for each in lines)


def _prefix(node: str) -> str:
    return f"ddp-run doctor: {node}" if node else "ddp-run doctor"


def summary(grades: Sequence[Grade], seconds: float, node: str = "") -> str:
    """Return the last line."""
    counts = {grade: grades.count(grade) for grade in (Grade.FAIL, Grade.WARN, Grade.PASS, Grade.SKIPPED)}
    warnings = "warning" if counts[Grade.WARN] == 1 else "warnings"
    words = {Grade.FAIL: "failed", Grade.WARN: warnings, Grade.PASS: "passed", Grade.SKIPPED: "skipped"}
    shown = ", ".join(f"{count} {words[grade]}" for grade, count in counts.items() if count)
    fit = "unfit" if counts[Grade.FAIL] else "fit"
    return f"{_prefix(node)}: {fit}: {shown} in {seconds:.1f} s\n"


def as_json(rows: Sequence[Row], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of schema 1. `about`: the level, the host, the launch."""
    findings = [
        {
            "check": row.check,
            "group": row.group,
            "looked_at": neutral_text(row.found.looked_at),
            "value": neutral_text(row.found.value),
            "grade": row.found.grade,
            "against": neutral_text(row.found.against) or None,
            "advice": [neutral_text(advice) for advice in row.found.advice],
            "data": list(row.found.data),
        }
        for row in rows
    ]
    return {"schema": 1, **about, "fit": is_fit(rows), "findings": findings}
