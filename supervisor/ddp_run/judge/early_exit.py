"""A rank that exited while others still needed it: with 0, or with an error code and no message. Pure.

The verdict keeps the others' finding (they lost a peer). This module adds which rank they lost, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence.model import Death
from ddp_run.judge.verdict import Confidence, Finding, Retry
from ddp_run.record.events import Rank
from ddp_run.values.signals import in_words
from ddp_run.values.words import named_ranks


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
