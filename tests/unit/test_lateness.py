"""Who comes last to the collectives, by values."""

from __future__ import annotations

from ddp_run.observe.collectives import Late, LateWatch, latest
from ddp_run.record.events import Rank

MS = 1_000_000


def entered(*lags_ms: int, count: int = 30) -> dict[tuple[str, int], int]:
    """A collective each 100 ms; the rank comes to the n-th so much later, the lags in turns."""
    return {("0", n): (100 * n + lags_ms[n % len(lags_ms)]) * MS for n in range(count)}


def test_the_rank_that_all_others_wait_for() -> None:
    late = latest({Rank(0): entered(1, 2), Rank(1): entered(40), Rank(2): entered(0)})
    assert late is not None
    assert (late.rank, late.times, late.compared) == (1, 30, 30)
    assert 0.038 < late.waited_s < 0.04
    assert late.matters(0.1)
    assert not late.matters(1.0)  # four hundredths of a step
    assert not late.matters(0.0)


def test_ranks_that_take_turns_are_not_late() -> None:
    late = latest({Rank(0): entered(0, 50), Rank(1): entered(50, 0)})
    assert late is not None
    assert not late.matters(0.1)


def test_a_few_collectives_say_nothing() -> None:
    assert latest({Rank(0): entered(0, count=10), Rank(1): entered(50, count=10)}) is None


def test_collectives_that_all_enter_together_say_nothing() -> None:
    """A step of an all_reduce, to which one comes late, and two more collectives, to which all come from that."""
    late = latest({Rank(0): entered(0, 2, 0), Rank(1): entered(50, 1, 1), Rank(2): entered(1, 0, 2)})
    assert late == Late(Rank(1), 10, 10, 0.0495)
    assert late.matters(0.1)
    assert latest({Rank(0): entered(0, 2), Rank(1): entered(1, 0)}) is None


def test_only_what_all_have_entered_is_compared() -> None:
    subgroup = {("7", n): 5000 * MS for n in range(100)}
    assert latest({Rank(0): entered(0), Rank(1): entered(30) | subgroup}) == Late(Rank(1), 30, 30, 0.03)
    assert latest({Rank(0): entered(0), Rank(1): subgroup}) is None
    assert latest({Rank(0): entered(0)}) is None
    assert latest({}) is None


def test_a_rank_is_told_of_once_and_when_it_was_late_twice() -> None:
    watch = LateWatch()
    slow = {rank: {Rank(other): entered(40 if other == rank else 0) for other in range(3)} for rank in range(3)}
    told = [watch.compare(slow[rank], 0.1) for rank in (1, 2, 1, 1, 1, 1, 2, 2, 1, 1)]
    assert [late and late.rank for late in told] == [None, None, None, 1, None, None, None, 2, None, 1]
    assert watch.compare({}, 0.1) is None
