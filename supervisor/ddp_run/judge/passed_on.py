"""Finds the rank whose failure the first end only passes on: a rank may tell its peers, and leave after them. Pure.

Torch's checkpoints raise what failed on one rank on all of them. Programs do the same by a broadcast or the store. Or a
rank logs its exception and cleans up, while its peers lose it or wait for it, and end first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddp_run.evidence.exception_chain import chain, failed_ranks, words_of
from ddp_run.evidence.exception_frames import by_others, raised_by_program, statement
from ddp_run.evidence.last_exception import last_exception
from ddp_run.evidence.model import Death
from ddp_run.judge.findings import Judged, Rules
from ddp_run.record.events import ExceptionInfo, Rank

_RANK = re.compile(r"(?i)\brank[ _:=#]{0,2}(\d{1,9})\b")
_RAISED_AGAIN = re.compile(r"raise [\w.\[\]'\"]{1,200}(?: from None)?$")
"""A variable, not a class: what was caught or received before."""
_TELLING = 12
"""An exception's words that are at least this long are recognised without its class."""


@dataclass(frozen=True, slots=True)
class Source:
    """The failure that was passed on, and a clause that says how this is known."""

    item: Judged
    why: str
    sure: bool


def source_of(first: Judged, judged: Sequence[Judged], rules: Rules) -> Source | None:
    """Return the failure that the first end only passes on; None if it is that of the rank itself."""
    ranks, raised, who = failed_ranks(first.death.exception), first.death.exception, first.death.who
    if ranks:
        return None if first.death.rank in ranks else _by_torch(ranks, first, judged, rules)
    others = [item for item in judged if item.death.rank not in (None, first.death.rank)]
    own = [item for item in others if not item.reason and not only_followed(item)]
    if only_followed(first) or is_silent(first):
        reacted = "raised only as it lost its peer or waited" if only_followed(first) else "left without an exception"
        item = next(_raised_by_others(own, rules), None) or next(_logged_by_others(others, rules), None)
        if item is None:
            return None
        return Source(item, f"{who} {reacted}, and {item.death.who} shows its own exception", sure=False)
    lost, own_words = _lost_a_connection(first), raised is not None and raised_by_program(raised)
    logged = [*_logged_by_others(others, rules)] if lost or own_words else []
    if lost and (kept := [item for item in logged if not _lost_a_connection(item)]):
        why = f"{who} lost a connection, and {kept[0].death.who} shows its own exception"
        return Source(kept[0], why, sure=False)
    if not own_words:
        return None
    told = [(item, tells_of(first.death, item.death)) for item in (*own, *logged)]
    item, sure = min(told, key=lambda each: (True, False, None).index(each[1]), default=(first, None))
    return None if sure is None else Source(item, f"the exception of {who} reports that of {item.death.who}", sure)


def only_followed(item: Judged) -> bool:
    """Whether this shows nothing but that another rank was lost, or awaited in vain."""
    return item.finding.rule.consequence or item.finding.rule.end == "waited"


def is_silent(item: Judged) -> bool:
    """Whether the rank left by its own decision, with an exit code, and nothing says why."""
    return item.finding.rule.general and item.death.obeyed and (item.death.code or 0) > 0


def tells_of(death: Death, other: Death) -> bool | None:
    """Whether the exception of one rank reports that of another: True if it is certain, None if it does not."""
    raised, source = death.exception, other.exception
    if raised is None or source is None:
        return None
    named = _ranks(raised) - {death.rank} == {other.rank}
    if words_of(raised) == words_of(source):
        again = _RAISED_AGAIN.match(statement(raised)) and not _RAISED_AGAIN.match(statement(source))
        return True if named or again else None
    quoted = {words_of(link) for link in chain(source) if _quotes(raised.message, link)}
    if quoted and not quoted <= set(map(words_of, chain(raised))):
        return named
    return False if named and death.rank not in _ranks(source) else None


def _lost_a_connection(item: Judged) -> bool:
    """Whether its exception may be about another process that is gone, and nothing says more about it. Programs raise
    EOFError where a peer sends no more."""
    links = () if item.death.exception is None else chain(item.death.exception)
    return item.finding.rule.general and any(by_others(link) or link.type == "EOFError" for link in links)


def _by_torch(ranks: Sequence[Rank], first: Judged, judged: Sequence[Judged], rules: Rules) -> Source:
    """Return the first of these ranks that failed, or if none of them is known here, what the first one shows."""
    failed = (item for item in judged if not item.reason)
    shown = (item for item in (*failed, *_logged_by_others(judged, rules)) if item.death.rank in ranks)
    known = next(shown, None)
    if known is None:
        told = rules.judge(replace(first.death, rank=ranks[0]))
        known = replace(first, finding=replace(told.finding, culprit=ranks[0]))
    rank = ranks[0] if known.finding.culprit is not None else known.death.rank
    return Source(known, f"the exception that torch passed on is that of rank {rank}", sure=True)


def _raised_by_others(own: Sequence[Judged], rules: Rules) -> Iterator[Judged]:
    """Return the failures with an exception that came neither of a lost peer nor of waiting for one."""
    for item in () if rules.attempt.logs_only else own:
        raised = None if item.death.obeyed else item.death.exception
        links = () if raised is None else chain(raised)[1:]
        if raised is not None and not any(only_followed(rules.judge(replace(item.death, exception=e))) for e in links):
            yield item


def _logged_by_others(others: Sequence[Judged], rules: Rules) -> Iterator[Judged]:
    """Return the failures that ranks had logged which then left with 0, or were stopped with the job.

    How far they had come by then, and the code that they would have left with, are unknown. A text doesn't show either.
    """
    if rules.attempt.logs_only:
        return
    for death in (*(item.death for item in others if item.reason), *rules.attempt.clean_exits):
        logs = (death.stderr, death.stdout) if death.exception is None else ()
        log, raised = next(((log, raised) for log in logs if (raised := last_exception(None, log))), (None, None))
        if log is not None:
            failed = replace(death, exception=raised, code=death.own_code, phase=None, signals_sent=(), stderr=log)
            found = rules.judge(failed)
            if not found.reason and not only_followed(found):
                yield found


def _ranks(raised: ExceptionInfo) -> set[int | None]:
    return {int(number) for number in _RANK.findall(raised.message)}


def _quotes(message: str, link: ExceptionInfo) -> bool:
    """Whether the message has the exception's words: as `Class: words`, as Python shows it, or alone."""
    name, words = link.type.rpartition(".")[2], words_of(link)[1]
    forms = (f"{name}: {words}", f"{name}({words})", f"{name}({words!r})", *([words] if len(words) >= _TELLING else ()))
    return any(form in message for form in forms)
