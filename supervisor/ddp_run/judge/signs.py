"""What a rule searches for, and where: in the text that ended the rank, not in errors that it survived. Pure.

A sign's words are literal, so that a scanner can find the few relevant lines of a large log before any regular
expression runs (`ddp_run.evidence.scan`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from re import Match, Pattern

from ddp_run.evidence.exception_chain import chain, is_no_cause, may_be_handled, only_mentions, origin_of, words_of
from ddp_run.evidence.exception_frames import is_own, of_main, statement
from ddp_run.evidence.literals import longest
from ddp_run.evidence.model import Death, Evidence, LogText, Quote
from ddp_run.evidence.went_on import WentOn
from ddp_run.evidence.windows import LAST_WORDS, LEAVING
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.verdict import Confidence, Finding, Retry, Rule
from ddp_run.record.events import ExceptionInfo

_NCCL_ERRORS = ("NCCL error", "NCCL Error", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError")
URL = r"(?P<url>https?://(?:[^/@\s]{1,200}@)?(?P<host>[^\s/:'\"?<>]{1,255})(?::(?P<port>\d{1,5}))?[^\s'\"?<>]*+)"
"""A URL up to its query; groups `url`, `host` and `port`."""
QUOTED_PATH = r"(?P<quote>['\"])(?P<path>.{1,1000}?)(?P=quote)"
"""A path in Python's repr form; groups `quote` and `path`."""
_NOT_STARTED = (126, 127)
"""A shell's exit codes for a program that it could not run or could not find."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Words that a text must contain (case-sensitive), and the regular expression that must then match (the words, by
    default). It is compiled when the words are met, as few of a thousand are in one log.

    `types`: the classes (without modules) of exceptions that may contain them; empty: any, and lines outside
    exceptions. `cause` and `advice`: what it means, texts with fields (`Hit.fill`); None: the rule makes them of what
    else it knows. `likely`: it proves nothing. `retry` overrides the rule's own policy.
    """

    words: str
    pattern: str | None = None
    types: frozenset[str] | tuple[str, ...] = ()
    cause: str | None = None
    advice: tuple[str, ...] | None = None
    likely: bool = False
    retry: Retry | None = field(default=None, hash=False)

    @property
    def compiled(self) -> Pattern[str]:
        """The regular expression."""
        return _compiled(self.pattern if self.pattern is not None else re.escape(self.words))

    def search(self, text: str) -> Match[str] | None:
        """Return the first match of this sign in the text."""
        return self.compiled.search(text) if self.words in text else None


def like(
    pattern: str,
    types: frozenset[str] | tuple[str, ...] = (),
    cause: str | None = None,
    advice: tuple[str, ...] | None = None,
    likely: bool = False,
    retry: Retry | None = None,
) -> Sign:
    """Return the sign for a regular expression; its words are the longest text that each match contains."""
    return Sign(longest(pattern), pattern, types, cause, advice, likely, retry)


_compiled = cache(re.compile)  # the cache of `re` itself is smaller than the catalogue


def meaning(
    *signs: Sign | str,
    types: frozenset[str] | tuple[str, ...] = (),
    cause: str | None = None,
    advice: tuple[str, ...] | None = None,
    likely: bool = False,
    retry: Retry | None = None,
) -> tuple[Sign, ...]:
    """Return the signs with what they mean in common; what a sign says itself stays. A text alone is its words."""
    return tuple(
        replace(
            sign,
            types=sign.types or types,
            cause=sign.cause or cause,
            advice=advice if sign.advice is None else sign.advice,
            likely=sign.likely or likely,
            retry=sign.retry or retry,
        )
        for sign in (Sign(each) if isinstance(each, str) else each for each in signs)
    )


_FIELD = re.compile(r"\{(\w+)\}")
_OPTIONAL = re.compile(r"\{([^{}]*(?:\{\w+\}[^{}]*)+)\}")
_SHOWN = 160  # characters of a line


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

    @property
    def message(self) -> str:
        """Return the message of the exception that contains it, else the line."""
        return self.text if self.exception is None else self.exception.message

    @property
    def traceback(self) -> str:
        """Return the traceback of the exception that contains it; empty for a plain line."""
        return "" if self.exception is None else self.exception.traceback

    @property
    def statement(self) -> str:
        """Return the source lines that raised that exception, if its traceback shows them."""
        return "" if self.exception is None else statement(self.exception)

    def where(self, death: Death) -> str:
        """Return the user's line in the exception that contains it, else in the one that ended the rank."""
        return (self.exception.where if self.exception is not None else "") or death.where

    def fill(self, text: str, death: Death, **more: str | None) -> str:
        """Return a sign's text with its fields: `{name}` of a group or of `more`, or `{who}`, `{where}`, `{host}`,
        `{line}`, `{match}`; `{ in {name}}` is left out if there is no such name.
        """
        shown = {
            "who": death.who,
            "where": self.where(death),
            "host": death.host,
            "line": self.text[:_SHOWN],
            "match": self.match[0].partition("\n")[0].strip()[:_SHOWN],
            **{name: value and value.strip() for name, value in self.match.groupdict().items()},
            **more,
        }

        def keep(part: Match[str]) -> str:
            return part[1] if all(map(shown.get, _FIELD.findall(part[1]))) else ""

        def put(named: Match[str]) -> str:
            return shown[named[1]] or "" if named[1] in shown else named[0]  # a shell's braces stay

        return _FIELD.sub(put, _OPTIONAL.sub(keep, text))

    def says(self, death: Death, **more: str | None) -> str:
        """Return what its sign means."""
        return self.fill(self.sign.cause or "", death, **more)

    def finding(
        self,
        rule: Rule,
        death: Death,
        cause: str | None = None,
        advice: Sequence[str] | None = None,
        *,
        confidence: Confidence | None = None,
        retry: Retry | None = None,
        also: Iterable[Quote] = (),
    ) -> Finding:
        """Return the rule's finding about this death.

        `cause`: in place of what the sign says; `advice`: if the sign has none; `also`: further lines that prove it.
        """
        quotes = [self.quote] if self.quote else []
        quotes += [quote for quote in also if quote not in quotes]
        sign = self.sign
        advised = advice or () if sign.advice is None else (self.fill(each, death) for each in sign.advice)
        return Finding(
            rule,
            self.says(death) if cause is None else cause,
            tuple(quotes),
            tuple(advised),
            confidence or ("likely" if sign.likely else self.confidence),
            retry or sign.retry,
            exception=self.exception,
        )


Search = Callable[[Death, Sequence[Sign]], Hit | None]


def matcher(rule: Rule, signs: Sequence[Sign], *searches: Search) -> Callable[[Death, Evidence], Finding | None]:
    """Return the question of a rule whose signs say everything; the searches as in `first_of`, or `ended_by`."""

    def match(death: Death, _attempt: Evidence) -> Finding | None:
        hit = first_of(death, signs, *searches or (ended_by,))
        return None if hit is None else hit.finding(rule, death)

    return match


def first_of(death: Death, signs: Sequence[Sign], *searches: Search) -> Hit | None:
    """Return what the first of the searches finds that finds one."""
    return next((hit for search in searches if (hit := search(death, signs)) is not None), None)


def ended_by(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Find the sign in the exception that ended the rank; if no exception is known, in its last words."""
    return in_exception(death, signs) if death.exception is not None else in_last_words(death, signs)


def in_exception(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Find the sign in the exception that ended the rank, else in those that led to it (`raise … from`, a worker's)."""
    if (raised := death.exception) is None:
        return None
    for link in chain(raised):
        if is_no_cause(link, raised):
            continue
        name = "" if of_main(link) else link.type.rpartition(".")[2]
        said = f"{link.type}: {link.message}" if link.message else link.type
        for sign in signs:  # a KeyError's message is a key
            match = sign.search(said) if name in sign.types or not (sign.types or name == "KeyError") else None
            if match is not None and not only_mentions(match):
                survived = words_of(link) != words_of(raised) and may_be_handled(link, raised)
                sure: Confidence = "likely" if survived or is_own(link) else "certain"
                return Hit(sign, match, _quote(death.stderr, link, match), origin_of(link, raised), sure)
    return None


def in_itself(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Find the sign in the exception that ended the rank, and in none that led to it."""
    hit = in_exception(death, signs)
    return hit if hit is not None and hit.exception is death.exception else None


def in_last_words(death: Death, signs: Sequence[Sign], lines: int = LAST_WORDS) -> Hit | None:
    """Find the sign in the rank's last lines, unless it went on after it; certain only if it crashed there."""
    sure: Confidence = "certain" if death.crashed else "likely"
    plain = [sign for sign in signs if not sign.types]
    ending = death.stderr.ending(LAST_WORDS)
    hit = anywhere(ending, plain, sure, lines)
    if hit is not None:
        went_on = _went_on(ending.lines)
        over = went_on.after_line(hit.index) or (death.watched and went_on.before_abort(hit.index))
        if over or (death.killed_without_exception and went_on.says_handled(hit.index)):
            hit = None
        elif went_on.may_be_over(hit.index, alone=death.watched):
            hit = replace(hit, confidence="likely")
    of_nccl = any(map(_held(ending.lines), _NCCL_ERRORS))  # then its lines elsewhere belong to it
    hit = hit or anywhere(death.stack, plain, sure)
    return hit or (anywhere(death.nccl.ending(lines), plain, sure) if of_nccl else None)


def said_last(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Find the last line with a sign, if no exception ended the rank and nothing went on after it.

    A shell's exit code for a program that was not started outweighs lines after it.
    """
    if death.exception is not None or death.ended_from_outside:
        return None
    ending = death.stderr.ending(LAST_WORDS)
    hit = anywhere(ending, signs, "likely", LEAVING)
    over = hit is not None and death.code not in _NOT_STARTED and survived(ending, hit)
    return None if over else hit


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


def every(log: LogText, *signs: Sign) -> list[Hit]:
    """Find all lines of the log with one of the signs, in order."""
    holds = _held(log.lines)
    present = [sign for sign in signs if holds(sign.words)]
    return [
        Hit(sign, match, log.quote(index), None, "certain", index)
        for index, line in enumerate(log.lines if present else ())
        for sign in present
        if (match := sign.search(line)) is not None
    ]


def quotes(*hits: Hit | None) -> tuple[Quote, ...]:
    """Return the lines of the hits as evidence."""
    return tuple(hit.quote for hit in hits if hit is not None and hit.quote is not None)


def anywhere(
    log: LogText, signs: Sequence[Sign], confidence: Confidence = "certain", lines: int | None = None
) -> Hit | None:
    """Find the last line of the log, or of its last `lines`, with a sign: certain if no program prints it in vain."""
    holds = _held(log.lines)
    present = [sign for sign in signs if holds(sign.words)]
    first = 0 if lines is None else max(0, len(log.lines) - lines)
    for index in range(len(log.lines) - 1 if present else -1, first - 1, -1):
        line = log.lines[index]
        for sign in present:
            match = sign.search(line) if sign.words in line else None  # one call per line and sign would take seconds
            if match is not None:
                return Hit(sign, match, log.quote(index), None, confidence, index)
    return None


_went_on = lru_cache(maxsize=4)(WentOn)  # rules ask about the same few logs


@lru_cache(maxsize=4)
def _held(lines: tuple[str, ...]) -> Callable[[str], bool]:
    """Return whether words occur in these lines; sixty rules ask, mostly in vain, and again for each rank."""
    return cache("\n".join(lines).__contains__)


def _quote(log: LogText, link: ExceptionInfo, match: Match[str]) -> Quote | None:
    """Return the log line that contains the match, else the one that shows the exception."""
    shown = link.message.partition("\n")[0]
    wanted = match[0].partition("\n")[0].strip()
    if wanted and wanted not in shown:
        for index in range(len(log.lines) - 1, -1, -1):
            if wanted in log.lines[index]:
                return log.quote(index)
    return next(iter(line_of(log, link)), None)
