"""Nodes that torch numbers only when they have met (c10d): who has the hub, and what nodes are called until then."""

from __future__ import annotations

from dataclasses import replace

from tests.process.agreeing import BAD, Run, again, loop, place, serve, started

from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import (
    Rank,
    RankExited,
)
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.hub import Hub
from ddp_run.supervise.nodes.link import Reach
from ddp_run.supervise.nodes.member import Member
from ddp_run.supervise.nodes.messages import (
    Report,
)
from ddp_run.supervise.nodes.place import Place

__all__ = ["loop", "place"]


def without_numbers(place: Place) -> tuple[Place, Place, Place]:
    """The endpoint's host and two others."""
    first = replace(place, node_rank=None, has_endpoint=True)
    others = (replace(first, host=host, folder=f"/runs/{host}", has_endpoint=False) for host in "bc")
    return (first, *others)  # type: ignore[return-value]  # three


def test_the_hub_is_where_the_endpoint_is_and_numbers_come_with_the_ranks(loop: Loop, place: Place) -> None:
    hub, one, two = (Run(loop, each) for each in without_numbers(place))
    assert (type(hub.side), type(one.side), type(two.side)) == (Hub, Member, Member)
    serve(loop, lambda: one.has_joined and two.has_joined)
    assert [node.name for node in hub.hub._nodes.values()] in (["b", "c"], ["c", "b"])
    for run, number in ((hub, 1), (one, 2), (two, 0)):
        run.side.hear(replace(started(number), group_rank=number))
    serve(loop, lambda: {node.name for node in hub.hub._nodes.values()} == {"node 2 (b)", "node 0 (c)"})
    serve(loop, lambda: one.member._name_of_0 == two.member._name_of_0 == "node 1 (a)")
    one.side.hear(RankExited(now(), Rank(2), 0, 7))
    serve(loop, lambda: bool(hub.told and two.told))
    assert two.told[0][1] == replace(hub.told[0][1], at=two.told[0][1].at)
    assert (two.told[0][1].node_rank, two.told[0][1].host) == (2, "b")  # type: ignore[attr-defined]
    for run in (one, two):
        run.member._send(Report(0, BAD if run is one else Verdict("failed", 75, title="stopped with the job")))
    verdict, decision = hub.side.agree(Verdict("failed", 75, title="stopped with the job"), 0, again)
    assert (verdict.title, verdict.exit_code, decision.retry) == (BAD.title, 7, True)
    # torch numbers them anew
    assert {node.name for node in hub.hub._nodes.values()} == {"b", "c"}
    serve(loop, lambda: one.member._name_of_0 == "a")
    for run in (hub, one, two):
        run.close()


def test_a_second_ddp_run_on_the_endpoints_host_is_another_node(loop: Loop, place: Place) -> None:
    first, *_ = without_numbers(replace(place, nodes=2))
    hub, one = Run(loop, first), Run(loop, replace(first, folder="/runs/second"))
    serve(loop, lambda: one.has_joined)
    assert not hub.hub._roster.absent
    for run in (hub, one):
        run.close()


def test_a_node_that_leaves_before_the_ranks_start_can_be_replaced(loop: Loop, place: Place) -> None:
    first, gone, other = without_numbers(replace(place, nodes=2))
    hub, one = Run(loop, first), Run(loop, gone)
    serve(loop, lambda: one.has_joined)
    one.close()
    serve(loop, lambda: bool(hub.said))
    assert hub.said[0] == "b was lost: its ddp-run was killed or its host went down"
    two = Run(loop, other)
    serve(loop, lambda: two.has_joined)
    assert [node.name for node in hub.hub._nodes.values()] == ["c"]
    assert not hub.told
    for run in (hub, two):
        run.close()


def test_a_node_too_many_is_sent_away_and_ends_nothing(loop: Loop, place: Place) -> None:
    first, other, late = without_numbers(replace(place, nodes=2))
    hub, one = Run(loop, first), Run(loop, other)
    serve(loop, lambda: one.has_joined)
    two = Run(loop, late)
    serve(loop, lambda: two.member._reach is Reach.HUNG_UP)
    assert not (two.has_joined or hub.told or one.told)
    for run in (hub, one, two):
        run.close()
