"""What `ddp-run doctor` prints: a table on a terminal, a line for each finding in a log, JSON for programs. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.values.finding import Finding, Grade
from ddp_run.values.lines import neutral_text
from ddp_run.values.typed_fields import frozen

_COLOURS = {"pass": "\033[32m", "warn": "\033[33;1m", "fail": "\033[31;1m", "skipped": "\033[2m"}
_PLAIN = "\033[0m"
_NAME_COLUMNS = 26
_INDENT = 9
"""Columns before a name: two blanks and the longest grade that is shown."""
_MARKS = {"skipped": "skip"}


@frozen
class Row:
    """A finding, and the check that it is of."""

    check: str
    group: str
    found: Finding


def heading(group: str, *, colour: bool) -> str:
    """Above the rows of a group."""
    return f"\033[1m{group}{_PLAIN}\n" if colour else f"{group}\n"


def table_rows(row: Row, *, width: int, colour: bool) -> str:
    """A row of the table, and what belongs under it: reasons and advice where it is not a pass, and its own table."""
    mark = f"{_MARKS.get(row.found.grade, row.found.grade):<7}"
    shown = f"{_COLOURS[row.found.grade]}{mark}{_PLAIN}" if colour else mark
    name = neutral_text(row.found.looked_at)
    lines = []
    if len(name) > _NAME_COLUMNS:
        lines += [f"  {shown}{name}", *_wrapped(_value(row.found), width)]
    else:
        first, *rest = _wrapped(_value(row.found), width) or [""]
        lines += [f"  {shown}{name:<{_NAME_COLUMNS}}{first[_INDENT + _NAME_COLUMNS :]}", *rest]
    if row.found.against and row.found.grade in (Grade.WARN, Grade.FAIL):
        lines += _wrapped(row.found.against, width)
    lines += [" " * (_INDENT + 2) + neutral_text(line) for line in row.found.detail]
    for number, advice in enumerate(row.found.advice if row.found.grade is not Grade.PASS else ()):
        lines.append(" " * _INDENT + ("help: " if number == 0 else "      ") + neutral_text(advice))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _value(found: Finding) -> str:
    if found.grade is Grade.SKIPPED:
        return found.against
    return f"{found.value} ({found.against})" if found.against and found.grade is Grade.PASS else found.value


def _wrapped(text: str, width: int) -> list[str]:
    before = " " * (_INDENT + _NAME_COLUMNS)
    return textwrap.wrap(
        neutral_text(text), max(width, 70), initial_indent=before, subsequent_indent=before, break_on_hyphens=False
    )


def plain_lines(row: Row, node: str = "") -> str:
    """For a log: all of a finding in one line, its table behind it. Each has the prefix, as other programs' lines and
    those of other nodes stand beside it; `node` names this one of several."""
    before = _prefix(node)
    advice = f"; help: {'; '.join(row.found.advice)}" if row.found.advice and row.found.grade is not Grade.PASS else ""
    against = f" ({row.found.against})" if row.found.against else ""
    value = row.found.against if row.found.grade is Grade.SKIPPED else f"{row.found.value}{against}"
    line = f"{before}: {row.found.grade}: {row.found.looked_at}: {value}{advice}"
    lines = [line, *(f"{before}:   {each}" for each in row.found.detail)]
    return "".join(f"{neutral_text(each)}\n" for each in lines)


def _prefix(node: str) -> str:
    return f"ddp-run doctor: {node}" if node else "ddp-run doctor"


def summary(grades: Sequence[Grade], seconds: float, node: str = "") -> str:
    """The last line."""
    counts = {grade: grades.count(grade) for grade in (Grade.FAIL, Grade.WARN, Grade.PASS, Grade.SKIPPED)}
    warnings = "warning" if counts[Grade.WARN] == 1 else "warnings"
    words = {Grade.FAIL: "failed", Grade.WARN: warnings, Grade.PASS: "passed", Grade.SKIPPED: "skipped"}
    shown = ", ".join(f"{count} {words[grade]}" for grade, count in counts.items() if count)
    fit = "unfit" if counts[Grade.FAIL] else "fit"
    return f"{_prefix(node)}: {fit}: {shown} in {seconds:.1f} s\n"


def as_json(rows: Sequence[Row], about: Mapping[str, Any]) -> dict[str, Any]:
    """Schema 1. `about`: what was looked at, and how."""
    return {
        "schema": 1,
        **about,
        "fit": not any(row.found.grade is Grade.FAIL for row in rows),
        "findings": list(_objects(rows)),
    }


def _objects(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {
            "check": row.check,
            "group": row.group,
            "looked_at": neutral_text(row.found.looked_at),
            "value": neutral_text(row.found.value),
            "grade": row.found.grade,
            "against": neutral_text(row.found.against) or None,
            "advice": [neutral_text(advice) for advice in row.found.advice],
            "data": list(row.found.data),
        }
