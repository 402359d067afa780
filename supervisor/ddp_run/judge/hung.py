"""The verdict for a job that was terminated because it made no progress, from observations of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.judge.catalogue import NAMELESS, Cause, rule_named
from ddp_run.judge.dead_threads import note_on
from ddp_run.judge.first_end import follower, of_death
from ddp_run.judge.verdict import Confidence, Finding, FirstFailure, Verdict
from ddp_run.record import file_names
from ddp_run.record.events import Rank

CODE = 124
"""Exit code of a job terminated because it hung, the same as timeout(1)'s."""


def hung(attempt: Evidence, causes: Sequence[Cause], after_s: float) -> Verdict:
    """Return the verdict after `after_s` seconds of --hang-timeout."""
    stall = attempt.stall
    name = stall.cause if stall is not None else "hang"
    rule = rule_named(name, causes) or NAMELESS
    said = (
        stall.said if stall is not None else f"no rank made progress for {after_s:.0f} s, and none could be inspected"
    )
    rank = stall.culprits[0] if stall is not None and stall.culprits else None
    shown = _with_stacks(attempt, rank)
    stacks = _stacks(attempt, shown)
    source = stacks or file_names.EVENTS
    quotes = tuple(Quote(source, None, text) for text in (stall.quotes if stall is not None else ()))
    everyone = (*_ranks(attempt), *attempt.clean_exits)
    where = next((each for each in everyone if rank in (None, each.rank)), None)
    note = note_on(where) if where is not None and where.rank == rank else None
    of_thread = () if note is None else (note,)
    advice = (f"cat {attempt.path(stacks)}   # all threads of rank {shown}",) if stacks and shown is not None else ()
    verdict = Verdict(
        "hung",
        CODE,
        first_failure=None if rank is None else _hanging(rank, where),
        collateral=tuple(follower(death, "stopped with the job") for death in attempt.deaths if death.rank != rank),
        phase=None if where is None else where.phase,
        step=None if where is None else where.step,
        call=next((death.call for death in attempt.deaths if death.rank == rank), None),
        notes=(f"the job was terminated after {after_s:.0f} s without progress (--hang-timeout)", *of_thread),
    )
    sure: Confidence = "certain" if stall is not None and stall.hung and stall.culprits else "likely"
    return verdict.with_finding(Finding(rule, said, quotes, advice, sure if stall is not None else "unknown"))


def _hanging(rank: Rank, known: Death | None) -> FirstFailure:
    if known is None:
        return FirstFailure(rank)
    if known.code == 0 and known.failed_at is None:
        return of_death(known)
    # ddp-run ended it with a signal, so that is its exit code
    return replace(of_death(known), exit_code=None, signal=None, exception=None)


def _with_stacks(attempt: Evidence, rank: Rank | None) -> Rank | None:
    """Return the ranks whose stacks explain the hang: for a rank that has exited, the ranks waiting for it."""
    stall = attempt.stall
    if stall is None or all(each.rank != rank for each in attempt.clean_exits):
        return rank
    known = {death.rank for death in _ranks(attempt)}
    return next((each for each in stall.waiting if each in known), rank)


def _stacks(attempt: Evidence, rank: Rank | None) -> str:
    """Return the file with the rank's stacks; empty if it has none here: it runs on another node, or has exited."""
    source = next((death.stderr.source for death in _ranks(attempt) if rank in (None, death.rank)), "")
    return source.replace(file_names.STDERR, file_names.LIVE_STACKS)


def _ranks(attempt: Evidence) -> tuple[Death, ...]:
    """Return the ranks that ended, and those that could not be killed."""
    return (*attempt.deaths, *attempt.survivors)
