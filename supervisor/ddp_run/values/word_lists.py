"""Words and forms that grow by the line, from the text files beside this module."""

from __future__ import annotations

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
