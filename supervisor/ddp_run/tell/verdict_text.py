"""A Verdict as terminal text: the block, the last line for scripts, and the short form before a retry.

Text is the same with and without colour. Nothing quoted here can move the cursor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from itertools import islice
from pathlib import Path
from typing import Final

from ddp_run.evidence.model import Quote
from ddp_run.judge.verdict import Collateral, FirstFailure, Outcome, Verdict
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.tell import quoted_traceback
from ddp_run.tell.wrapping import Row, advice, clauses, laid_out, words
from ddp_run.values.lines import neutral
from ddp_run.values.redaction import redact
from ddp_run.values.words import named_ranks

SourceLine = Callable[[str, int], str | None]
"""The text of (file, line number from 1), or null."""

_WORD: Final[dict[Outcome | None, str]] = {
    None: "note",
    "succeeded": "ok",
    "failed": "error",
    "hung": "error",
    "interrupted": "interrupted",
    "refused": "error",
}
_COLOUR: Final = {
    "error": "1;31",
    "interrupted": "1;33",
    "warning": "1;33",
    "ok": "1;32",
    "help": "1;36",
    "arrow": "1;34",
}
_MAX_QUOTE: Final = 400
_BLOCK: Final = 15
"""Lines of a block, as far as its quotations can be shortened."""
_LEAST_QUOTE: Final = 6
"""Lines of a traceback that are always shown: the innermost frames and what was raised."""
_MOST_QUOTES: Final = 16
_UNSAFE: Final = re.compile(r"[^!-$&-~\u00a1-\u1fff\u2070-\u2fff\u3001-\ud7ff\ue000-\U0010ffff]")


def source_line(file: str, line: int) -> str | None:
    """Line `line` (from 1) of a Python program on disk; null where there is none to read."""
    if line < 1:
        return None
    try:
        path = Path(file)
        if not path.is_file():
            return None
        with path.open(encoding="utf-8", errors="replace") as lines:
            first = lines.readline(200)
            if not (file.endswith((".py", ".pyx", ".pyw")) or (first.startswith("#!") and "python" in first)):
                return None  # whoever wrote a log or a journal may name any file
            lines.seek(0)
            return next(islice(lines, line - 1, line), None)
    except (OSError, ValueError):
        return None


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
    """The verdict for people, without a final newline; empty where there is nothing to say.

    It is the last of `attempts` that were made. `decision` says in words what was decided about a retry ("not
    retried: …"). `width` in columns only shortens quotations; `wrap`: the terminal's, where longer lines are broken.
    """
    if verdict.outcome == "succeeded" and attempts == 1 and not verdict.notes:
        return ""
    paint = _painter(colour)
    lines = [_headline(verdict, attempts, paint)]
    lines += _where(verdict, attempts, read_line, (width, wrap), paint)
    note = f"   {paint('arrow', '=')} note: "
    ending = [Row(note, said, " " * 11, words) for said in _notes(verdict, decision)]
    ending += _helps(verdict.advice, paint)
    if verdict.cause is not None and verdict.outcome != "interrupted":
        ending += _helps((f"ddp-run rules {verdict.cause}   # more on this cause",), paint)
    raised = verdict.first_failure.exception if verdict.first_failure else None
    places = _by_place(verdict.evidence)
    for index, quotes in enumerate(places):
        others = sum(1 + len(other) for other in places[index + 1 :])
        room = _BLOCK - len(lines) - 1 - others - len(ending)
        lines += _quotation(quotes, _text(quotes, raised, max(room, _LEAST_QUOTE)), folder, width, paint)
    return laid_out([*lines, *ending], wrap)


def two_lines(verdict: Verdict, *, host: str, folder: str, colour: bool = False, wrap: int | None = None) -> str:
    """What happened, and where the whole block is: for all nodes but the one that prints it."""
    paint = _painter(colour)
    where = Row(f"  {paint('arrow', '-->')} ", f"whole verdict on {neutral(host)}: {neutral(folder)}", parts=clauses)
    return laid_out([_headline(verdict, 1, paint), where], wrap)


def verdict_line(verdict: Verdict, *, attempts: int | None, folder: Path | None) -> str:
    """The last line, for scripts: stable keys, values without blanks, `-` for what is not known.

    Blanks, control characters and `%` in values are percent-encoded (RFC 3986, bytes of UTF-8).
    """
    first = verdict.first_failure
    values = {
        "outcome": verdict.outcome,
        "cause": verdict.cause,
        "code": verdict.code,
        "rank": first.rank if first else None,
        "node": first.host if first else None,
        "exit": verdict.exit_code,
        "attempts": attempts,
        **({"restarts": verdict.restarts} if verdict.restarts else {}),
        "folder": folder,
    }
    return "ddp-run: verdict " + " ".join(f"{key}={_value(value)}" for key, value in values.items())


def retry_line(
    verdict: Verdict, *, delay_s: float, attempt: int, attempts: int, reason: str, colour: bool = False
) -> str:
    """Two lines for an attempt that is followed by another: what happened, what comes.

    `attempt` is the coming one, counted from 1 as people do, of at most `attempts`.
    """
    coming = f"ddp-run: retrying in {delay_s:.3g} s (attempt {attempt} of {attempts}): {neutral(reason)}"
    return f"{attempt_line(verdict, colour=colour)}\n{coming}"


def attempt_line(verdict: Verdict, *, colour: bool = False) -> str:
    """How an attempt ended that is not the last."""
    word = _painter(colour)("warning", "warning" + (f"[{verdict.code}]" if verdict.code else ""))
    return f"{word}: {neutral(verdict.title or 'the attempt failed')}"


def _painter(colour: bool) -> Callable[[str, str], str]:
    def paint(kind: str, text: str) -> str:
        return f"\x1b[{_COLOUR[kind]}m{text}\x1b[0m" if colour else text

    return paint


def _headline(verdict: Verdict, attempts: int, paint: Callable[[str, str], str]) -> Row:
    word = _WORD[verdict.outcome]
    code = f"[{verdict.code}]" if verdict.code else ""
    title = neutral(verdict.title or _plain_title(verdict, attempts))
    likely = " (likely)" if verdict.confidence == "likely" and "likely" not in title else ""
    return Row(f"{paint(word, word + code)}: ", f"{title}{_stopped_in(verdict)}{likely}", parts=words)


def _stopped_in(verdict: Verdict) -> str:
    """` during training, after step 1840`, of a job that was told to stop."""
    if verdict.outcome != "interrupted" or verdict.phase is None:
        return ""
    return f" {_PHASE[verdict.phase]}" + (f", after step {verdict.step}" if verdict.step is not None else "")


def _plain_title(verdict: Verdict, attempts: int) -> str:
    match verdict.outcome:
        case "succeeded":
            return "all ranks exited with code 0" + (f", in attempt {attempts}" if attempts > 1 else "")
        case "failed":
            return f"the job failed with exit code {verdict.exit_code}"
        case "hung":
            return "the job hung"
        case "interrupted":
            return "the job was stopped from outside"
        case "refused":
            return "nothing was started"
        case None:
            return "no failure found in this log"


def _where(
    verdict: Verdict,
    attempts: int,
    read_line: SourceLine,
    widths: tuple[int, int | None],
    paint: Callable[[str, str], str],
) -> list[Row]:
    """Which rank, where in the user's code, and that line of code."""
    first = verdict.first_failure
    if first is None:
        return []
    arrow = f"  {paint('arrow', '-->')} "
    who = _who(first, verdict, attempts)
    exception = first.exception
    if exception is None or exception.file is None:
        return [Row(arrow, who, parts=clauses)]
    place = neutral(exception.file) + (f":{exception.line}" if exception.line is not None else "")
    if exception.function and exception.function != "<module>":
        place += f" in {neutral(exception.function)}"
    lines = [Row(arrow, f"{place}   {who}", parts=clauses)]
    code = None if exception.line is None else read_line(exception.file, exception.line)
    if code is not None and code.strip() and exception.line is not None:
        lines += _excerpt(exception.line, code, widths, paint)
    return lines


def _who(first: FirstFailure, verdict: Verdict, attempts: int) -> str:
    node = "a rank" if first.node_rank is None else f"node {first.node_rank}"
    who = node if first.rank is None else f"rank {first.rank}"
    parts = [who + (f" on {neutral(first.host)}" if first.host else "")]
    if first.pid is not None:
        parts.append(f"pid {first.pid}")
    if first.signal:
        parts.append(f"killed by {first.signal}")
    elif first.exit_code is not None:
        parts.append(f"exit code {first.exit_code}")
    if attempts > 1:
        parts.append(f"attempt {attempts}")
    if verdict.step is not None:
        parts.append(f"after step {verdict.step}")
    if verdict.phase is not None:
        parts.append(_PHASE[verdict.phase])
    if verdict.call is not None:
        parts.append(f"in {verdict.call}")
    return ", ".join(parts)


_PHASE: Final = {
    "launch": "while starting",
    "before-init": "before init_process_group",
    "init": "in init_process_group",
    "after-init": "after init_process_group",
    "training": "during training",
    "shutdown": "while shutting down",
}


def _excerpt(number: int, code: str, widths: tuple[int, int | None], paint: Callable[[str, str], str]) -> list[Row]:
    text = neutral(redact(code.rstrip("\r\n").expandtabs(4))).rstrip()
    indent = len(text) - len(text.lstrip())
    margin = " " * max(3, len(str(number)) + 1)
    width, wrap = widths
    limit = max(40, min(_MAX_QUOTE, width - 8))
    if wrap is not None and len(text) > wrap - len(margin) - 2:
        limit = max(20, wrap - len(margin) - 2 - len(_cut(text, 0)))
    bar = paint("arrow", "|")
    return [
        Row(f"{margin}{bar}"),
        Row(f"{str(number).ljust(len(margin))}{bar} ", _cut(text, limit)),
        Row(f"{margin}{bar} {' ' * indent}{paint('error', '^')}"),
    ]


def _by_place(evidence: tuple[Quote, ...]) -> list[list[Quote]]:
    """Quotes in order; lines that follow each other in one file stand together, and so do those without a number."""
    places: list[list[Quote]] = []
    for quote in evidence:
        last = places[-1][-1] if places else None
        follows = (
            last is not None
            and last.source == quote.source
            and quote.line == (None if last.line is None else last.line + 1)
        )
        if follows:
            places[-1].append(quote)
        else:
            places.append([quote])
    return places


def _text(quotes: list[Quote], raised: ExceptionInfo | None, most: int) -> list[str]:
    """The quoted lines, at most so many; where they are the end of the traceback, what of it there is room for."""
    quoted = [quote.text for quote in quotes]
    traceback = raised.traceback.rstrip("\n").split("\n") if raised else []
    if len(traceback) < 3 or not quoted[-1].endswith(traceback[-1]):
        return quoted[: max(most, _MOST_QUOTES)]
    return quoted_traceback.short(traceback, most)


def _quotation(
    quotes: list[Quote], quoted: list[str], folder: Path, width: int, paint: Callable[[str, str], str]
) -> list[Row]:
    bar = paint("arrow", "|")
    first = quotes[0]
    elsewhere = ":/" in first.source or "/" not in first.source  # on another node; the kernel's counters
    source = neutral(first.source if elsewhere else str(folder / first.source))
    address = source if first.line is None else f"{source}:{first.line}"
    limit = max(60, min(_MAX_QUOTE, 3 * width))
    under = f"   {bar}     "
    shown = [_cut(neutral(line.rstrip()), limit) for line in quoted]
    # A traceback's lines of source, and the marks below them, stay together.
    rows = [Row(f"   {bar} ", line, under, None if line.startswith("    ") else words) for line in shown]
    return [Row(f"  {paint('arrow', '-->')} {address}"), *rows]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit].rstrip()}… ({len(text)} characters)"


def _notes(verdict: Verdict, decision: str | None) -> list[str]:
    notes = [_collateral(verdict)] if verdict.collateral else []
    notes += [neutral(note) for note in verdict.notes]
    if decision:
        notes.append(neutral(decision))
    return notes


def _collateral(verdict: Verdict) -> str:
    """One sentence for all ranks that followed, however many."""
    reasons: dict[str, list[Rank | None]] = {}
    for other in verdict.collateral:
        reasons.setdefault(other.reason, []).append(other.rank)
    ranks = [other.rank for other in verdict.collateral]
    shown = [(why, who) for why, who in reasons.items() if why][:3]
    if len(reasons) == 1:
        why = f" ({neutral(shown[0][0])})" if shown else ""
    else:
        told = [f"{_ranks(who)} {neutral(why)}" for why, who in shown]
        told += ["…"] if len(reasons) > len(shown) else []
        why = f" ({'; '.join(told)})" if told else ""
    one = len(ranks) == 1
    first = verdict.first_failure
    cause = "" if first is None else " as well" if first.rank is None else f" after rank {first.rank}"
    who = _ranks(ranks, other=first is not None)
    return f"{who} {_ended(verdict.collateral)}{cause}{why}; {'it is' if one else 'they are'} not the cause"


def _ended(collateral: tuple[Collateral, ...]) -> str:
    """How all of them ended, where that was the same way."""
    ends = {other.signal or other.exit_code for other in collateral}
    end = ends.pop()
    if ends or end is None:
        return "exited"
    if isinstance(end, str):
        return f"{'was' if len(collateral) == 1 else 'were'} killed by {end}"
    return f"exited with code {end}"


def _ranks(ranks: Collection[Rank | None], *, other: bool = True) -> str:
    """`other`: than one that is named before."""
    known = [rank for rank in ranks if rank is not None]
    if known:
        return named_ranks(known)
    if len(ranks) == 1:
        return "another rank" if other else "a rank"
    return f"{len(ranks)} other ranks" if other else f"{len(ranks)} ranks"


def _helps(advised: tuple[str, ...], paint: Callable[[str, str], str]) -> list[Row]:
    heads = (f"{paint('help', 'help')}: ", "      ")
    return [
        advice(heads[min(index, 1)], neutral(part)) for text in advised for index, part in enumerate(text.splitlines())
    ]


def _value(value: object) -> str:
    if value is None or value == "":
        return "-"

    def encoded(match: re.Match[str]) -> str:
        errors = "surrogateescape" if "\udc80" <= match[0] <= "\udcff" else "backslashreplace"
        return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", errors))

    return _UNSAFE.sub(encoded, str(value))
