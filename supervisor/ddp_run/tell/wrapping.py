"""Lines of ddp-run's own on a terminal: broken between words, where what people paste stays whole. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ddp_run.values.typed_fields import frozen

_COMMENT: Final = "   # "
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_GAP: Final = re.compile(r" {3}|(?<=[,;:.]) ")


@frozen
class Row:
    """One line: `head` may be coloured; `under` stands before what is broken off, `comment` behind a command."""

    head: str
    text: str = ""
    under: str = "      "
    parts: Callable[[str], Iterable[str]] | None = None
    """Cuts the text into what is not to be broken, each with the blanks behind it; null: never broken."""
    comment: str = ""


def words(text: str) -> Iterator[str]:
    """Prose: it may be broken at every blank."""
    return (found[0] for found in re.finditer(r"\s*\S+\s*", text))


def clauses(text: str) -> Iterator[str]:
    """What may hold a path or a command: broken only at a gap, or behind a punctuation mark, outside of quotes."""
    begin = 0
    for gap in _GAP.finditer(text):
        if all(text.count(quote, 0, gap.start()) % 2 == 0 for quote in "'\"`"):
            yield text[begin : gap.end()]
            begin = gap.end()
    yield text[begin:]


def advice(head: str, text: str) -> Row:
    """A command and what is said of it, or prose. A comment goes below where there is no room behind the command."""
    said, _, comment = text.partition(_COMMENT)
    return Row(head, said, parts=clauses, comment=comment)


def laid_out(rows: Iterable[Row], width: int | None) -> str:
    """The rows without a last line feed. Those of more than `width` columns are broken; null: none."""
    return "\n".join(line for row in rows for line in _lines(row, width))


def _lines(row: Row, width: int | None) -> Iterator[str]:
    whole = row.head + row.text + (_COMMENT + row.comment if row.comment else "")
    if width is None or row.parts is None or _columns(whole) <= width:
        yield whole
        return
    head, line = row.head, ""
    for part in row.parts(row.text):
        if line and _columns(head + (line + part).rstrip()) > width:
            yield head + line.rstrip()
            head, line = row.under, ""
        line += part
    yield head + line
    if row.comment:
        mark = f"{row.under}# "
        yield from _lines(Row(mark, row.comment, mark, words), width)


def _columns(text: str) -> int:
    return len(_COLOUR.sub("", text))
