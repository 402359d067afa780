"""When a look at the ranks is due, by values."""

from __future__ import annotations

import pytest

from ddp_run.observe.stall_watch import Due, RankLook, Watch
from ddp_run.record.events import Rank

S = 1_000_000_000


def ranks_at(at_s: float, phase: str = "training", steps: int = 0) -> RankLook:
    return RankLook(Rank(0), phase, round(at_s * S), steps)


def fed(watch: Watch, seconds: range, *looks: RankLook, due: Due = Due.CLOSER) -> list[int]:
    return [second for second in seconds if watch.look(second * S, looks) is due]


def test_a_look_after_fifteen_seconds_and_every_thirty_after() -> None:
    assert fed(Watch(), range(100, 200), ranks_at(100)) == [115, 145, 175]


@pytest.mark.parametrize(
    ("end_after_s", "looks"),
    [(300.0, [115, 145, 175]), (20.0, [115, 135, 155, 175, 195]), (12.0, [109, 121, 133]), (1.0, [103, 109, 115, 121])],
)
def test_a_look_is_over_by_the_time_at_which_the_job_is_to_end(end_after_s: float, looks: list[int]) -> None:
    assert fed(Watch(end_after_s), range(100, 200), ranks_at(100))[: len(looks)] == looks


def test_an_early_look_once_in_a_pause() -> None:
    assert fed(Watch(), range(100, 200), ranks_at(100), due=Due.EARLY) == [103]
    assert fed(Watch(), range(100, 200), ranks_at(100, "init"), due=Due.EARLY) == []


def test_early_looks_become_seldom_where_a_job_pauses_at_every_step() -> None:
    watch = Watch()
    seen = []
    for pause in range(300):
        begin = 100 + 10 * pause
        seen += fed(watch, range(begin, begin + 10), ranks_at(begin, steps=7), due=Due.EARLY)
    assert seen == [103, 113, 133, 173, 253, 413, 733, 1333, 1933, 2533]


def before_init(*worked_at_s: float) -> list[RankLook]:
    return [RankLook(Rank(rank), "before-init", worked_at=round(at * S)) for rank, at in enumerate(worked_at_s)]


def test_before_anybody_joins_the_rank_that_has_stood_longest_counts() -> None:
    assert fed(Watch(), range(100, 200), *before_init(100, 101)) == [115, 145, 175]
    assert fed(Watch(), range(100, 200), *before_init(100, 120), due=Due.EARLY) == []
    watch = Watch()
    assert not any(watch.look(at * S, before_init(at, at - 14)) for at in range(100, 200))
    assert (watch.joined, watch.since) == (False, 185 * S)
    assert watch.look(200 * S, before_init(200, 185)) is Due.CLOSER
    assert watch.look(201 * S, [*before_init(201), RankLook(Rank(1), "init", 200 * S)]) is None
    assert watch.joined


def test_before_anybody_joins_a_look_is_due_when_they_all_stand() -> None:
    watch, seen = Watch(), []
    for at in range(100, 200):
        if watch.look(at * S, before_init(100, min(at, 130))):
            seen.append(at)
    assert seen == [115, 140, 170]
    assert fed(Watch(), range(100, 130), *before_init(100, 112)) == [122]  # whether the other one stands is awaited


def test_a_program_that_pauses_again_and_again_before_it_joins_is_looked_at_ever_more_seldom() -> None:
    watch, seen = Watch(), []
    for at in range(100, 1000):
        if watch.look(at * S, before_init(at - at % 100)):
            seen.append(at)
    assert seen == [115, 145, 175, 230, 260, 290, 360, 390]


def test_ranks_that_have_left_before_anybody_joined_are_not_waited_for() -> None:
    assert fed(Watch(), range(100, 140), *before_init(100), RankLook(Rank(1), left=True)) == [115]
    assert fed(Watch(), range(100, 140), RankLook(Rank(1), left=True)) == []


def test_long_steps_are_learnt() -> None:
    watch = Watch()
    for step in range(1, 6):
        fed(watch, range(20 * step, 20 * step + 20), ranks_at(1, "training", step))
    assert (watch.step_s, watch.patience_s) == (20.0, 60.0)
    assert fed(watch, range(120, 190), ranks_at(1, "training", 5)) == [160]


def test_long_steps_are_not_looked_at_early() -> None:
    watch = Watch()
    for step in range(1, 6):
        looks = fed(watch, range(3 * step, 3 * step + 3), ranks_at(1, "training", step), due=Due.EARLY)
        assert step == 1 or looks == []
    assert fed(watch, range(18, 40), ranks_at(1, "training", 5), due=Due.EARLY) == [24]


def test_a_machine_that_slept_has_lost_no_progress() -> None:
    watch = Watch()
    assert fed(watch, range(100, 110), ranks_at(100)) == []
    assert fed(watch, range(1000, 1020), ranks_at(100)) == [1015]


def test_a_rank_that_has_left_is_reason_to_look_sooner() -> None:
    left = RankLook(Rank(1), left=True)
    assert fed(Watch(), range(100, 110), ranks_at(100), left) == [105]


def test_ranks_that_shut_down_are_given_time() -> None:
    left = RankLook(Rank(1), left=True)
    assert fed(Watch(), range(100, 120), ranks_at(100, "shutdown"), left) == [115]


def test_progress_ends_a_stall() -> None:
    watch = Watch()
    fed(watch, range(100, 120), ranks_at(100))
    watch.look(121 * S, [ranks_at(100, steps=1)])
    assert watch.since == 121 * S
