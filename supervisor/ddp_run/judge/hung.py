"""The verdict of a job that was ended because nobody made progress: what was seen of its ranks says why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence.model import CleanExit, Death, Evidence, Quote
from ddp_run.judge.catalogue import NAMELESS, Cause, rule_named
from ddp_run.judge.first_failure import follower, of_clean_exit, of_death
from ddp_run.judge.verdict import Confidence, Finding, FirstFailure, Verdict
from ddp_run.record import file_names
from ddp_run.record.events import Rank

CODE = 124
"""Exit code of a job that was ended because it hung, as timeout(1) has it."""


def hung(attempt: Evidence, causes: Sequence[Cause], after_s: float) -> Verdict:
    """The verdict, `after_s` seconds of --hang-timeout being over."""
    stall = attempt.stall
    name = stall.cause if stall is not None else "hang"
    rule = rule_named(name, causes) or NAMELESS
    said = (
        stall.said if stall is not None else f"no rank made progress for {after_s:.0f} s, and none could be inspected"
    )
    rank = stall.culprits[0] if stall is not None and stall.culprits else None
    shown = _with_stacks(attempt, rank)
    stacks = _stacks(attempt, shown)
    quotes = tuple(Quote(stacks, None, text) for text in (stall.quotes if stall is not None else ()))
    everyone: tuple[Death | CleanExit, ...] = (*_ranks(attempt), *attempt.clean_exits)
    where = next((each for each in everyone if rank in (None, each.rank)), None)
    advice = (f"cat {attempt.path(stacks)}   # all threads of rank {shown}",) if _is_here(attempt, shown) else ()
    verdict = Verdict(
        "hung",
        CODE,
        first_failure=None if rank is None else _hanging(attempt, rank),
        collateral=tuple(follower(death, "stopped with the job") for death in attempt.deaths if death.rank != rank),
        phase=None if where is None else where.phase,
        step=None if where is None else where.step,
        call=next((death.call for death in attempt.deaths if death.rank == rank), None),
        notes=(f"the job was terminated after {after_s:.0f} s without progress (--hang-timeout)",),
    )
    sure: Confidence = "certain" if stall is not None and stall.hung and stall.culprits else "likely"
    return verdict.with_finding(Finding(rule, rank, said, quotes, advice, sure if stall is not None else "unknown"))


def _hanging(attempt: Evidence, rank: Rank) -> FirstFailure:
    known = next((death for death in _ranks(attempt) if death.rank == rank), None)
    if known is not None:  # its code is that of the signal by which ddp-run ended it
        return replace(of_death(known), exit_code=None, signal=None, exception=None)
    gone = next((each for each in attempt.clean_exits if each.rank == rank), None)
    return FirstFailure(rank) if gone is None else of_clean_exit(gone)


def _with_stacks(attempt: Evidence, rank: Rank | None) -> Rank | None:
    """Whose stacks show the hang: those of a rank that has left do not; those of whoever waits for it do."""
    stall, known = attempt.stall, {death.rank for death in _ranks(attempt)}
    if rank in known or stall is None or all(each.rank != rank for each in attempt.clean_exits):
        return rank
    return next((each for each in stall.waiting if each in known), rank)


def _is_here(attempt: Evidence, rank: Rank | None) -> bool:
    """Whether it ran on this node: NCCL's RAS may have named a rank of another one."""
    return rank in {death.rank for death in attempt.deaths} | {each.rank for each in attempt.clean_exits}


def _stacks(attempt: Evidence, rank: Rank | None) -> str:
    """Where the stacks of a rank are."""
    known = [death for death in _ranks(attempt) if rank is None or death.rank == rank]
    source = known[0].stderr.source if known else ""
    return source.replace(file_names.STDERR, file_names.LIVE_STACKS) if source else file_names.LIVE_STACKS


def _ranks(attempt: Evidence) -> tuple[Death, ...]:
    """Those that ended, and those that could not be ended."""
    return (*attempt.deaths, *attempt.survivors)
