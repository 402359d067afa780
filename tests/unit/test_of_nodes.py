"""One verdict from what several nodes say, by values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_run.evidence.model import Quote
from ddp_run.judge.of_nodes import Ends, NodeReport, again, agreed, alone, by_clock_of, of_nodes, reported
from ddp_run.judge.verdict import Collateral, FirstFailure, Verdict
from ddp_run.record.events import Event, MonotonicNs, Rank

MS = 1_000_000
OK = Verdict("succeeded", 0, confidence="certain")
STOPPED = Verdict("interrupted", 143, "preempted-sigterm", "DDP901", "the job was stopped by SIGTERM", "certain")
AGENT = Verdict("failed", 75, "unknown", "DDP000", "torch's agent was killed by SIGKILL", "unknown")


def failed(rank: int, at_ms: int, cause: str = "python-exception", code: int = 1) -> Verdict:
    first = FirstFailure(Rank(rank), exit_code=code, at=MonotonicNs(at_ms * MS))
    quote = Quote(f"attempt_0/rank_{rank}/stderr.log", 7, "ValueError: bad")
    return Verdict(
        "failed", code, cause, "DDP600", f"rank {rank} failed", "certain", first_failure=first, evidence=(quote,)
    )


def lost_a_peer(rank: int) -> Verdict:
    gone = (Collateral(Rank(rank), 1, None, "lost its peer"),)
    return Verdict("failed", 75, "peer-died", "DDP501", f"rank {rank} lost its connection", "certain", collateral=gone)


def node(rank: int, verdict: Verdict | None, lost: str | None = None, **more: object) -> NodeReport:
    report = NodeReport(rank, f"host{rank}", f"/runs/{rank}", verdict, lost, here=rank == 0)
    return replace(report, **more)  # type: ignore[arg-type]


def test_all_well() -> None:
    assert of_nodes([node(0, OK), node(1, OK)]) == OK


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cause_counts_more_than_what_followed_wherever_it_is(order: tuple[int, int]) -> None:
    verdicts = {order[0]: failed(3, 10), order[1]: lost_a_peer(0)}
    verdict = of_nodes([node(rank, verdicts[rank]) for rank in (0, 1)])
    assert (verdict.cause, verdict.exit_code, verdict.confidence) == ("python-exception", 1, "certain")
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.node_rank) == (3, order[0])
    assert verdict.first_failure.host == f"host{order[0]}"
    assert verdict.collateral == (Collateral(Rank(0), 1, None, f"lost its peer, on node {order[1]} (host{order[1]})"),)
    source = "attempt_0/rank_3/stderr.log"
    assert verdict.evidence[0].source == (source if order[0] == 0 else f"host1:/runs/1/{source}")


def test_the_earlier_failure_counts_on_one_clock() -> None:
    """Node 1's clock is 100 s before ours: what it stamps later was earlier."""
    before = node(1, failed(1, 100_500), offset_ns=100_000 * MS, error_ns=MS)
    verdict = of_nodes([node(0, failed(0, 900)), before])
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.at) == (1, 500 * MS)
    assert by_clock_of(verdict, 100_000 * MS).first_failure == replace(
        verdict.first_failure, at=MonotonicNs(100_500 * MS)
    )
    assert verdict.notes == ()
    assert "failed later, on node 0 (host0)" in str(verdict.collateral)


def test_within_the_clocks_error_the_order_is_not_known() -> None:
    near = node(1, failed(1, 530, "disk-full"), error_ns=40 * MS)
    verdict = of_nodes([node(0, failed(0, 500)), near])
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.confidence) == (0, "likely")
    assert verdict.notes == (
        "node 1 (host1) failed 30 ms later (clock error up to 40 ms) and may have been first: rank 1 failed",
    )
    assert of_nodes([node(0, failed(0, 500)), replace(near, verdict=failed(1, 530))]).confidence == "certain"
    assert of_nodes([node(0, failed(0, 500)), replace(near, error_ns=MS)]).confidence == "certain"


def test_a_lost_node_counts_where_nobody_failed() -> None:
    verdict = of_nodes([node(0, lost_a_peer(0)), node(1, None, "was lost: its host is down"), node(2, OK)])
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == ("failed", 75, "node-failed")
    assert verdict.title == "node 1 (host1) was lost: its host is down"
    assert verdict.first_failure == FirstFailure(None, node_rank=1, host="host1")
    failing = of_nodes([node(0, failed(0, 5)), node(1, None, "was lost: its host is down")])
    assert failing.cause == "python-exception"
    assert failing.notes == ("no verdict from node 1 (host1): it was lost: its host is down",)


def test_who_was_told_to_stop_or_said_first_that_it_fails_is_named() -> None:
    verdict = of_nodes([node(0, lost_a_peer(0)), node(1, STOPPED)])
    assert (verdict.outcome, verdict.exit_code) == ("interrupted", 143)
    assert verdict.title == "the job was stopped by SIGTERM, on node 1 (host1)"
    agent = of_nodes([node(0, replace(AGENT, title="torch's agent exited with code 1")), node(1, AGENT, first=True)])
    assert (agent.title, agent.exit_code) == ("torch's agent was killed by SIGKILL, on node 1 (host1)", 75)


def test_a_rank_that_left_before_the_others_lost_it() -> None:
    left = Ends((Rank(1),), (MonotonicNs(105_000 * MS),))
    leaver = node(1, OK, ends=left, offset_ns=100_000 * MS)
    waiting = node(0, lost_a_peer(0), ends=Ends(failed_at=MonotonicNs(5_010 * MS)))
    verdict = of_nodes([waiting, leaver])
    assert (verdict.exit_code, verdict.cause) == (1, "peer-died")
    assert verdict.title == "rank 1 exited early (exit code 0) while rank 0 was still running"
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.host, verdict.first_failure.exit_code) == (1, "host1", 0)
    later = replace(leaver, ends=replace(left, finished_at=(MonotonicNs(115_000 * MS),)))
    assert of_nodes([waiting, later]).exit_code == 75


def test_a_node_whose_agent_was_killed_is_named() -> None:
    verdict = of_nodes([node(0, lost_a_peer(0)), node(1, AGENT, first=True)])
    assert verdict.first_failure == FirstFailure(None, node_rank=1, host="host1")


def test_a_node_that_was_judged_alone_says_so_where_its_ranks_only_lost_a_peer() -> None:
    verdict = alone(lost_a_peer(0))
    assert verdict.notes[0].startswith("this verdict covers one node only: the first failure may be on another node")
    assert again(lost_a_peer(0), node(0, lost_a_peer(0)), []) == verdict
    assert alone(failed(0, 10)) == failed(0, 10)


def test_a_replay_reads_what_was_agreed() -> None:
    own, other = node(0, lost_a_peer(0)), node(1, failed(1, 7), error_ns=3)
    live = of_nodes([own, other])
    kept: list[Event] = [reported(MonotonicNs(9), other)]
    assert again(lost_a_peer(0), own, kept) == live
    assert again(failed(1, 7), other, [agreed(MonotonicNs(9), live, "host0", "/runs/0")]) == live
    assert again(OK, own, []) == OK


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"outcome": "failed"}', "[" * 100_000])
def test_a_damaged_report_leaves_the_nodes_own_verdict(text: str) -> None:
    broken = replace(reported(MonotonicNs(9), node(1, OK)), verdict=text)
    verdict = again(failed(0, 5), node(0, failed(0, 5)), [broken])
    assert verdict.cause == "python-exception"
    assert "damaged" in verdict.notes[-1]


def test_a_node_without_a_number_is_named_by_its_host() -> None:
    lost = node(1, None, "was lost: its host is down", node_rank=None)
    verdict = of_nodes([node(0, lost_a_peer(0)), lost])
    assert (verdict.title, verdict.cause) == ("host1 was lost: its host is down", "node-failed")
    assert verdict.first_failure is not None
    assert (verdict.first_failure.node_rank, verdict.first_failure.host) == (None, "host1")
    assert verdict.collateral == (Collateral(Rank(0), 1, None, "lost its peer, on node 0 (host0)"),)


def test_two_nodes_without_numbers_have_an_order() -> None:
    one, two = (node(rank, failed(rank, 10), node_rank=None) for rank in (1, 2))
    first = of_nodes([two, one]).first_failure
    assert first is not None
    assert first.host in ("host1", "host2")


def test_a_hang_is_told_with_the_host_of_the_rank_that_the_others_wait_for() -> None:
    """Node 0 gave up first; the rank that it names was ended on node 1, which was told to stop."""
    hung = Verdict("hung", 124, "hang", "DDP510", "rank 1 waits for a lock", first_failure=FirstFailure(Rank(1)))
    stopped = replace(lost_a_peer(1), cause=None, title="stopped with the job")
    verdict = of_nodes([node(0, hung), node(1, stopped)])
    first = verdict.first_failure
    assert first is not None
    assert (first.rank, first.node_rank, first.host) == (1, 1, "host1")
    assert verdict.collateral == ()
    theirs = replace(hung, first_failure=FirstFailure(Rank(1), host="host1", at=MonotonicNs(900)), title="theirs")
    assert of_nodes([node(0, hung), node(1, theirs)]).title == "theirs"
    alone = of_nodes([node(0, hung), node(1, OK)]).first_failure
    assert alone is not None
    assert (alone.node_rank, alone.host) == (None, None)
