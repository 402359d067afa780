"""A Verdict as terminal text: the block, and the short form before a retry.

The text is the same with and without colour. Nothing quoted here can move the cursor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from ddp_run.evidence.model import Quote
from ddp_run.judge.verdict import Collateral, FirstFailure, Outcome, Verdict
from ddp_run.record.events import Rank
from ddp_run.tell.quotation import by_place, cut, quoted, source_line
from ddp_run.values.lines import neutral
from ddp_run.values.redaction import redact
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import named_ranks

SourceLine = Callable[[str, int], str | None]
"""Gets the text at (file, line number from 1), or None."""

_SAID: Final[dict[Outcome | None, tuple[str, str]]] = {
    None: ("note", "no failure found in this log"),
    "succeeded": ("ok", "all ranks exited with code 0"),
    "failed": ("error", "the job failed with exit code {}"),
    "hung": ("error", "the job hung"),
    "interrupted": ("interrupted", "the job was stopped from outside"),
    "refused": ("error", "nothing was started"),
}
"""A block's first word, and its text if the verdict has no title."""
_PHASE: Final = {
    "launch": "while starting",
    "before-init": "before init_process_group",
    "init": "in init_process_group",
    "after-init": "after init_process_group",
    "training": "during training",
    "shutdown": "while shutting down",
}
_COLOUR: Final = {
    "error": "1;31",
    "interrupted": "1;33",
    "ok": "1;32",
    "help": "1;36",
    "arrow": "1;34",
}
_MAX_QUOTE: Final = 400
_BLOCK: Final = 15
"""Lines of a block, if its quotations can be shortened that much."""
_LEAST_QUOTE: Final = 6
"""Lines of a traceback that are always shown: the innermost frames and the exception."""


def verdict_block(
    verdict: Verdict,
    *,
    folder: Path,
    attempts: int,
    decision: str | None = None,
    colour: bool = False,
    width: int = 100,
    wrap: int | None = None,
    read_line: SourceLine = source_line,
) -> str:
    """The verdict for people, without a final newline; empty if there's nothing to say.

    `attempts` were made, and the verdict is about the last. `decision` says whether it is retried ("not retried: …").
    `width` (columns) only shortens quotations; `wrap` is a terminal's width, at which longer lines are broken.
    """
    if verdict.outcome == "succeeded" and attempts == 1 and not verdict.notes:
        return ""
    block = _Block(verdict, attempts, folder, colour, width, wrap)
    return _laid_out(block.rows(decision, read_line), wrap)


def headline(verdict: Verdict, attempts: int) -> str:
    """The block's first line, also for a verdict that needs no block."""
    return _laid_out([_Block(verdict, attempts, Path(), False, 100, None).headline()], None)


def two_lines(verdict: Verdict, *, host: str, folder: str, colour: bool = False, wrap: int | None = None) -> str:
    """What happened, and where the whole block is: for all nodes except the one that prints it."""
    block = _Block(verdict, 1, Path(), colour, 100, wrap)
    where = _Row(block.arrow, f"full verdict on {neutral(host)}: {neutral(folder)}", parts=_clauses)
    return _laid_out([block.headline(), where], wrap)


def retry_line(verdict: Verdict, *, delay_s: float, attempt: int, attempts: int, reason: str) -> str:
    """Two lines before another attempt: what happened, and what comes next.

    `attempt` is the next one, counted from 1, of at most `attempts`.
    """
    when = f"in {delay_s:.3g} s" if delay_s else "now"
    coming = f"ddp-run: retrying {when} (attempt {attempt} of {attempts}): {neutral(reason)}"
    return f"{attempt_line(verdict)}\n{coming}"


def attempt_line(verdict: Verdict) -> str:
    """How an attempt ended that another one follows."""
    code = f"[{verdict.code}]" if verdict.code else ""
    return f"warning{code}: {neutral(verdict.title or 'the attempt failed')}"


# --------------------------------------------------------------------------------------------- the block


@final
@dataclass(frozen=True, slots=True)
class _Block:
    verdict: Verdict
    attempts: int
    folder: Path
    colour: bool
    width: int
    wrap: int | None

    def rows(self, decision: str | None, read_line: SourceLine) -> list[_Row]:
        verdict = self.verdict
        rows = [self.headline(), *self._where(read_line)]
        note = f"   {self._paint('arrow', '=')} note: "
        ending = [_Row(note, said, " " * 11, _words) for said in _notes(verdict, decision)]
        ending += self._helps(verdict.advice)
        if verdict.cause is not None and verdict.outcome != "interrupted":
            ending += self._helps((f"ddp-run rules {verdict.cause}   # more on this cause",))
        raised = verdict.first_failure.exception if verdict.first_failure else None
        places = by_place(verdict.evidence)
        for index, quotes in enumerate(places):
            others = sum(1 + len(other) for other in places[index + 1 :])
            room = _BLOCK - len(rows) - 1 - others - len(ending)
            rows += self._quotation(quotes[0], quoted(quotes, raised, max(room, _LEAST_QUOTE)))
        return rows + ending

    def headline(self) -> _Row:
        verdict = self.verdict
        word, plain = _SAID[verdict.outcome]
        code = f"[{verdict.code}]" if verdict.code else ""
        if verdict.outcome == "succeeded" and self.attempts > 1:
            plain += f", in attempt {self.attempts}"
        title = neutral(verdict.title or plain.format(verdict.exit_code))
        if verdict.outcome == "interrupted" and verdict.phase is not None:
            title += f" {_PHASE[verdict.phase]}" + (f", after step {verdict.step}" if verdict.step is not None else "")
        likely = " (likely)" if verdict.confidence == "likely" and "likely" not in title else ""
        return _Row(f"{self._paint(word, word + code)}: ", title + likely, parts=_words)

    def _where(self, read_line: SourceLine) -> Iterator[_Row]:
        """Which rank, where in the user's code, and that line of code."""
        first = self.verdict.first_failure
        if first is None:
            return
        exception, who = first.exception, self._who(first)
        if exception is None or exception.file is None:
            yield _Row(self.arrow, who, parts=_clauses)
            return
        place = neutral(exception.file) + (f":{exception.line}" if exception.line is not None else "")
        if exception.function and exception.function != "<module>":
            place += f" in {neutral(exception.function)}"
        yield _Row(self.arrow, f"{place}   {who}", parts=_clauses)
        code = None if exception.line is None else read_line(exception.file, exception.line)
        if code is not None and code.strip() and exception.line is not None:
            yield from self._excerpt(exception.line, code)

    def _who(self, first: FirstFailure) -> str:
        verdict = self.verdict
        node = "a rank" if first.node_rank is None else f"node {first.node_rank}"
        who = node if first.rank is None else f"rank {first.rank}"
        parts = (
            who + (f" on {neutral(first.host)}" if first.host else ""),
            _if(first.pid, "pid {}"),
            f"killed by {first.signal}" if first.signal else _if(first.exit_code, "exit code {}"),
            f"attempt {self.attempts}" if self.attempts > 1 else "",
            _if(verdict.step, "after step {}"),
            "" if verdict.phase is None else _PHASE[verdict.phase],
            _if(verdict.call, "in {}"),
        )
        return ", ".join(filter(None, parts))

    def _excerpt(self, number: int, code: str) -> list[_Row]:
        text = neutral(redact(code.rstrip("\r\n").expandtabs(4))).rstrip()
        indent = len(text) - len(text.lstrip())
        margin = " " * max(3, len(str(number)) + 1)
        limit = max(40, min(_MAX_QUOTE, self.width - 8))
        if self.wrap is not None and len(text) > self.wrap - len(margin) - 2:
            limit = max(20, self.wrap - len(margin) - 2 - len(cut(text, 0)))
        return [
            _Row(f"{margin}{self._bar}"),
            _Row(f"{str(number).ljust(len(margin))}{self._bar} ", cut(text, limit)),
            _Row(f"{margin}{self._bar} {' ' * indent}{self._paint('error', '^')}"),
        ]

    def _quotation(self, first: Quote, lines: list[str]) -> list[_Row]:
        elsewhere = ":/" in first.source or "/" not in first.source  # on another node; the kernel's counters
        source = neutral(first.source if elsewhere else str(self.folder / first.source))
        address = source if first.line is None else f"{source}:{first.line}"
        limit = max(60, min(_MAX_QUOTE, 3 * self.width))
        under = f"   {self._bar}     "
        shown = [cut(neutral(line.rstrip()), limit) for line in lines]
        # A traceback's lines of source, and the marks below them, stay together.
        rows = [_Row(f"   {self._bar} ", line, under, None if line.startswith("    ") else _words) for line in shown]
        return [_Row(f"{self.arrow}{address}"), *rows]

    def _helps(self, advised: Iterable[str]) -> list[_Row]:
        heads = (f"{self._paint('help', 'help')}: ", "      ")
        return [
            _advice(heads[min(index, 1)], neutral(part))
            for text in advised
            for index, part in enumerate(text.splitlines())
        ]

    @property
    def arrow(self) -> str:
        return f"  {self._paint('arrow', '-->')} "

    @property
    def _bar(self) -> str:
        return self._paint("arrow", "|")

    def _paint(self, kind: str, text: str) -> str:
        return f"\x1b[{_COLOUR[kind]}m{text}\x1b[0m" if self.colour else text


def _if(value: object, text: str) -> str:
    """The text with the value, or nothing without one."""
    return "" if value is None else text.format(value)


def _notes(verdict: Verdict, decision: str | None) -> list[str]:
    notes = [_collateral(verdict)] if verdict.collateral else []
    lost = verdict.time.lost_words if verdict.time is not None else None
    return notes + [neutral(note) for note in (*verdict.notes, lost, decision) if note]


def _collateral(verdict: Verdict) -> str:
    """One sentence for all ranks that followed, however many."""
    reasons: dict[str, list[Rank | None]] = {}
    for other in verdict.collateral:
        reasons.setdefault(other.reason, []).append(other.rank)
    ranks = [other.rank for other in verdict.collateral]
    of_many = ((why.replace(" its ", " their ") if len(who) > 1 else why, who) for why, who in reasons.items())
    shown = [(why, who) for why, who in of_many if why][:3]
    if len(reasons) == 1:
        why = f" ({neutral(shown[0][0])})" if shown else ""
    else:
        told = [f"{_ranks(who)} {neutral(why)}" for why, who in shown]
        told += ["…"] if len(reasons) > len(shown) else []
        why = f" ({'; '.join(told)})" if told else ""
    one = len(ranks) == 1
    who = _ranks(ranks, other=verdict.first_failure is not None)
    return f"{who} {_ended(verdict.collateral)}{why}; {'it is' if one else 'they are'} not the cause"


def _ended(collateral: tuple[Collateral, ...]) -> str:
    """How all of them ended, if they ended the same way."""
    ends = {other.signal or other.exit_code for other in collateral}
    end = ends.pop()
    if ends or end is None:
        return "exited"
    if isinstance(end, str):
        return f"{'was' if len(collateral) == 1 else 'were'} killed by {end}"
    return f"exited with code {end}"


def _ranks(ranks: Collection[Rank | None], *, other: bool = True) -> str:
    """`other`: another rank was named before."""
    known = [rank for rank in ranks if rank is not None]
    if known:
        return named_ranks(known)
    if len(ranks) == 1:
        return "another rank" if other else "a rank"
    return f"{len(ranks)} other ranks" if other else f"{len(ranks)} ranks"


# ------------------------------------------------------------------ broken between words on a terminal


@frozen
class _Row:
    """One line. `head` may be coloured; `under` precedes what is broken off, `comment` follows a command."""

    head: str
    text: str = ""
    under: str = "      "
    parts: Callable[[str], Iterable[str]] | None = None
    """Cuts the text into unbreakable parts, each with the blanks behind it; None: the line is never broken."""
    comment: str = ""


_COMMENT: Final = "   # "
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_GAP: Final = re.compile(r" {3}|(?<=[,;:.]) ")


def _words(text: str) -> Iterator[str]:
    """Prose: may be broken at every blank."""
    return (found[0] for found in re.finditer(r"\s*\S+\s*", text))


def _clauses(text: str) -> Iterator[str]:
    """May contain a path or a command to paste: broken only at a gap or behind punctuation, outside quotes."""
    begin = 0
    for gap in _GAP.finditer(text):
        if all(text.count(quote, 0, gap.start()) % 2 == 0 for quote in "'\"`"):
            yield text[begin : gap.end()]
            begin = gap.end()
    yield text[begin:]


def _advice(head: str, text: str) -> _Row:
    """Prose, or a command with a comment, which goes below if it doesn't fit behind the command."""
    said, _, comment = text.partition(_COMMENT)
    return _Row(head, said, parts=_clauses, comment=comment)


def _laid_out(rows: Iterable[_Row], width: int | None) -> str:
    """The rows, those of more than `width` columns broken (None: none), without a final newline."""
    return "\n".join(line for row in rows for line in _lines(row, width))


def _lines(row: _Row, width: int | None) -> Iterator[str]:
    whole = row.head + row.text + (_COMMENT + row.comment if row.comment else "")
    if width is None or row.parts is None or len(_ESCAPES.sub("", whole)) <= width:
        yield whole
        return
    head, line = row.head, ""
    for part in row.parts(row.text):
        if line and len(_ESCAPES.sub("", head + (line + part).rstrip())) > width:
            yield head + line.rstrip()
            head, line = row.under, ""
        line += part
    yield head + line
    if row.comment:
        mark = f"{row.under}# "
        yield from _lines(_Row(mark, row.comment, mark, _words), width)
