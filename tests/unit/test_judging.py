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


def restarted_run(starts: int, *end: Event, nodes: int = 1) -> list[Event]:
    """Rank 1 exits with 10 in the first start of the ranks, with 11 in the second, and so on; in the last, nobody does.
    `end` comes behind that."""
    recorded = [replace(each, restarts=5, nodes=nodes) if isinstance(each, RunStarted) else each for each in events()]
    told = [*recorded[:3]]
    for restart in range(starts):
        at = [MonotonicNs(10 * restart + number) for number in range(10, 20)]
        for rank in (0, 1):
            folder = f"attempt_0/restart_{restart}/rank_{rank}"
            told.append(
                RankStarted(at[rank], Rank(rank), LocalRank(rank), restart, 100 + 10 * restart + rank, 2, 2, folder)
            )
        if restart + 1 < starts:
            told += [
                RankExited(at[3], Rank(1), restart, 10 + restart, False),
                RankExited(at[4], Rank(0), restart, -15, False),
            ]
    return [*told, *end]


def test_each_start_of_the_ranks_that_the_agent_repeated_is_told_of(tmp_path: Path) -> None:
    late = [MonotonicNs(100 + number) for number in range(4)]
    ended_well = [RankExited(late[1], Rank(rank), 2, 0, False) for rank in (0, 1)]
    told = restarted_run(3, *ended_well, AgentExited(late[3], -9))
    first, second = (
        f"rank 1 exited with code {code} and printed no error; torch's agent restarted all ranks" for code in (10, 11)
    )
    verdict = judging.judged(tmp_path, told, 0)
    assert (verdict.outcome, verdict.restarts, verdict.notes) == (
        "succeeded",
        2,
        (f"{first} (1 of 5)", f"{second} (2 of 5)"),
    )
    then = [judging.restarted(tmp_path, told[: 4 * restart + 4], 0, restart, rank_files=False) for restart in (1, 2)]
    assert then == list(verdict.notes), "as soon as a rank of the next start says hello"
    stopped = restarted_run(
        2, SignalReceived(late[0], 15), RankExited(late[1], Rank(1), 1, -15), AgentExited(late[2], 143)
    )
    verdict = judging.judged_by_events(tmp_path, stopped, 0)
    assert (verdict.outcome, verdict.notes) == ("interrupted", (f"{first} (1 of 5)",)), "the stop came later"
    verdict = judging.judged(tmp_path, restarted_run(9), 0)
    assert verdict.notes[2:4] == (verdict.notes[2], "and 5 more restarts")


def test_agents_of_several_nodes_start_ranks_again_for_what_cannot_be_seen_here(tmp_path: Path) -> None:
    (tmp_path / "attempt_0").mkdir()
    closing = "W1 api.py:1010] Sending process 100 closing signal SIGTERM\n"
    (tmp_path / "attempt_0" / "agent.log").write_text(closing)
    told = [each for each in restarted_run(2, nodes=2) if not isinstance(each, RankExited) or each.code == -15]
    assert judging.restarted(tmp_path, told, 0, 1, rank_files=False) == (
        "no rank of this node failed on its own; torch's agent restarted all ranks (restart 1)"
    )


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
