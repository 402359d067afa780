"""The verdict for a job that was ended because it made no progress, by values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_diagnose import death, leaver, run

from ddp_run.evidence.model import Death, Evidence, LogText, Quote
from ddp_run.judge.diagnose import judge
from ddp_run.record.events import MonotonicNs, Rank, StallSeen

CAUGHT = ("rank 1 waits in recv at train.py:9", "rank 1: 0 % CPU")
STUCK = StallSeen(
    MonotonicNs(9), "hang", True, "rank 1 is stuck in recv", (Rank(1),), (Rank(0),), MonotonicNs(1), CAUGHT
)


def stopped(rank: int, **more: object) -> Death:
    told = replace(death(rank, -15, 60, sent=(15,)), stderr=LogText(f"attempt_0/rank_{rank}/stderr.log"))
    return replace(told, **more)  # type: ignore[arg-type]


def hung(*deaths: Death, stall: StallSeen | None = STUCK, **more: object) -> Evidence:
    return run(*deaths, stall=stall, hung_s=120.4, hung_at=50, folder="/r", **more)  # type: ignore[arg-type]


def stacks(rank: int) -> str:
    return f"attempt_0/rank_{rank}/live_stacks.txt"


def test_the_rank_that_the_others_wait_for_is_named_with_its_stacks() -> None:
    there = {"host": "node-a", "node_rank": 2, "phase": "training", "step": 7, "call": "torch.distributed.recv"}
    verdict = judge(hung(stopped(0, phase="init", step=1), stopped(1, **there)))
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("hung", 124, "hang")
    assert (verdict.title, verdict.confidence) == ("rank 1 is stuck in recv", "certain")
    assert (verdict.phase, verdict.step, verdict.call) == ("training", 7, "torch.distributed.recv")
    assert verdict.evidence == tuple(Quote(stacks(1), None, text) for text in CAUGHT)
    assert verdict.advice == (f"cat /r/{stacks(1)}   # all threads of rank 1",)
    assert verdict.notes == ("the job was terminated after 120 s without progress (--hang-timeout)",)
    assert [(each.rank, each.reason) for each in verdict.collateral] == [(0, "stopped with the job")]


def test_a_stuck_rank_that_was_ended_with_the_job_has_no_exit_code_of_its_own() -> None:
    raised = death(1, -15, 60, sent=(15,), raised="SignalException")
    first = judge(hung(stopped(0), raised)).first_failure
    assert first is not None
    assert (first.rank, first.pid, first.exit_code, first.signal, first.exception) == (1, 101, None, None, None)


def test_a_stuck_rank_that_even_sigkill_did_not_end_is_named() -> None:
    alive = Death(Rank(1), pid=101, phase="init", stderr=LogText("attempt_0/rank_1/stderr.log"))
    verdict = judge(hung(stopped(0, phase="training"), survivors=(alive,)))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.pid, verdict.phase) == (1, 101, "init")
    assert verdict.evidence[0].source == stacks(1)
    assert [each.rank for each in verdict.collateral] == [0]


@pytest.mark.parametrize(
    ("stall", "confidence"),
    [
        pytest.param(STUCK, "certain", id="who is stuck is known"),
        pytest.param(replace(STUCK, culprits=()), "likely", id="nobody in particular"),
        pytest.param(replace(STUCK, hung=False), "likely", id="it may only be slow"),
        pytest.param(None, "unknown", id="nothing was seen"),
    ],
)
def test_a_hang_is_certain_only_if_waiting_cannot_resolve_it_and_who_is_stuck_is_known(
    stall: StallSeen | None, confidence: str
) -> None:
    assert judge(hung(stopped(0), stopped(1), stall=stall)).confidence == confidence


def test_a_hang_of_which_nothing_was_seen_names_nobody() -> None:
    verdict = judge(hung(stopped(0, phase="training", step=3), stopped(1), stall=None))
    assert verdict.title == "no rank made progress for 120 s, and none could be inspected"
    assert (verdict.cause, verdict.first_failure, verdict.evidence, verdict.advice) == ("hang", None, (), ())
    assert (verdict.phase, verdict.step, verdict.call) == ("training", 3, None)
    assert [each.rank for each in verdict.collateral] == [0, 1]


def test_a_hang_without_a_culprit_quotes_the_stacks_of_the_first_rank() -> None:
    verdict = judge(hung(stopped(0), stopped(1), stall=replace(STUCK, culprits=())))
    assert (verdict.first_failure, verdict.advice) == (None, ())
    assert {quote.source for quote in verdict.evidence} == {stacks(0)}


def test_a_cause_that_the_look_at_the_ranks_found_is_the_verdicts() -> None:
    verdict = judge(hung(stopped(0), stopped(1), stall=replace(STUCK, cause="gil-deadlock")))
    assert verdict.cause == "unknown"  # a name that the catalogue does not have
    assert judge(hung(stopped(1), stall=replace(STUCK, cause="filesystem-error"))).cause == "filesystem-error"


def test_a_stuck_rank_of_another_node_has_no_files_here() -> None:
    """NCCL's RAS may name it."""
    verdict = judge(hung(stopped(0), stall=replace(STUCK, culprits=(Rank(5),)), nodes=2))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.pid) == (5, None)
    assert (verdict.advice, verdict.phase, verdict.call) == ((), None, None)
    assert {quote.source for quote in verdict.evidence} == {"events.jsonl"}


@pytest.mark.parametrize("waiting", [(0,), (7, 0, 2)], ids=["one waits", "the first of them on another node"])
def test_for_a_rank_that_has_exited_the_stacks_of_a_rank_that_waits_for_it_are_shown(waiting: tuple[int, ...]) -> None:
    left = replace(leaver(1, 5), phase="shutdown", step=9, host="node-b")
    gone = replace(STUCK, cause="peer-died", waiting=tuple(map(Rank, waiting)))
    verdict = judge(hung(stopped(2), stopped(0), stall=gone, clean_exits=(leaver(3, 4), left)))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.exit_code, verdict.first_failure.host) == (1, 0, "node-b")
    assert (verdict.phase, verdict.step) == ("shutdown", 9)
    assert verdict.advice == (f"cat /r/{stacks(0)}   # all threads of rank 0",)
    assert {quote.source for quote in verdict.evidence} == {stacks(0)}


def test_where_only_the_rank_that_has_exited_was_here_there_are_no_stacks_to_show() -> None:
    gone = replace(STUCK, cause="peer-died", waiting=(Rank(7),))
    verdict = judge(hung(stopped(2), stall=gone, clean_exits=(leaver(1, 5),), nodes=2))
    assert verdict.advice == ()
