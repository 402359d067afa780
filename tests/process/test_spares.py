"""Spare nodes (`--spare-nodes`), as node 0 sees them: who takes part, who waits, who is left out for whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.process.agreeing import BAD, Run, again, loop, place, serve, started
from tests.process.test_stall_of_all_nodes import shown

from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import FirstFailure, Retry, Verdict
from ddp_run.record.events import NodesReplaced, Rank
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.messages import Report, Start
from ddp_run.supervise.nodes.place import Place

__all__ = ["loop", "place"]

FULL = Verdict(
    *("failed", 1, "disk-full", "DDP905", "the disk is full", "certain"),
    first_failure=FirstFailure(Rank(1), exit_code=1, host="b", node_rank=1),
    retry=Retry(helps=False, reason="the disk will still be full"),
)


WELL = Verdict("succeeded", 0)


def by_cause(verdict: Verdict) -> Decision:
    assert verdict.retry is not None
    return Decision(verdict.retry.helps, verdict.retry.reason, port=4711)


@pytest.fixture
def job(loop: Loop, place: Place) -> Iterator[list[Run]]:
    """A job of two nodes, the second of which is b; c and d wait, in this order."""
    first = replace(place, nodes=2, node_rank=None, has_endpoint=True, spares=2)
    made = [Run(loop, first)]
    for host in "bcd":
        member = Run(loop, replace(first, host=host, folder=f"/runs/{host}", has_endpoint=False))
        made.append(member)
        serve(loop, lambda member=member: member.has_joined)  # type: ignore[misc]  # its type is that of `until`
    yield made
    for run in made:
        run.close()


def start(*runs: Run) -> None:
    for number, run in enumerate(runs):
        run.side.hear(replace(started(number), group_rank=number, group_world_size=len(runs)))


def hosts(runs: list[Run]) -> tuple[list[str], list[str]]:
    """Those that take part besides node 0, and those that wait."""
    roster = runs[0].hub._roster
    return [node.join.host for node in roster.counted], [node.join.host for node in roster.spares]


def test_the_first_that_come_take_part(loop: Loop, job: list[Run]) -> None:
    hub, one, *others = job
    serve(loop, lambda: one.member._part is not None)
    assert hosts(job) == (["b"], ["c", "d"])
    assert hub.side.await_part() == one.side.await_part() == Start(0, None)
    assert [run.member._part for run in others] == [None, None]


def test_a_node_that_is_lost_before_the_ranks_start_is_replaced_at_once(loop: Loop, job: list[Run]) -> None:
    hub, one, two, _three = job
    one.close()
    serve(loop, lambda: two.member._part == Start(0, None))
    assert (hosts(job), hub.told) == ((["c"], ["d"]), [])


def test_a_lost_node_is_replaced_in_the_next_attempt(loop: Loop, job: list[Run]) -> None:
    hub, one, two, _three = job
    start(hub, one)
    one.close()
    serve(loop, lambda: bool(hub.told))
    _verdict, decision = hub.side.agree(replace(BAD, exit_code=75), 0, again)
    serve(loop, lambda: two.member._part is not None)
    assert (decision.retry, decision.port, hosts(job)) == (True, 29501, (["c"], ["d"]))
    assert two.side.await_part() == Start(1, decision)
    (event,) = (event for event in hub.events if isinstance(event, NodesReplaced))
    assert (event.attempt, event.spares) == (1, ("c",))


def test_a_spare_node_that_takes_part_shows_its_ranks_as_the_others_do(loop: Loop, job: list[Run]) -> None:
    hub, one, two, _three = job
    start(hub, one)
    one.close()
    serve(loop, lambda: bool(hub.told))
    hub.side.agree(replace(BAD, exit_code=75), 0, again)
    serve(loop, lambda: two.member._part is not None)
    start(hub, two)
    for number, run in enumerate((hub, two)):
        assert run.side.others.share(shown(number, stuck=number == 1))
    serve(loop, lambda: all(run.side.others.stall_of_all for run in (hub, two)))
    stall = two.side.others.stall_of_all
    assert stall is not None
    assert stall.culprits == (1,)


def test_a_host_at_fault_is_left_out_though_a_retry_there_would_not_help(loop: Loop, job: list[Run]) -> None:
    hub, one, two, _three = job
    start(hub, one)
    one.member._send(Report(0, FULL))
    verdict, decision = hub.side.agree(Verdict("failed", 75, title="stopped with the job"), 0, by_cause)
    assert (verdict.cause, verdict.retry) == (FULL.cause, FULL.retry)
    assert decision.reason == "another host may not have this failure; c in place of node 1 (b): the disk is full"
    serve(loop, lambda: two.member._part is not None and one.side.is_left_out)
    assert hosts(job) == (["c"], ["d"])
    two.member._send(Report(1, WELL))
    hub.side.agree(WELL, 1, lambda _verdict: Decision(False, "the job succeeded"))
    serve(loop, lambda: not one.side.is_left_out)
    told = one.side.await_part()
    assert isinstance(told, tuple)
    assert (told[0].outcome, told[1]) == ("succeeded", Decision(False, "the job succeeded"))
    assert told[0].notes == ("from attempt 2 on: c in place of node 1 (b): the disk is full",)


def test_without_a_spare_node_a_full_disk_is_not_retried(loop: Loop, job: list[Run]) -> None:
    hub, one, *others = job
    start(hub, one)
    for run in others:
        run.close()
    serve(loop, lambda: hosts(job) == (["b"], []))
    assert not (hub.told or one.told)
    one.member._send(Report(0, FULL))
    _verdict, decision = hub.side.agree(Verdict("failed", 75, title="stopped with the job"), 0, by_cause)
    assert (decision.retry, decision.reason) == (False, "the disk will still be full")


def test_a_spare_node_that_was_not_needed_has_the_jobs_verdict(loop: Loop, job: list[Run]) -> None:
    hub, one, two, _three = job
    start(hub, one)
    one.member._send(Report(0, FULL))
    hub.side.agree(Verdict("failed", 75, title="stopped with the job"), 0, lambda _verdict: Decision(False, "no retry"))
    told = two.side.await_part()
    assert isinstance(told, tuple)
    assert (told[0].cause, told[1]) == ("disk-full", Decision(False, "no retry"))
