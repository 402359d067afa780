"""Words and forms that grow by the line, from the text files beside this module."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def rows(name: str) -> list[str]:
    """The lines of a list, without comments and blank ones."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def sections(name: str) -> dict[str, list[str]]:
    """Of a list with `[headings]`, the lines below each."""
    found: dict[str, list[str]] = {}
    heading: list[str] = []
    for row in rows(name):
        if row.startswith("["):
            heading = found.setdefault(row.strip("[]"), [])
        else:
            heading.append(row)
    return found


def any_of(words: Iterable[str]) -> str:
    """A pattern of the shortest of these words that stands at a place; by common beginnings, for speed."""
    by_first: dict[str, list[str]] = {}
    for word in words:
        by_first.setdefault(word[0], []).append(word[1:])
    choices = [re.escape(first) + ("" if "" in rest else any_of(rest)) for first, rest in sorted(by_first.items())]
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"
