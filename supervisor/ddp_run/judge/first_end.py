"""Which end came first, and how a verdict tells of it, of those that followed and of those that left early. Pure.

A stamp taken inside a rank (`Death.failed_at`) is exact. The kernel reports a death only after freeing the process'
memory, 8 to 16 ms after the actual end on an idle host. So such an end may have come before one that seems earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_run.evidence.crash_text import crash_of
from ddp_run.evidence.exception_chain import failed_ranks
from ddp_run.evidence.model import UNORDERED, Death
from ddp_run.judge.findings import LATE_NS, Judged
from ddp_run.judge.passed_on import is_silent, only_followed, tells_of
from ddp_run.judge.verdict import Collateral, Confidence, Finding, FirstFailure, Retry
from ddp_run.record.events import MonotonicNs, Rank
from ddp_run.values.signals import in_words, signal_name
from ddp_run.values.words import named_ranks


@dataclass(frozen=True, slots=True)
class FirstEnd:
    """The first of several failures, those that may have come before it, and whether the order is a guess."""

    item: Judged
    rivals: tuple[Judged, ...] = ()
    guessed: bool = False


def first_end(own: Sequence[Judged], *, in_text: bool) -> FirstEnd:
    """Return the first of these failures, which must be sorted by `Death.order` and not empty.

    Among the candidates, the kind of end decides: a signal from outside, then an exception, then an exit code without a
    message. A process killed by a signal did not react to anything; an exit code may be a reaction to another rank's
    end.
    """
    earliest = own[0].death
    if earliest.failed_at is None and earliest.died_at is None:
        # a text: where a rank has Python's exit code for an exception, and shows none, another that shows one counts
        silent = earliest.exception is None and earliest.code == 1
        shown = next((item for item in own if item.death.exception is not None), own[0]) if silent else own[0]
        first = _first_in_text(shown, own) if in_text else shown
        return FirstEnd(first, guessed=first is not own[0])
    late = (item for item in own[1:] if item.death.failed_at is None)
    close = [own[0], *(item for item in late if item.death.order - earliest.order <= LATE_NS)]
    first = min(close, key=lambda item: _weight(item.death))
    return FirstEnd(first, tuple(item for item in close if item is not first))


@dataclass(frozen=True, slots=True)
class Doubt:
    """A note about which failure came first, and whether it is about a different one."""

    note: str
    other: bool


def doubts_of(end: FirstEnd, judged: Sequence[Judged]) -> list[Doubt]:
    """Return what may have come before the first failure: ends that the kernel reported about when it was stamped, and
    exceptions that ranks had logged which left later, as a signal told them."""
    first = end.item
    unlike = [rival for rival in end.rivals if _kind(rival) != _kind(first)]
    close = unlike or (end.rivals if first.death.failed_at is None else ())  # of one kind, whichever was first
    doubts = [Doubt(_how_close([first.death, *(item.death for item in close)]), bool(unlike))] if close else []
    return doubts + [
        Doubt(f"{item.finding.cause}: whether before or after {first.death.who} failed is unknown", other=True)
        for item in judged
        if _raised_unseen(item) and _kind(item) != _kind(first)
    ]


def _how_close(deaths: Sequence[Death]) -> str:
    ranks = sorted(death.rank for death in deaths if death.rank is not None)
    apart = (max(death.order for death in deaths) - min(death.order for death in deaths)) / 1e6
    return f"{named_ranks(ranks)} exited within {apart:.0f} ms according to the kernel: which came first is uncertain"


def _raised_unseen(item: Judged) -> bool:
    """Whether it left as a signal had told it, and had logged an exception before: nobody knows when."""
    death = item.death
    return not item.reason and death.exception is not None and (death.code or 0) - 128 in death.signals_sent


def _kind(item: Judged) -> tuple[str, str | None, int | None]:
    raised = item.death.exception
    return item.finding.rule.name, None if raised is None else raised.type, item.death.code


def _weight(death: Death) -> int:
    if death.killed_without_exception and -(death.code or 0) not in death.signals_sent:
        return 0
    return 1 if death.exception is not None else 2


# -------------------------------------------------------------------------------- in a verdict


def of_death(death: Death) -> FirstFailure:
    """A rank that failed, or that exited with 0 while the others still needed it."""
    crash = crash_of(death) if death.exception is None else None
    return FirstFailure(
        rank=death.rank,
        local_rank=death.local_rank,
        node_rank=death.node_rank,
        host=death.host,
        pid=death.pid,
        exit_code=death.code,
        signal=signal_name(death.code),
        at=None if death.order == UNORDERED else MonotonicNs(death.order),
        exception=death.exception if crash is None else crash.exception,
        log=death.stderr.source or None,
    )


def follower(death: Death, reason: str) -> Collateral:
    """A rank that failed because another had failed."""
    return Collateral(death.rank, death.code, signal_name(death.code), reason)


def lost_peer(item: Judged, who: str) -> str:
    """Return why a rank ended that followed `who`."""
    return f"lost its peer, {who}" if item.finding.rule.consequence else item.reason


def followed(item: Judged, first: Judged) -> str:
    """Return why another rank than the first one ended."""
    if item.reason:
        return lost_peer(item, first.death.who)
    ranks = failed_ranks(item.death.exception)
    if ranks and item.death.rank not in ranks:
        return f"got the exception of rank {ranks[0]} from torch"
    if tells_of(item.death, first.death) is not None:
        return f"reported the failure of {first.death.who}"
    if item.death.order < first.death.order:
        left = "left before it" if is_silent(item) else f"failed before it: {item.finding.cause}"
        return "waited in vain" if only_followed(item) else left
    if _raised_unseen(item):
        return f"failed, too: {item.finding.cause}"
    raised, by_first = item.death.exception, first.death.exception
    alike = raised is None or by_first is None or raised.type == by_first.type
    if item.finding.rule.name == first.finding.rule.name and alike:
        return f"failed later the same way as {first.death.who}"
    return f"failed after {first.death.who}: {item.finding.cause}"


def finished_first(rank: Rank | None, lost: Finding, waiting: Sequence[Death]) -> Finding:
    """The rank exited with 0; `lost` is the finding of the first of the `waiting` ranks."""
    went_on = f"{_who(rank)} exited with code 0 while {_those(waiting)} went on"
    uneven = f"make all ranks run the same number of steps: {went_on}"
    joined = "DistributedSampler(dataset, drop_last=True), or torch.distributed.algorithms.join.Join for uneven inputs"
    retry = Retry(helps=False, reason="the ranks will disagree about the number of steps again")
    found = _lost(rank, 0, lost, waiting)
    return replace(found, advice=(uneven, joined), retry=retry, confidence="certain")


def ended_silently(death: Death, found: Finding, lost: Finding, waiting: Sequence[Death]) -> Finding:
    """The rank exited with another code, or an unknown one; `found` is the finding about its end."""
    confidence: Confidence = "likely" if death.code is None else "certain"
    blamed = _lost(death.rank, death.code, lost, waiting)
    evidence = (*found.evidence, *lost.evidence)
    return replace(blamed, evidence=evidence, advice=found.advice, retry=None, confidence=confidence)


def _lost(rank: Rank | None, code: int | None, lost: Finding, waiting: Sequence[Death]) -> Finding:
    were = "was" if len(_known(waiting)) == 1 else "were"
    cause = f"{_who(rank)} exited early ({in_words(code)}) while {_those(waiting)} {were} still running"
    return replace(lost, cause=cause)


def _who(rank: Rank | None) -> str:
    return "a rank" if rank is None else f"rank {rank}"


def _those(waiting: Sequence[Death]) -> str:
    ranks = _known(waiting)
    return named_ranks(ranks) if ranks else "others"


def _known(waiting: Sequence[Death]) -> list[Rank]:
    return [death.rank for death in waiting if death.rank is not None]


def _first_in_text(first: Judged, own: Sequence[Judged]) -> Judged:
    """For pasted logs: return the rank that explains the first one's end: one with a reason, if it was only killed; one
    whose exception shows the same cause, if it shows none; or the one that it waited for."""
    if first.finding.rule.end == "told" and first.death.killed_without_exception:
        reasons = [item for item in own if item.finding.rule.end != "told" and not item.finding.rule.general]
        return min(reasons, key=shown_on, default=first)
    if first.finding.rule.end == "waited":
        return _missed_by(first, own)
    same = (item for item in own if item.finding.exception is not None and item.finding.rule is first.finding.rule)
    return next(same, first) if first.death.exception is None else first


def _missed_by(waited: Judged, own: Sequence[Judged]) -> Judged:
    """Return the rank that the first one waited for, if it did: one that raised before the timeout.

    One that raised below the timeout counts if that speaks against its host, or is a mistake in its program while it
    shows no timeout: no timeout leads to that.
    """
    told = shown_on(waited)
    rest = [item for item in own if item.death.exception is not None and item.finding.rule.end != "waited"]
    shown = [
        item
        for item in rest
        if 0 < shown_on(item) < told or item.finding.rule.host is not None or _is_own_mistake(item, waited)
    ]
    return min(shown, key=lambda item: (shown_on(item) > told, shown_on(item)), default=waited)


def shown_on(item: Judged) -> int:
    """Return the number of the log line that shows it; 0 if unknown."""
    return next((quote.line for quote in item.finding.evidence if quote.line is not None), 0)


def _is_own_mistake(item: Judged, waited: Judged) -> bool:
    """Whether the program of another rank made it, while that rank shows nothing of the timeout."""
    shown = next((quote.text for quote in waited.finding.evidence), "")
    signs = shown.partition("(")[0].rpartition("] ")[2]  # without the rank and the operation
    return (
        item.finding.rule.general
        and item.finding.confidence == "certain"
        and bool(signs)
        and not any(signs in line for line in item.death.stderr.lines)
    )
