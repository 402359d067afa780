"""What a node sends of the rank that its verdict names: the end of its stderr."""

from __future__ import annotations

from pathlib import Path

from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.record.events import LocalRank, MonotonicNs, Rank, RankStarted
from ddp_run.tell.selection import last_lines

R0, R1 = Rank(0), Rank(1)


def started(rank: Rank, attempt: int) -> RankStarted:
    return RankStarted(
        MonotonicNs(attempt), rank, LocalRank(rank), 0, 4242 + attempt, 2, 2, f"attempt_{attempt}/rank_{rank}", True
    )


def test_they_are_of_the_named_rank_in_the_last_attempt(tmp_path: Path) -> None:
    starts = [started(rank, attempt) for attempt in (0, 1) for rank in (R0, R1)]
    for start in starts:
        (tmp_path / start.folder).mkdir(parents=True)
        (tmp_path / start.folder / "stderr.log").write_text(f"first\nlast of {start.folder}\n")
    for rank in (R0, R1):
        verdict = Verdict("failed", 1, first_failure=FirstFailure(rank))
        assert last_lines(verdict, starts, tmp_path) == ("first", f"last of attempt_1/rank_{rank}")


def test_there_are_none_where_no_rank_is_named_or_nothing_can_be_read(tmp_path: Path) -> None:
    for failure in (None, FirstFailure(None, node_rank=1), FirstFailure(R1)):
        assert last_lines(Verdict("failed", 1, first_failure=failure), [started(R1, 0)], tmp_path) == ()
