"""What a rule searches for, and where: in the text that ended the rank, not in errors that it survived. Pure.

A sign's words are literal, so that a scanner can find the few relevant lines of a large log before any regular
expression runs (`ddp_run.evidence.scan`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from re import Match, Pattern

from ddp_run.evidence.exception_chain import chain, dealt_with, raised_by_handler
from ddp_run.evidence.model import Death, Evidence, LogText, Quote
from ddp_run.evidence.traceback_text import line_of
from ddp_run.evidence.went_on import WentOn
from ddp_run.evidence.windows import LAST_WORDS, LEAVING
from ddp_run.judge.verdict import Confidence, Finding, Retry, Rule
from ddp_run.record.events import ExceptionInfo

_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals caused by the process itself. Any other signal may have come long after a line."""
_NCCL_ERRORS = ("NCCL error", "NCCL Error", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError")
URL = r"(?P<url>https?://[^\s'\"?<>]+)"
"""A URL up to its query; group `url`."""
QUOTED_PATH = r"(?P<quote>['\"])(?P<path>.{1,1000}?)(?P=quote)"
"""A path in Python's repr form; groups `quote` and `path`."""
_NOT_STARTED = (126, 127)
"""A shell's exit codes for a program that it could not run or could not find."""
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Sign:
    """Words that a text must contain (case-sensitive), and the regular expression that must then match (the words, by
    default). It is compiled when the words are met, as few of a thousand are in one log.

    `types`: the classes (without modules) of exceptions that may contain them; empty: any, and lines outside
    exceptions.
    """

    words: str
    pattern: str | None = None
    types: frozenset[str] = field(default_factory=frozenset)

    @property
    def compiled(self) -> Pattern[str]:
        """The regular expression."""
        return _compiled(self.pattern if self.pattern is not None else re.escape(self.words))

    def search(self, text: str) -> Match[str] | None:
        """Return the first match of this sign in the text."""
        return self.compiled.search(text) if self.words in text else None


_compiled = cache(re.compile)
"""The cache of `re` itself is smaller than the catalogue."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A match. `exception` is the one that contains it: the last, or one that led to it. None: a plain line.

    `index`: the line's place in the text that was searched.
    """

    sign: Sign
    match: Match[str]
    quote: Quote | None
    exception: ExceptionInfo | None
    confidence: Confidence
    index: int = -1

    def __getitem__(self, group: str) -> str | None:
        """Return the text of a named group; None if the pattern does not have it or it did not match."""
        return self.match.groupdict().get(group)

    @property
    def text(self) -> str:
        """Return the line that shows it."""
        start = self.match.string.rfind("\n", 0, self.match.start()) + 1
        return self.match.string[start:].partition("\n")[0].strip()

    def finding(
        self,
        rule: Rule,
        death: Death,
        cause: str,
        advice: Sequence[str] = (),
        *,
        confidence: Confidence | None = None,
        retry: Retry | None = None,
        also: Iterable[Quote] = (),
    ) -> Finding:
        """Return the rule's finding about this death, based on this hit; `also` are further lines that prove it."""
        quotes = [self.quote] if self.quote else []
        quotes += [quote for quote in also if quote not in quotes]
        return Finding(
            rule,
            death.rank,
            cause,
            tuple(quotes),
            tuple(advice),
            confidence or self.confidence,
            retry,
            death.exception,
        )


def ended_by(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Find the sign in the exception that ended the rank; if no exception is known, in its last words."""
    return in_exception(death, signs) if death.exception is not None else in_last_words(death, signs)


def in_exception(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Find the sign in the exception that ended the rank, else in those that led to it (`raise … from`, a worker's)."""
    if death.exception is None:
        return None
    for link in chain(death.exception):
        if dealt_with(link, death.exception):
            continue
        name = link.type.rpartition(".")[2]
        said = f"{link.type}: {link.message}" if link.message else link.type
        for sign in signs:
            match = sign.search(said) if not sign.types or name in sign.types else None
            if match is not None:
                survived = link.type != death.exception.type and raised_by_handler(death.exception)
                sure: Confidence = "likely" if survived else "certain"
                return Hit(sign, match, _quote(death.stderr, link, match), link, sure)
    return None


def in_last_words(death: Death, signs: Sequence[Sign], lines: int = LAST_WORDS) -> Hit | None:
    """Find the sign in the rank's last lines, unless it went on after it; certain only if it crashed there."""
    sure: Confidence = "certain" if -(death.code or 0) in _CRASHES else "likely"
    plain = [sign for sign in signs if not sign.types]
    ending = death.stderr.ending(LAST_WORDS)
    hit = _last(ending, plain, sure, lines)
    if hit is not None:
        went_on = _went_on(ending.lines)
        if went_on.after_line(hit.index) or (death.watched and went_on.before_abort(hit.index)):
            hit = None
        elif went_on.may_be_over(hit.index):
            hit = replace(hit, confidence="likely")
    hit = hit or _last(death.stack, plain, sure)
    return hit or (_last(death.nccl.ending(lines), plain, sure) if _speaks_of_nccl(ending) else None)


def said_last(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Find the last line with a sign, if no exception ended the rank and nothing went on after it.

    A shell's exit code for a program that was not started outweighs lines after it.
    """
    if death.exception is not None or death.code in _FROM_OUTSIDE:
        return None
    ending = death.stderr.ending(LAST_WORDS)
    hit = _last(ending, signs, "likely", LEAVING)
    over = hit is not None and death.code not in _NOT_STARTED and survived(ending, hit)
    return None if over else hit


def anywhere(log: LogText, signs: Sequence[Sign]) -> Hit | None:
    """Find the last line of the whole log with a sign, for messages that no program prints unless it happened."""
    return _last(log, signs, "certain")


def in_whole_log(attempt: Evidence, signs: tuple[Sign, ...]) -> Hit | None:
    """Find the last line of all text with a sign: messages of launchers and schedulers. Searched once."""
    return attempt.once(_in_whole_log, signs)


def _in_whole_log(attempt: Evidence, signs: tuple[Sign, ...]) -> Hit | None:
    return anywhere(attempt.agent.log, signs)


def survived(log: LogText, hit: Hit) -> bool:
    """Whether the writer of the log went on after the hit's line."""
    return _went_on(log.lines).after_line(hit.index)


def started_again(log: LogText, hit: Hit) -> bool:
    """Whether the job ran again after the hit's line, which says that it was ended."""
    return _went_on(log.lines).after_stop(hit.index)


def every(log: LogText, sign: Sign) -> list[Hit]:
    """Find all lines of the log with a sign, in order."""
    if not _joined(log.lines).holds(sign.words):
        return []
    found = ((index, sign.search(line)) for index, line in enumerate(log.lines))
    return [Hit(sign, match, log.quote(index), None, "certain", index) for index, match in found if match is not None]


def quotes(*hits: Hit | None) -> tuple[Quote, ...]:
    """Return the lines of the hits as evidence."""
    return tuple(hit.quote for hit in hits if hit is not None and hit.quote is not None)


def words(signs: Iterable[Sign]) -> Collection[str]:
    """Return all literals without duplicates."""
    return sorted({sign.words for sign in signs})


def _speaks_of_nccl(log: LogText) -> bool:
    """Whether the log contains an NCCL error, so that NCCL's lines elsewhere belong to it."""
    text = _joined(log.lines)
    return any(text.holds(words) for words in _NCCL_ERRORS)


def _last(log: LogText, signs: Sequence[Sign], confidence: Confidence, lines: int | None = None) -> Hit | None:
    """Return the last line with a sign; with `lines`, only if it is among the last so many."""
    text = _joined(log.lines)
    present = [sign for sign in signs if text.holds(sign.words)]
    first = 0 if lines is None else max(0, len(log.lines) - lines)
    for index in range(len(log.lines) - 1 if present else -1, first - 1, -1):
        line = log.lines[index]
        for sign in present:
            match = sign.search(line) if sign.words in line else None  # one call per line and sign would take seconds
            if match is not None:
                return Hit(sign, match, log.quote(index), None, confidence, index)
    return None


class _Joined:
    """All lines as one text.

    Sixty rules search each log for their words, mostly in vain, and that is fast in one text. Each set of words is
    searched once: a rule checks the agent's log for every rank.
    """

    __slots__ = ("_held", "_text")

    def __init__(self, lines: tuple[str, ...]) -> None:
        self._text = "\n".join(lines)
        self._held: dict[str, bool] = {}

    def holds(self, words: str) -> bool:
        """Whether they occur anywhere in it."""
        held = self._held.get(words)
        if held is None:
            held = self._held[words] = words in self._text
        return held


@lru_cache(maxsize=4)
def _joined(lines: tuple[str, ...]) -> _Joined:
    return _Joined(lines)


_went_on = lru_cache(maxsize=4)(WentOn)  # rules ask about the same few logs


def _quote(log: LogText, link: ExceptionInfo, match: Match[str]) -> Quote | None:
    """Return the log line that contains the match, else the one that shows the exception."""
    shown = link.message.partition("\n")[0]
    wanted = match[0].partition("\n")[0].strip()
    if wanted and wanted not in shown:
        for index in range(len(log.lines) - 1, -1, -1):
            if wanted in log.lines[index]:
                return log.quote(index)
    return line_of(log, link)
