"""Nodes of an elastic job (`--nnodes MIN:MAX`): which of them count when it ends, and which have just left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from signal import Signals

import pytest
from tests.process.agreeing import BAD, Run, loop, place, refused, serve, started

from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import AgentExited, SignalReceived
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.messages import Report
from ddp_run.supervise.nodes.place import Place

__all__ = ["loop", "place"]

PEER_LOST = Verdict("failed", 75, "peer-died", "DDP301", "rank 0 lost its connection to a peer", "certain")
WELL = Verdict("succeeded", 0)


def no_retry(_verdict: Verdict) -> Decision:
    return Decision(False, "no retry is asked for")


@pytest.fixture
def job(loop: Loop, place: Place) -> Iterator[list[Run]]:
    """Three of at most three nodes, at least two; nobody's ranks run yet. The first has the hub."""
    first = replace(place, node_rank=None, has_endpoint=True, least=2, agent_restarts=True)
    made = [Run(loop, first)]
    made += [Run(loop, replace(first, host=host, folder=f"/runs/{host}", has_endpoint=False)) for host in "bc"]
    serve(loop, lambda: all(run.has_joined for run in made[1:]))
    yield made
    for run in made:
        run.close()


def start(loop: Loop, *runs: Run, restart: int = 0) -> None:
    """Torch has met with these, and their ranks start."""
    for number, run in enumerate(runs):
        hello = replace(started(number), group_rank=number, group_world_size=len(runs), restart=restart)
        run.side.hear(hello)
    hub, others = runs[0].hub, {"abc"[number] for number in range(len(runs))}
    serve(loop, lambda: {each.join.host for each in hub._roster.counted if each.node_rank} <= others)
    serve(loop, lambda: len(hub._roster.counted) >= len(runs) - 1)


def test_a_node_that_leaves_ends_nothing_and_is_forgotten_in_the_next_round(loop: Loop, job: list[Run]) -> None:
    hub, one, two = job
    start(loop, *job)
    two.side.hear(SignalReceived(now(), Signals.SIGTERM))
    serve(loop, lambda: bool(hub.said))
    assert hub.said == ["node 2 (c) left: stopped by SIGTERM"]
    verdict, decision = two.side.agree(Verdict("interrupted", 143), 0, refused)
    assert (verdict.exit_code, decision.reason) == (143, "this node has left the job")
    two.close()
    assert not (hub.told or one.told)
    start(loop, hub, one, restart=1)
    serve(loop, lambda: len(hub.hub._nodes) == 1)
    one.member._send(Report(0, PEER_LOST))
    verdict, _decision = hub.side.agree(PEER_LOST, 0, no_retry)
    assert (verdict.cause, verdict.notes) == ("peer-died", ())


def test_a_node_that_left_is_the_cause_where_no_round_followed(loop: Loop, job: list[Run]) -> None:
    hub, one, two = job
    start(loop, *job)
    two.side.hear(AgentExited(now(), -9))
    two.close()
    serve(loop, lambda: bool(hub.said))
    one.side.hear(AgentExited(now(), 1))
    serve(loop, lambda: bool(hub.told))
    one.member._send(Report(0, PEER_LOST))
    verdict, _decision = hub.side.agree(PEER_LOST, 0, no_retry)
    assert (verdict.cause, verdict.exit_code) == ("node-failed", 75)
    assert verdict.title == "node 2 (c) left: torch's agent ended (SIGKILL)"


def test_a_lost_node_leaves_its_place_to_another(loop: Loop, job: list[Run], place: Place) -> None:
    hub, one, two = job
    start(loop, *job)
    two.close()
    serve(loop, lambda: bool(hub.said))
    assert hub.said == ["node 2 (c) was lost: its ddp-run was killed or its host went down"]
    assert not (hub.told or one.told)
    other = Run(loop, replace(place, node_rank=None, host="d", folder="/runs/d", least=2, agent_restarts=True))
    serve(loop, lambda: other.has_joined)
    start(loop, hub, one, other, restart=1)
    serve(loop, lambda: [node.name for node in hub.hub._nodes.values()] == ["node 1 (b)", "node 2 (d)"])
    other.close()


def test_a_node_that_waits_gets_the_verdict_and_is_not_waited_for(loop: Loop, job: list[Run]) -> None:
    hub, one, two = job
    start(loop, hub, one)
    assert [node.join.host for node in hub.hub._roster.counted] == ["b"]
    one.member._send(Report(0, WELL))
    verdict, _decision = hub.side.agree(WELL, 0, no_retry)
    assert verdict.outcome == "succeeded"
    two.side.hear(AgentExited(now(), 1))  # torch: its rendezvous was closed
    verdict, _decision = two.side.agree(BAD, 0, refused)
    assert verdict.outcome == "succeeded"


def test_a_node_that_fails_before_its_ranks_start_harms_no_other(loop: Loop, job: list[Run]) -> None:
    hub, one, two = job
    two.side.hear(AgentExited(now(), 1))
    serve(loop, lambda: bool(hub.said))
    assert hub.said == ["c left: torch's agent ended (exit code 1)"]
    verdict, _decision = two.side.agree(BAD, 0, refused)
    assert verdict == BAD
    two.close()
    start(loop, hub, one)
    one.member._send(Report(0, WELL))
    verdict, _decision = hub.side.agree(WELL, 0, no_retry)
    assert (verdict.outcome, hub.told) == ("succeeded", [])


def test_a_failure_of_an_agent_ends_all(loop: Loop, job: list[Run]) -> None:
    hub, one, two = job
    start(loop, *job)
    one.side.hear(AgentExited(now(), 1))
    serve(loop, lambda: bool(hub.told and two.told))
    assert hub.was_told == two.was_told == ["torch's agent ended (exit code 1)"]


def test_only_nodes_that_are_needed_are_missing(loop: Loop, place: Place) -> None:
    hub = Run(loop, replace(place, node_rank=None, has_endpoint=True, nodes=8, least=3))
    assert hub.hub._roster.missing == "2 more nodes of at least 3"
    hub.close()
