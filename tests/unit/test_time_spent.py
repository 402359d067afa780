"""Where the time went, over events with known stamps."""

from __future__ import annotations

import pytest

from ddp_run.record.events import (
    AgentExited,
    AttemptEnded,
    AttemptStarted,
    CheckpointSeen,
    Event,
    LocalRank,
    MonotonicNs,
    Next,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    SignalReceived,
    StallEnded,
    StallSeen,
    StragglerSeen,
)
from ddp_run.record.time_spent import Lost, RankSeconds, TimeSpent, time_spent


def at(seconds: float) -> MonotonicNs:
    return MonotonicNs(round((1000 + seconds) * 1e9))


def attempt(number: int, seconds: float) -> Event:
    return AttemptStarted(at(seconds), number, (), None)


def rank_starts(rank: int, seconds: float, restart: int = 0, *, watched: bool = True) -> Event:
    return RankStarted(at(seconds), Rank(rank), LocalRank(rank), restart, 100 + rank, 2, 2, "", watched=watched)


def phases(rank: int, restart: int = 0, **stamps: float) -> list[Event]:
    return [RankPhase(at(s), Rank(rank), restart, name.replace("_", "-")) for name, s in stamps.items()]


def exits(rank: int, seconds: float, code: int = 0, restart: int = 0) -> Event:
    return RankExited(at(seconds), Rank(rank), restart, code)


def ends(number: int, seconds: float, decision: Next = Next.STOP) -> Event:
    return AttemptEnded(at(seconds), number, "failed", None, 1, decision, "")


def trains(restart: int = 0, begin: float = 0.0) -> list[Event]:
    """Two ranks: 10 s start, 5 s init, then steps."""
    started = [rank_starts(rank, begin + 2, restart) for rank in (0, 1)]
    at_phase = {"init": begin + 10, "after_init": begin + 11, "training": begin + 15}
    return [*started, *phases(0, restart, **at_phase), *phases(1, restart, **at_phase)]


def spent(*events: Event) -> TimeSpent:
    found = time_spent(events)
    assert found is not None
    return found


def test_no_rank_has_started() -> None:
    assert time_spent([attempt(0, 0), AgentExited(at(3), 1), ends(0, 4)]) is None


def test_a_run_that_ends_well() -> None:
    left = [*phases(0, shutdown=100), RankFinished(at(100), Rank(1), 0), exits(0, 101), exits(1, 103)]
    found = spent(attempt(0, 0), *trains(), *left, ends(0, 104))
    assert found == TimeSpent(2, RankSeconds(start=20, init=10, steps=170, shutdown=4))
    assert found.lost_words is None


def test_after_a_failure_no_step_counts() -> None:
    failed = RankFailed(at(75), Rank(1), 0, 1, None)
    found = spent(attempt(0, 0), *trains(), failed, exits(1, 76, 1), exits(0, 80, -15), ends(0, 81))
    assert found.rank_seconds == RankSeconds(start=20, init=10, steps=120, after_failure=6)
    assert found.lost is None  # nobody knows whether a checkpoint was written


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_program_that_never_joins_a_group(has_failed: bool) -> None:
    code = int(has_failed)
    found = spent(attempt(0, 0), rank_starts(0, 2), exits(0, 50, code), ends(0, 51))
    assert found.rank_seconds == RankSeconds(start=50)


def test_a_program_without_optimizer_steps_does_something_else() -> None:
    found = spent(attempt(0, 0), rank_starts(0, 2), *phases(0, init=10, after_init=12), exits(0, 50))
    assert found.rank_seconds == RankSeconds(start=10, init=2, other=38)


def test_nobody_knows_what_a_rank_did_that_is_not_watched() -> None:
    found = spent(attempt(0, 0), rank_starts(0, 2, watched=False), exits(0, 50))
    assert found.rank_seconds == RankSeconds(other=50)


def stalls(seconds: float, since: float, *, hung: bool = True) -> Event:
    return StallSeen(at(seconds), "nccl-timeout-hang", hung, "", (), (), at(since), ())


def test_a_stall_begins_with_the_last_progress() -> None:
    seen = [stalls(40, 30), stalls(45, 30), StallEnded(at(50), 20), stalls(70, 60), exits(0, 80, 9), exits(1, 80, 9)]
    found = spent(attempt(0, 0), *trains(), *seen)
    assert found.rank_seconds == RankSeconds(start=20, init=10, steps=50, stalled=80)


def test_a_long_step_is_no_stall() -> None:
    found = spent(attempt(0, 0), *trains(), stalls(40, 30, hung=False), exits(0, 80), exits(1, 80))
    assert found.rank_seconds == RankSeconds(start=20, init=10, steps=130)


def test_a_stall_may_be_before_the_first_step() -> None:
    joins = [rank_starts(0, 2), *phases(0, init=10), stalls(40, 12), exits(0, 60, -9)]
    assert spent(attempt(0, 0), *joins).rank_seconds == RankSeconds(start=10, init=2, stalled=48)


def test_others_wait_for_a_slow_rank() -> None:
    slow = [StragglerSeen(at(seconds), Rank(1), 10, 10, 0.5, 2.0) for seconds in (100, 160)]
    found = spent(attempt(0, 0), *trains(), *slow, exits(0, 200), exits(1, 200))
    # a quarter of each step, over the two minutes that were compared, of which 15 s to 40 s had no comparison
    assert found.rank_seconds == RankSeconds(start=20, init=10, steps=370 - 30, waiting=30)


def test_attempts_and_restarts_add_up() -> None:
    first = [*trains(), exits(0, 65, 1), exits(1, 65, 1)]
    again = [*trains(1, begin=65), exits(0, 100, 1, 1), exits(1, 102, 1, 1), ends(0, 103, Next.RETRY)]
    second = [attempt(1, 112), *trains(begin=112), exits(0, 187), exits(1, 187), ends(1, 188)]
    found = spent(attempt(0, 0), *first, *again, *second)
    expected = RankSeconds(start=60, init=30, steps=100 + 40 + 120, after_failure=2, between_attempts=20)
    assert found.rank_seconds == expected


def checkpoint(path: str | None, written: float | None) -> Event:
    return CheckpointSeen(at(90), "/ckpt", path, None if written is None else at(written))


@pytest.mark.parametrize(
    ("path", "written", "lost", "words"),
    [
        ("/ckpt/step_40.pt", 45, 30, "lost 30s of 2 ranks since checkpoint ckpt/step_40.pt"),
        ("/ckpt/old.pt", 3, 60, "lost 1m00s of 2 ranks, as no checkpoint was written"),
        (None, None, 60, "lost 1m00s of 2 ranks, as no checkpoint was written"),
        ("/ckpt/last.pt", 74.5, 0.5, None),
        ("/ckpt/at_the_signal.pt", 76, 0, None),
    ],
)
def test_lost_since_the_last_checkpoint(path: str | None, written: float, lost: float, words: str | None) -> None:
    stop = SignalReceived(at(75), 15)
    found = spent(attempt(0, 0), *trains(), stop, exits(0, 80, -15), checkpoint(path, written), exits(1, 80, -15))
    assert found.lost is not None
    assert (found.lost.seconds, found.lost.rank_seconds, found.lost.since) == (
        lost,
        2 * lost,
        path if written is not None and written > 15 else None,
    )
    assert found.lost_words == words


def test_each_attempt_loses_what_it_did_not_save() -> None:
    first = [*trains(), exits(0, 65, 1), checkpoint("/ckpt/a.pt", 55), exits(1, 65, 1), ends(0, 66, Next.RETRY)]
    second = [attempt(1, 70), *trains(begin=70), exits(0, 95, 1), checkpoint("/ckpt/a.pt", 55), exits(1, 95, 1)]
    found = spent(attempt(0, 0), *first, *second)
    assert found.lost == Lost(20, 40, 2, None)
    assert found.lost_words == "lost 20s of 2 ranks in 2 attempts"
    unknown = [event for event in second if not isinstance(event, CheckpointSeen)]
    assert spent(attempt(0, 0), *first, *unknown).lost is None


def test_what_failed_before_the_first_step_lost_no_work() -> None:
    failed = [rank_starts(0, 2), *phases(0, init=10), exits(0, 20, 1), checkpoint(None, None)]
    found = spent(attempt(0, 0), *failed)
    assert (found.lost, found.lost_words) == (None, None)
