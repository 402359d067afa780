"""A verdict exists whatever the logs and the rules do: with the rank and the code that ddp-run itself saw."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_run.judge import judging
from ddp_run.record.events import (
    AgentExited,
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    Event,
    LocalRank,
    MonotonicNs,
    Next,
    Rank,
    RankExited,
    RankStarted,
    RunStarted,
    SignalReceived,
)

FOLDER = "attempt_0/rank_1"


def events(folder: str = FOLDER, code: int = 7) -> list[Event]:
    at = [MonotonicNs(number) for number in range(10)]
    return [
        RunStarted(at[0], 0, "id", "node", 0, 1, ("train.py",), 0, "by-cause", 30.0, 0, "0"),
        AttemptStarted(at[1], 0, (), None),
        AgentStarted(at[2], 100),
        RankStarted(at[3], Rank(0), LocalRank(0), 0, 101, 2, 2, "attempt_0/rank_0"),
        RankStarted(at[4], Rank(1), LocalRank(1), 0, 102, 2, 2, folder),
        RankExited(at[5], Rank(1), 0, code, False),
        RankExited(at[6], Rank(0), 0, -15, False),
        AgentExited(at[7], 1),
    ]


def test_judging_that_takes_too_long_leaves_rank_and_code(tmp_path: Path) -> None:
    verdict = judging.judged(tmp_path, events(), 0, limit_s=1e-6)
    assert verdict.first_failure is not None
    assert (verdict.outcome, verdict.first_failure.rank, verdict.exit_code) == ("failed", 1, 7)
    assert verdict.notes[-1].startswith("the logs could not be analysed (took more than 1e-06 s)")


def test_judging_that_breaks_leaves_rank_and_code(tmp_path: Path) -> None:
    """No file can have this name: opening it raises ValueError."""
    verdict = judging.judged(tmp_path, events(folder="\0"), 0)
    assert verdict.first_failure is not None
    assert (verdict.outcome, verdict.first_failure.rank, verdict.exit_code) == ("failed", 1, 7)
    assert "ValueError" in verdict.notes[-1]


def test_without_files_the_events_say_the_same(tmp_path: Path) -> None:
    verdict = judging.judged_by_events(tmp_path, events(), 0)
    assert verdict == judging.judged(tmp_path, events(), 0)


def test_a_regular_expression_that_does_not_end_is_given_up() -> None:
    with pytest.raises(judging._TooLong), judging._limit(0.2):
        re.match(r"(a+)+b", "a" * 40)


def test_a_stop_in_place_of_a_retry_is_the_runs_end(tmp_path: Path) -> None:
    ended = AttemptEnded(MonotonicNs(8), 0, "failed", "unknown", 7, Next.RETRY, "the cause is unknown")
    stop = SignalReceived(MonotonicNs(9), 15)
    verdict = judging.judged(tmp_path, events(), 0)
    stopped = judging.final(verdict, [*events(), ended, stop])
    assert (stopped.outcome, stopped.exit_code, stopped.first_failure) == ("interrupted", 143, verdict.first_failure)
    assert judging.final(verdict, [*events(), ended]) == verdict
    assert judging.final(verdict, [*events(), replace(ended, decision=Next.STOP), stop]) == verdict
