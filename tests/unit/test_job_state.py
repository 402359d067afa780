from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddp_run.record import journal
from ddp_run.record.events import (
    AttemptStarted,
    Event,
    LocalRank,
    MonotonicNs,
    Noted,
    ProgressSampled,
    Rank,
    RankExited,
    RankFailed,
    RankPhase,
    RankStarted,
)
from ddp_run.record.job_state import JobState

AT = MonotonicNs(1)


def starts(rank: int, restart: int = 0, pid: int = 10) -> RankStarted:
    return RankStarted(AT, Rank(rank), LocalRank(rank), restart, pid, 2, 2, f"attempt_0/rank_{rank}", watched=True)


def after(*events: Event) -> JobState:
    state = JobState()
    for event in events:
        state.take(event)
    return state


def test_ranks_of_the_last_start_count() -> None:
    first = [AttemptStarted(AT, 0, (), None), starts(0), starts(1), RankPhase(AT, Rank(0), 0, "init")]
    state = after(*first)
    assert [(rank, each.phase, each.ended) for rank, each in state.ranks.items()] == [
        (0, "init", False),
        (1, "before-init", False),
    ]
    ended = after(*first, RankFailed(AT, Rank(1), 0, 3, None), RankExited(AT, Rank(1), 0, -9))
    assert [event.rank for event in ended.alive] == [0]
    assert ended.ranks[Rank(1)].phase == "SIGKILL"
    again = after(*first, ProgressSampled(AT, (), (), (), ()), starts(1, restart=1), RankExited(AT, Rank(1), 0, 1))
    assert [(rank, each.phase) for rank, each in again.ranks.items()] == [(1, "before-init")]
    assert not again.progress
    assert not after(*first, AttemptStarted(AT, 1, (), None)).ranks


def test_a_journal_is_followed_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.touch()
    follower = journal.Follower(path)

    def written(text: str) -> list[Event]:
        with path.open("a") as file:
            file.write(text)
        return [*follower.more()]

    def line(text: str) -> str:
        return journal.encode(Noted(AT, text), "2026") + "\n"

    assert written("") == []
    assert written(line("one")[:20]) == []
    assert written(line("one")[20:] + line("two")) == [Noted(AT, "one"), Noted(AT, "two")]
    assert written("not JSON\n" + json.dumps({"event": "Newer"}) + "\n" + line("three")) == [Noted(AT, "three")]
    samples = [ProgressSampled(MonotonicNs(at), (Rank(0),), ("training",), (at,), (at,)) for at in range(5)]
    text = "".join(journal.encode(sample, "2026") + "\n" for sample in samples)
    assert written(line("before") + text + line("after")) == [Noted(AT, "before"), *samples[-3:], Noted(AT, "after")]
    follower.close()


def test_an_endless_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (16 << 20) + 1)
    with pytest.raises(OSError):
        journal.Follower(path).more()
