"""Which node's failure a job's verdict names, and what it says of the other nodes, by values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_of_nodes import AGENT, MS, OK, STOPPED, failed, lost_a_peer, node

from ddp_run.evidence.model import Quote
from ddp_run.judge.of_nodes import Ends, NodeReport, again, agreed, alone, by_clock_of, ends_of, of_nodes, reported
from ddp_run.judge.verdict import Collateral, FirstFailure, Retry, Verdict
from ddp_run.record.events import AttemptStarted, Event, MonotonicNs, Rank, RankExited, RankFinished

HUNG = Verdict("hung", 124, "hang", "DDP505", "rank 0 is stuck", "certain", first_failure=FirstFailure(Rank(0)))
REFUSED = Verdict("refused", 78, "unlike-nodes", "DDP105", "nodes differ", "certain", phase="launch")


def at(ms: float) -> MonotonicNs:
    return MonotonicNs(round(ms * MS))


def named(*reports: NodeReport) -> tuple[int | None, int | None]:
    """The rank and the node."""
    first = of_nodes(reports).first_failure
    assert first is not None
    return first.rank, first.node_rank


# ---------------------------------------------------------------------------------------------- how ranks ended


def test_how_a_nodes_ranks_ended() -> None:
    def exited(rank: int, ms: float, code: int | None) -> RankExited:
        return RankExited(at(ms), Rank(rank), 0, code)

    def ends(*events: Event) -> Ends:
        return ends_of([AttemptStarted(at(0), 0, (), None), *events], 0)

    finished = RankFinished(at(20), Rank(1), 0)
    events = [exited(0, 10, 0), finished, exited(1, 25, -9), exited(2, 40, 1), exited(3, 30, None), exited(0, 50, 0)]
    assert ends(*events) == Ends((Rank(0), Rank(1)), (at(10), at(20)), at(30))
    assert ends(exited(0, 10, 0)) == Ends((Rank(0),), (at(10),))
    assert ends() == Ends()


# ------------------------------------------------------------------------------------------ which node is named


def test_a_job_that_was_refused_is_refused_on_all_nodes() -> None:
    assert of_nodes([node(1, failed(1, 5)), node(0, REFUSED)]) == REFUSED


@pytest.mark.parametrize(
    ("verdict", "counts"),
    [
        pytest.param(failed(3, 10), True, id="an exception"),
        pytest.param(HUNG, True, id="a hang"),
        pytest.param(failed(3, 10, "peer-died"), True, id="a lost peer whose end was seen there"),
        pytest.param(failed(3, 10, "peer-died", 7), False, id="a lost peer with another code"),
        pytest.param(failed(3, 10, "no-such-cause"), True, id="a cause of another version"),
        pytest.param(replace(failed(3, 10), cause=None), True, id="no cause"),
        pytest.param(failed(3, 10, code=75), False, id="no rank of it failed on its own"),
        pytest.param(STOPPED, False, id="a stop"),
        pytest.param(OK, False, id="a success"),
    ],
)
def test_a_node_that_saw_the_reason_outranks_a_lost_node(verdict: Verdict, counts: bool) -> None:
    lost = node(1, None, "was lost: its host is down")
    assert (of_nodes([node(0, verdict), lost]).cause == "node-failed") != counts


def test_of_two_nodes_that_saw_a_reason_the_one_with_a_stamp_is_first_then_the_lower_number() -> None:
    def unstamped(rank: int) -> Verdict:
        return replace(failed(rank, 0), first_failure=FirstFailure(Rank(rank)))

    assert named(node(0, unstamped(0)), node(1, failed(1, 500))) == (1, 1)
    assert named(node(1, unstamped(1)), node(0, unstamped(0))) == (0, 0)
    assert named(node(1, replace(failed(1, 0), first_failure=None, exit_code=1)), node(0, failed(0, 5))) == (0, 0)


@pytest.mark.parametrize("turned", [False, True])
def test_a_stop_outranks_nodes_that_only_lost_a_peer_and_a_failure_outranks_a_success(turned: bool) -> None:
    ends = [node(0, lost_a_peer(0)), node(1, STOPPED), node(2, OK)]
    assert of_nodes(ends[::-1] if turned else ends).outcome == "interrupted"
    ends = [node(0, OK), node(1, lost_a_peer(0))]
    assert of_nodes(ends[::-1] if turned else ends).cause == "peer-died"


def test_a_node_that_only_lost_a_peer_is_not_the_first_to_fail() -> None:
    verdict = of_nodes([node(0, lost_a_peer(0)), node(1, lost_a_peer(1))])
    assert (verdict.title, verdict.first_failure) == ("rank 0 lost its connection, on node 0 (host0)", None)


def test_a_node_whose_agent_failed_is_the_first_even_if_its_host_is_unknown() -> None:
    verdict = of_nodes([replace(node(0, AGENT), host=""), node(1, lost_a_peer(0))])
    assert verdict.title == "torch's agent was killed by SIGKILL, on node 0"
    assert verdict.first_failure == FirstFailure(None, node_rank=0)


def test_a_stopped_node_has_no_first_failure_and_a_verdict_without_a_title_stays_so() -> None:
    assert of_nodes([node(0, STOPPED)]).first_failure is None
    bare = replace(STOPPED, title=None)
    assert of_nodes([node(0, bare)]) == bare


def test_what_the_first_failure_already_says_of_its_host_stays() -> None:
    said = failed(1, 500)
    assert said.first_failure is not None
    elsewhere = replace(said, first_failure=replace(said.first_failure, host="inside-a-container"))
    first = of_nodes([node(1, elsewhere)]).first_failure
    assert first is not None
    assert (first.host, first.node_rank) == ("inside-a-container", 1)


# ------------------------------------------------------------------------------------------------ lost nodes


def test_every_lost_node_is_counted_and_the_first_can_be_asked() -> None:
    down = "was lost: its host is down"
    verdict = of_nodes(
        [node(1, None, down), node(2, None, "did not join"), node(0, lost_a_peer(0)), node(3, None, down)]
    )
    assert verdict.title == f"node 1 (host1), and 2 more, {down}"
    assert verdict.advice == ("ping host1; ssh host1 uptime", "ssh host1 'dmesg -T | tail -50'")
    assert verdict.collateral == (Collateral(Rank(0), 1, None, "lost its peer, on node 0 (host0)"),)
    assert (verdict.confidence, verdict.evidence) == ("certain", ())


def test_two_lost_nodes_are_told() -> None:
    verdict = of_nodes([node(1, None, "did not join"), node(2, None, "did not join"), node(0, OK)])
    assert verdict.title == "node 1 (host1), and 1 more, did not join"


def test_a_rank_that_a_node_names_stays_named_if_no_node_saw_the_reason() -> None:
    loser = replace(AGENT, first_failure=FirstFailure(Rank(4), exit_code=-9))
    first = of_nodes([node(1, loser), node(0, OK)]).first_failure
    assert first is not None
    assert (first.rank, first.exit_code, first.host) == (4, -9, "host1")


def test_of_a_lost_node_without_a_name_there_is_nothing_to_ask() -> None:
    verdict = of_nodes([replace(node(1, None, "did not join"), host=""), node(0, OK)])
    assert (verdict.title, verdict.advice) == ("node 1 did not join", ())
    assert verdict.first_failure == FirstFailure(None, node_rank=1)


def test_a_hosts_name_is_quoted_for_the_shell() -> None:
    verdict = of_nodes([replace(node(1, None, "did not join"), host="a b"), node(0, OK)])
    assert verdict.advice[0] == "ping 'a b'; ssh 'a b' uptime"


# ----------------------------------------------------------------------------------------- what others' ranks did


def test_the_other_nodes_ranks_followed_each_with_its_reason_and_its_node() -> None:
    followers = (Collateral(Rank(4), -15, "SIGTERM", "stopped with the job"),)
    later = replace(failed(2, 900, code=9), collateral=followers)
    lost = replace(lost_a_peer(0), first_failure=FirstFailure(Rank(5), exit_code=-6, signal="SIGABRT"))
    own = (Collateral(Rank(7), 1, None, "lost its peer, rank 1"),)
    verdict = of_nodes([node(0, lost), node(1, replace(failed(1, 500), collateral=own)), node(2, later), node(3, OK)])
    assert verdict.collateral == (
        *own,
        Collateral(Rank(5), -6, "SIGABRT", "lost its peer, on node 0 (host0)"),
        Collateral(Rank(0), 1, None, "lost its peer, on node 0 (host0)"),
        Collateral(Rank(2), 9, None, "failed later, on node 2 (host2)"),
        Collateral(Rank(4), -15, "SIGTERM", "stopped with the job, on node 2 (host2)"),
    )


def test_a_first_failure_without_a_rank_is_no_follower() -> None:
    agent = replace(AGENT, first_failure=FirstFailure(None, node_rank=0))
    assert of_nodes([node(0, agent), node(1, failed(1, 5))]).collateral == ()


def test_only_quotes_of_files_get_the_address_of_another_node() -> None:
    quotes = (Quote("attempt_0/rank_1/stderr.log", 7, "bad"), Quote("memory", None, "rank 1: 3 GiB"))
    verdict = of_nodes([node(0, OK), node(1, replace(failed(1, 5), evidence=quotes))])
    assert [quote.source for quote in verdict.evidence] == ["host1:/runs/1/attempt_0/rank_1/stderr.log", "memory"]


# ------------------------------------------------------------------------------------------------ on one clock


@pytest.mark.parametrize(
    ("apart_ms", "errors_ms", "close"),
    [(20, (0, 0), True), (20.001, (0, 0), False), (30, (4, 6), True), (30.001, (4, 6), False), (0, (0, 0), True)],
)
def test_different_failures_within_the_clocks_errors_have_no_order(
    apart_ms: float, errors_ms: tuple[int, int], close: bool
) -> None:
    two = replace(failed(1, 0, "disk-full"), first_failure=FirstFailure(Rank(1), at=at(500 + apart_ms)))
    ours, theirs = (error * MS for error in errors_ms)
    verdict = of_nodes([node(0, failed(0, 500), error_ns=ours), node(1, two, error_ns=theirs)])
    assert verdict.confidence == ("likely" if close else "certain")
    assert len(verdict.notes) == close


def test_of_several_rivals_the_nearest_of_another_kind_is_told() -> None:
    same, other, last = failed(1, 501), failed(2, 505, "disk-full"), failed(3, 510, "cuda-oom")
    verdict = of_nodes([node(0, failed(0, 500)), node(3, last), node(1, same), node(2, other)])
    assert verdict.notes == (
        "node 2 (host2) failed 5 ms later (clock error up to 0 ms) and may have been first: rank 2 failed",
    )


@pytest.mark.parametrize("turned", [False, True])
def test_without_a_stamp_two_nodes_may_have_failed_in_any_order(turned: bool) -> None:
    bare = replace(failed(1, 0, "disk-full"), first_failure=FirstFailure(Rank(1)))
    ends = [node(0, failed(0, 500)), node(1, bare)]
    verdict = of_nodes(ends[::-1] if turned else ends)
    assert verdict.notes == (
        "node 1 (host1) failed 0 ms later (clock error up to 0 ms) and may have been first: rank 1 failed",
    )


def test_an_unsure_verdict_stays_unsure_beside_a_rival() -> None:
    unsure = replace(failed(0, 500), confidence="unknown", notes=("as it was",))
    verdict = of_nodes([node(0, unsure), node(1, failed(1, 505, "disk-full"))])
    assert (verdict.confidence, verdict.notes[0], len(verdict.notes)) == ("unknown", "as it was", 2)


def test_the_clock_of_a_node_changes_stamps_only() -> None:
    assert by_clock_of(STOPPED, 5) == STOPPED
    bare = replace(failed(1, 0), first_failure=FirstFailure(Rank(1)))
    assert by_clock_of(bare, 5) == bare


# ------------------------------------------------------------------------------- a rank that finished elsewhere


def finished(rank: int, ms: float, number: int) -> NodeReport:
    return node(number, OK, ends=Ends((Rank(rank),), (at(ms),)))


def waited(rank: int, number: int, failed_ms: float | None, offset_ns: int = 0) -> NodeReport:
    quote = Quote(f"attempt_0/rank_{rank}/stderr.log", 3, "Connection closed by peer")
    verdict = replace(lost_a_peer(rank), evidence=(quote,))
    ends = Ends(failed_at=None if failed_ms is None else at(failed_ms))
    return node(number, verdict, ends=ends, offset_ns=offset_ns)


def test_the_earliest_rank_that_finished_is_the_one_that_the_others_lost() -> None:
    early = node(1, OK, ends=Ends((Rank(3), Rank(2)), (at(400), at(300))), offset_ns=10 * MS)
    verdict = of_nodes([waited(0, 0, 500), early, finished(4, 295, 2)])
    assert verdict.first_failure == FirstFailure(Rank(2), node_rank=1, host="host1", exit_code=0, at=at(290))
    assert verdict.title == "rank 2 exited early (exit code 0) while rank 0 was still running"
    assert verdict.outcome == "failed"


@pytest.mark.parametrize(("number", "source"), [(0, ""), (2, "host2:/runs/2/")])
def test_the_line_of_the_rank_that_lost_it_is_quoted_from_where_it_is(number: int, source: str) -> None:
    verdict = of_nodes([finished(1, 100, 1), waited(0, number, 500)])
    assert [quote.source for quote in verdict.evidence] == [f"{source}attempt_0/rank_0/stderr.log"]


@pytest.mark.parametrize(
    ("failed_ms", "offset_ms", "blamed"),
    [
        pytest.param(4000.0, 0, True, id="a second after the loss"),
        pytest.param(3999.9, 0, False, id="later"),
        pytest.param(None, 0, True, id="when it was lost is unknown"),
        pytest.param(104_000.0, 100_000, True, id="by the other node's clock"),
        pytest.param(103_999.0, 100_000, False, id="later by the other node's clock"),
    ],
)
def test_a_rank_that_finished_after_the_loss_is_not_blamed(
    failed_ms: float | None, offset_ms: int, blamed: bool
) -> None:
    verdict = of_nodes([finished(1, 5000, 1), waited(0, 0, failed_ms, offset_ns=offset_ms * MS)])
    assert (verdict.exit_code == 1) == blamed


def test_a_rank_that_finished_is_not_blamed_where_nobody_lost_a_peer() -> None:
    assert of_nodes([finished(1, 100, 1), node(0, AGENT)]).cause == "unknown"
    told_to_stop = replace(lost_a_peer(0), outcome="interrupted", exit_code=143)
    assert of_nodes([finished(1, 100, 1), node(0, told_to_stop)]).outcome == "interrupted"


def test_all_ranks_that_lost_it_are_named_and_none_if_none_is_known() -> None:
    two = of_nodes([finished(1, 100, 1), waited(0, 0, 500), waited(4, 2, 510)])
    assert two.title == "rank 1 exited early (exit code 0) while ranks 0,4 were still running"
    unnamed = waited(0, 0, 500)
    assert unnamed.verdict is not None
    nobody = replace(unnamed, verdict=replace(unnamed.verdict, collateral=()))
    assert of_nodes([finished(1, 100, 1), nobody]).title == (
        "rank 1 exited early (exit code 0) while others were still running"
    )


# --------------------------------------------------------------------------------------------- one node's own


def test_only_a_verdict_about_a_lost_peer_says_that_it_covers_one_node() -> None:
    assert len(alone(lost_a_peer(0)).notes) == 1
    for verdict in (OK, AGENT, STOPPED, replace(lost_a_peer(0), outcome="interrupted"), failed(0, 5, "peer-died")):
        assert alone(verdict) == verdict
    assert alone(replace(lost_a_peer(0), notes=("a",))).notes[0] == "a"


FULL = NodeReport(
    *(1, "host1", "/runs/1", replace(failed(1, 7), retry=Retry(helps=True, reason="so")), None, 5, 3),
    ends=Ends((Rank(2),), (at(3),), at(4)),
    first=True,
)


@pytest.mark.parametrize("report", [FULL, node(1, None, "was lost: its host is down")])
def test_a_report_is_the_same_after_it_was_stored(report: NodeReport) -> None:
    own = node(0, lost_a_peer(0), ends=Ends(failed_at=at(50)))
    assert own.verdict is not None
    assert again(own.verdict, own, [reported(at(9), report)]) == of_nodes([own, report])


@pytest.mark.parametrize(
    ("own", "report"),
    [
        pytest.param(waited(0, 0, 500), finished(1, 100, 1), id="who finished and when"),
        pytest.param(finished(1, 5000, 0), waited(0, 1, 100), id="when the first failed"),
        pytest.param(node(0, AGENT), replace(node(1, AGENT), first=True), id="who said it first"),
    ],
)
def test_what_decides_between_nodes_is_stored_too(own: NodeReport, report: NodeReport) -> None:
    verdict = of_nodes([own, report])
    assert own.verdict is not None
    assert again(own.verdict, own, [reported(at(9), report)]) == verdict
    bare = replace(report, ends=Ends(), first=False)
    assert of_nodes([own, bare]) != verdict  # it did decide


def test_an_agreed_verdict_says_where_it_was_agreed() -> None:
    event = agreed(at(1), replace(OK, title="größer"), "host0", "/runs/0")
    assert (event.at, event.host, event.folder) == (at(1), "host0", "/runs/0")
    assert "größer" in event.verdict  # as people write it: the journal is read by them


def test_the_last_agreed_verdict_counts_on_a_node_that_was_told_it() -> None:
    old, new = agreed(at(1), failed(0, 5), "host0", "/r"), agreed(at(2), failed(3, 5), "host0", "/r")
    events: list[Event] = [old, new, reported(at(3), FULL)]
    assert again(OK, node(1, OK), events) == failed(3, 5)


def test_a_damaged_report_is_noted_after_what_the_node_noted_itself() -> None:
    broken = replace(reported(at(9), FULL), verdict="{")
    own = replace(failed(0, 5), notes=("a",))
    assert again(own, node(0, own), [broken]).notes == (
        "a",
        "the other nodes' reports are damaged: this verdict covers this node only",
    )
