"""What all nodes show of a stall is put together by node 0, and told to all."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.process.agreeing import Run, loop, place, runs, serve, serve_for

from ddp_run.observe.close_look import CloseLook, ProcessState
from ddp_run.observe.lateness import Arrivals
from ddp_run.observe.picture import Picture
from ddp_run.observe.stack_text import Frame, Stack
from ddp_run.plan.net import free_port
from ddp_run.record.events import AttemptStarted, Noted, Rank, RankExited, RankFinished, RanksEnded, StragglerSeen
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.place import Place

__all__ = ["loop", "place", "runs"]


def shown(rank: int, *, stuck: bool = False) -> Picture:
    """A rank that waits in a barrier, or that stands in a lock of its own."""
    place = Frame("/home/user/train.py", 88, "step")
    barrier = Frame("/site-packages/torch/distributed/distributed_c10d.py", 5000, "barrier")
    stack = Stack((place,) if stuck else (barrier, place))
    look = CloseLook(Rank(rank), ProcessState.SLEEPING, stack, stack, on_lock=stuck)
    return Picture((look,), quiet_s=20.0, world_size=3)


def test_a_stall_is_put_together_from_all_nodes_and_told_to_all(loop: Loop, runs: list[Run]) -> None:
    for number, run in enumerate(runs):
        assert run.side.others.stall_of_all is None
        assert run.side.others.share(shown(number, stuck=number == 2))
    serve(loop, lambda: all(run.side.others.stall_of_all for run in runs))
    for run in runs:
        stall = run.side.others.stall_of_all
        assert stall is not None
        assert stall.culprits == (2,)
        assert stall.said.startswith("rank 2 waits for a lock or a thread at train.py:88 in step; ranks 0-1 wait for")
    runs[1].side.others.share(None)  # it makes progress again
    assert runs[1].side.others.stall_of_all is None
    serve(loop, lambda: not any(run.side.others.stall_of_all for run in runs))


def test_ranks_that_have_ended_on_another_node_are_part_of_it(loop: Loop, runs: list[Run]) -> None:
    began = AttemptStarted(now(), 0, (), None)
    ended = (began, RankFinished(now(), Rank(2), 0), RankExited(now(), Rank(2), 0, 0), RanksEnded(now()))
    for event in ended:
        runs[2].events.append(event)
        runs[2].side.hear(event)
    for number in (0, 1):
        runs[number].side.others.share(shown(number))
    serve(loop, lambda: runs[0].side.others.stall_of_all is not None)
    stall = runs[0].side.others.stall_of_all
    assert stall is not None
    assert (stall.cause, stall.culprits) == ("peer-died", (2,))


def test_nothing_is_put_together_before_all_nodes_have_shown_their_ranks(loop: Loop, place: Place) -> None:
    hub, one = Run(loop, place), Run(loop, replace(place, node_rank=1, host="b"))
    serve(loop, lambda: one.has_joined)
    assert not hub.side.others.share(shown(0))
    one.side.others.share(shown(1))
    serve_for(loop, 1.5)
    assert hub.side.others.stall_of_all is None
    two = Run(loop, replace(place, node_rank=2, host="c", port=free_port()))
    assert not two.side.others.share(shown(2))  # it reaches nobody
    for run in (hub, one, two):
        run.close()


def test_a_picture_too_long_for_a_line_is_not_sent(loop: Loop, runs: list[Run]) -> None:
    long = Frame("/" + "x" * 40_000, 1, "f")
    look = replace(shown(1).looks[0], second=Stack((long,) * 40))
    assert not runs[1].side.others.share(Picture((look,)))
    serve_for(loop, 0.2)
    assert runs[1].member._link is not None
    assert runs[1].member._link.is_open


def test_a_broken_picture_ends_nothing(loop: Loop, runs: list[Run]) -> None:
    broken = replace(shown(1).looks[0], apart_s=0.0)
    for number, run in enumerate(runs):
        run.side.others.share(Picture((broken,)) if number == 1 else shown(number))
    serve(loop, lambda: any(isinstance(event, Noted) for event in runs[0].events))
    assert runs[0].side.others.stall_of_all is None
    assert runs[0].told == []


def test_the_node_that_is_late_is_named_once_on_all(loop: Loop, runs: list[Run]) -> None:
    hub, one = runs[0].hub, runs[1].member
    for question in range(1, 5):
        for _beat in range(60):
            hub.others.look()
        assert hub.others.question == question
        serve(loop, lambda: one.others.question == question)  # noqa: B023
        now_ns = time.time_ns()
        for number, run in enumerate(runs):
            lag = 50_000_000 * (number == 1)
            keys = ("gloo:0",) * 30, tuple(range(30)), (Rank(number),) * 30
            times = tuple(now_ns + 100_000_000 * n + lag for n in range(30))
            run.side.others.answer(Arrivals((Rank(number),), 0.1, *keys, times, times))
        serve_for(loop, 0.2)
    for run in runs:
        (seen,) = [event for event in run.events if isinstance(event, StragglerSeen)]
        assert (seen.rank, seen.node, seen.times, seen.compared, seen.step_s) == (1, "node 1 (b)", 30, 30, 0.1)
        assert abs(seen.waited_s - 0.05) < 0.005


def test_nobody_is_asked_who_is_late_while_nodes_are_missing(loop: Loop, place: Place) -> None:
    hub, one = Run(loop, place), Run(loop, replace(place, node_rank=1, host="b"))
    serve(loop, lambda: one.has_joined)
    assert hub.side.others.question is None
    assert one.side.others.question is None
    for run in (hub, one):
        run.close()
