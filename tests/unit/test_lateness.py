"""Who comes last to the collectives, by values."""

from __future__ import annotations

from ddp_run.observe.lateness import Arrivals, Late, LateWatch, arrivals, latest
from ddp_run.record.events import MonotonicNs, Rank, StragglerSeen

MS = 1_000_000


def entered(*lags_ms: int, count: int = 30) -> dict[tuple[str, int], int]:
    """A collective each 100 ms; the rank comes to the n-th so much later, the lags in turns."""
    return {("0", n): (100 * n + lags_ms[n % len(lags_ms)]) * MS for n in range(count)}


def test_the_rank_that_all_others_wait_for() -> None:
    late = latest({Rank(0): entered(1, 2), Rank(1): entered(40), Rank(2): entered(0)})
    assert late is not None
    assert (late.who, late.times, late.compared) == (1, 30, 30)
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
    assert [late and late.who for late in told] == [None, None, None, 1, None, None, None, 2, None, 1]
    assert watch.compare({}, 0.1) is None


# ------------------------------------------------------------------------------------------- several nodes


def node(first: int, *lags_ms: int, ahead_ms: int = 0) -> Arrivals:
    """A node whose ranks, from `first` on, always come so much later; its clock is ahead."""
    ranks = {Rank(first + place): entered(lag + ahead_ms) for place, lag in enumerate(lags_ms)}
    return arrivals(ranks, 0.1)


def seen(*nodes: Arrivals, ahead_ms: tuple[int, ...] = (0, 0, 0)) -> StragglerSeen | None:
    """What is said of nodes whose clocks are known to be so far ahead."""
    late = latest({key: each.entered(ahead_ms[key] * MS) for key, each in enumerate(nodes)})
    return None if late is None else nodes[late.who].seen(MonotonicNs(7), late, f"node {late.who}")


def test_one_rank_of_a_node_is_late() -> None:
    assert seen(node(0, 0, 1), node(2, 1, 45)) == StragglerSeen(
        MonotonicNs(7), Rank(3), 30, 30, 0.044, 0.1, node="node 1"
    )
    assert seen(node(0, 0), node(1, 50), node(2, 2)) == StragglerSeen(
        MonotonicNs(7), Rank(1), 30, 30, 0.049, 0.1, node="node 1"
    )


def test_a_whole_node_is_late_even_if_its_ranks_always_come_in_the_same_order() -> None:
    found = seen(node(0, 0, 2, 1, 1), node(4, 40, 41, 40, 44))
    assert found is not None
    assert (found.node, found.ranks, found.late, found.waited_s) == ("node 1", (4, 5, 6, 7), (4, 5, 6, 7), 0.042)


def test_two_ranks_of_a_node_that_take_turns_are_told_as_their_node() -> None:
    late = {Rank(4): entered(0), Rank(5): entered(0), Rank(6): entered(40, 10), Rank(7): entered(10, 40)}
    found = seen(node(0, 0, 0, 0, 0), arrivals(late, 0.1))
    assert found is not None
    assert found.ranks == (4, 5, 6, 7)


def test_clocks_of_other_nodes_are_corrected() -> None:
    assert seen(node(0, 0, 1), node(2, 1, 0, ahead_ms=900), ahead_ms=(0, 900)) is None
    found = seen(node(0, 40, 1), node(2, 0, 0, ahead_ms=900), ahead_ms=(0, 900))
    assert found is not None
    assert found.late == (0,)


def test_a_collective_counts_once_all_users_of_its_group_on_the_node_have_entered_it() -> None:
    early, behind = entered(0), entered(0, count=29)
    shown = arrivals({Rank(0): early | {("7", 1): 5 * MS}, Rank(1): behind}, 0.1)
    assert shown.ranks == (0, 1)
    assert [*zip(shown.groups, shown.numbers, strict=True)] == [*((("0", n)) for n in range(29)), ("7", 1)]
    assert shown.peers[-1] == shown.at[-1] == 5 * MS
    assert arrivals({Rank(0): {}, Rank(1): {}}, 0.1) == Arrivals((Rank(0), Rank(1)), 0.1)
    assert arrivals({}, 0.0).entered(0) == {}
