"""Connections between nodes, over real sockets: what fits comes through, what does not ends the connection alone."""

from __future__ import annotations

import json
import resource
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.process.agreeing import BAD, KEY, Run, again, failed, loop, place, refused, runs, serve, serve_for, started
from tests.waiting import limit

from ddp_run.evidence.model import Evidence
from ddp_run.judge import of_nodes
from ddp_run.judge.diagnose import judge
from ddp_run.judge.of_nodes import Ends, NodeReport
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan.net import free_port
from ddp_run.record.events import (
    AgentExited,
    AllRanksEnded,
    MonotonicNs,
    NodeRankTaken,
    NodeReported,
    NodesCompared,
    Noted,
    PeerFailed,
    Rank,
    RankExited,
    RanksEnded,
    SignalReceived,
    SignalSent,
    Target,
)
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes import agreement, messages, roster
from ddp_run.supervise.nodes.clocks import PeerClock
from ddp_run.supervise.nodes.link import Ended, Link, Opened
from ddp_run.supervise.nodes.messages import (
    Agreed,
    Failing,
    Join,
    Joined,
    Message,
    Ping,
    Pong,
    RankTaken,
    Report,
    decode,
    encode,
)
from ddp_run.supervise.nodes.place import Place
from ddp_run.supervise.nodes.reach import Rival
from ddp_run.supervise.nodes.roster import OtherNode
from ddp_run.values.node_fact import Fact

__all__ = ["loop", "place", "runs"]


class End:
    """One side of a connection, and what came there."""

    def __init__(self, loop: Loop, connected: socket.socket, key: bytes, *, is_server: bool) -> None:
        self.opened = 0
        self.heard: list[Message] = []
        self.ended = 0
        self.link = Link(loop, connected, key, self._hear, is_server=is_server)

    def _hear(self, _link: Link, message: Message | Opened | Ended) -> None:
        match message:
            case Opened():
                self.opened += 1
            case Ended():
                self.ended += 1
            case _:
                self.heard.append(message)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return server.accept()[0], client


def test_messages_come_through_in_order(loop: Loop) -> None:
    one, other = connected()
    server, client = End(loop, one, KEY, is_server=True), End(loop, other, KEY, is_server=False)
    serve(loop, lambda: bool(server.opened and client.opened))
    big = "x" * 500_000
    client.link.send(Failing(0, big))
    for number in range(100):
        server.link.send(Ping(number))
    serve(loop, lambda: len(client.heard) == 100 and len(server.heard) == 1)
    assert client.heard == [Ping(number) for number in range(100)]
    assert server.heard == [Failing(0, big)]
    client.link.close()
    serve(loop, lambda: bool(server.ended))
    assert (server.ended, client.ended) == (1, 0)


def test_another_jobs_key_does_not_come_in(loop: Loop) -> None:
    one, other = connected()
    server, client = End(loop, one, KEY, is_server=True), End(loop, other, b"guessed", is_server=False)
    serve(loop, lambda: bool(client.opened))
    client.link.send(Failing(0, "let me end it"))
    serve(loop, lambda: bool(server.ended))
    assert (server.heard, server.ended) == ([], 1)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\n",
        b"[]\n",
        b'{"nonce": 7}\n',
        b'{"nonce": "' + b"a" * 32 + b'"}\nno message\n',
        b"x" * 5000,
        b"[" * 1000 + b"\n",
        b"",
    ],
    ids=["http", "tls", "a list", "a number", "not sealed", "no end", "deep", "nothing"],
)
def test_a_stranger_is_hung_up_on(loop: Loop, said: bytes) -> None:
    one, other = connected()
    server = End(loop, one, KEY, is_server=True)
    other.sendall(said)
    other.shutdown(socket.SHUT_WR)
    serve(loop, lambda: bool(server.ended))
    assert server.heard == []
    other.close()


def test_a_web_server_is_no_node(loop: Loop) -> None:
    one, other = connected()
    client = End(loop, other, KEY, is_server=False)
    one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    serve(loop, lambda: bool(client.ended))
    assert (client.opened, client.heard) == (0, [])
    one.close()


# ------------------------------------------------------------------------------------- hub and members


def free_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def full_listener() -> socket.socket:
    """Whoever dials it hears nothing: its queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(2):
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(listener.getsockname())
        KEPT.append(waiting)
    return listener


KEPT: list[socket.socket] = []


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("control", "master", "said"),
    [
        (None, None, "connection refused on port {control}: ddp-run is not started there"),
        (None, free_listener, "but a program answers on the master's port {master}"),
        (free_listener, free_listener, "the program on port {control} is not ddp-run"),
        (full_listener, full_listener, "that host is down, or a firewall drops the packets"),
        (full_listener, None, "no answer, while port {master} answers: a firewall may drop packets to port {control}"),
    ],
    ids=["not started", "torchrun", "stranger", "down", "filtered"],
)
def test_what_keeps_a_node_from_node_0_is_said_within_5_s(
    loop: Loop,
    place: Place,
    control: Callable[[], socket.socket] | None,
    master: Callable[[], socket.socket] | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if control is not None or master is not None:  # one is enough to be waited for
        monkeypatch.setattr(agreement, "WAITING_S", 1.5)
    open_ports = [listener() if listener is not None else None for listener in (control, master)]
    ports = [port_of(listener) if listener is not None else free_port() for listener in open_ports]
    began = time.monotonic()
    run = Run(loop, replace(place, node_rank=1, port=ports[0], master_port=ports[1]))
    serve(loop, lambda: bool(run.said))
    assert time.monotonic() - began < limit(5.5)
    assert said.format(control=ports[0], master=ports[1]) in run.said[0]
    assert "node 0 at 127.0.0.1 (from 127.0.0.1 on lo) for" in run.said[0]
    assert "127.0.0.1 is this host: nodes on other hosts need another address of it" in run.said[0]
    assert ". Try: " in run.said[0]
    run.close()
    for listener in (*open_ports, *KEPT):
        if listener is not None:
            listener.close()
    KEPT.clear()


def test_another_secret_is_said(loop: Loop, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "WAITING_S", 1.5)
    hub, one = Run(loop, place), Run(loop, replace(place, node_rank=1, job_key=b"another"))
    serve(loop, lambda: bool(one.said))
    assert "it closed the connection: --nnodes, port, --rdzv-id or DDP_RUN_SECRET differs there" in one.said[0]
    hub.close()
    one.close()


def test_node_0_is_not_waited_for_for_ever(loop: Loop, place: Place) -> None:
    run = Run(loop, replace(place, node_rank=1, master_port=free_port(), join_s=2.0))
    serve(loop, lambda: bool(run.told))
    ((attempt, told),) = run.told
    assert attempt == 0
    assert isinstance(told, PeerFailed)
    assert "was not reached within 2 s: connection refused" in told.said
    verdict, decision = run.side.agree(Verdict("failed", 75), 0, refused)
    assert (verdict.cause, verdict.exit_code, decision.retry) == ("node-failed", 75, False)
    run.close()


def test_nodes_that_do_not_join_are_not_waited_for_for_ever(loop: Loop, place: Place) -> None:
    hub, one = Run(loop, replace(place, join_s=3.0)), Run(loop, replace(place, node_rank=1, host="b"))
    serve(loop, lambda: bool(hub.told and one.told))
    ((_attempt, told),) = one.told
    assert isinstance(told, PeerFailed)
    assert told.said == "node 2 did not join within 3 s"
    stopped = Verdict("failed", 75, title="stopped with the job")
    one.member._send(Report(0, stopped))
    verdict, decision = hub.side.agree(stopped, 0, again)
    assert (verdict.cause, verdict.exit_code, verdict.title) == ("node-failed", 75, told.said)
    assert verdict.first_failure is not None
    assert verdict.first_failure.node_rank == 2
    assert not decision.retry
    assert one.side.agree(stopped, 0, refused)[0].title == told.said
    hub.close()
    one.close()


def open_at(hub: Run) -> int:
    return len(hub.hub._links) + len(hub.hub._listener._strangers)


def test_strangers_leave_room_for_nodes(loop: Loop, place: Place) -> None:
    hub = Run(loop, place)
    strangers = []
    for _ in range(400):
        strangers.append(socket.create_connection((place.address, place.port)))
        for wakeup in loop.wait(0):
            assert not isinstance(wakeup, int)
            wakeup()
    one = Run(loop, replace(place, node_rank=1, host="b"))
    serve(loop, lambda: one.has_joined)
    assert open_at(hub) <= place.nodes + 64 + 1
    assert list(hub.hub._nodes) == [1]
    for each in strangers:
        each.close()
    for run in (one, hub):
        run.close()


def test_a_listener_without_descriptors_rests(loop: Loop, place: Place) -> None:
    hub = Run(loop, place)
    client = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
    try:
        client.connect((place.address, place.port))
        until, turns = time.monotonic() + 0.5, 0
        while time.monotonic() < until:
            for wakeup in loop.wait(0.1):
                assert not isinstance(wakeup, int)
                wakeup()
                turns += 1
        assert not open_at(hub)
        assert turns < 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    serve(loop, lambda: bool(open_at(hub)))
    client.close()
    hub.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_two_nodes_of_one_rank_end_a_job_that_waits_for_nodes(loop: Loop, place: Place, rank: int) -> None:
    """A node 0 that has the master's address knows it by the port, which is taken; another one asks there."""
    hub, one = Run(loop, place), Run(loop, replace(place, node_rank=1, host="b"))
    serve(loop, lambda: one.has_joined)
    taken_by = "ab"[rank]
    second = Run(loop, replace(place, node_rank=rank, host="c", folder="/another"))
    serve(loop, lambda: all(run.told for run in (hub, one, second)))
    said = f"{taken_by} and c both say that they are node {rank}: give each node its own --node-rank"
    assert [run.was_told for run in (hub, one, second)] == [[said]] * 3
    for run in (hub, second):
        (clash,) = (event for event in run.events if isinstance(event, NodeRankTaken))
        own = judge(Evidence(rank_taken=clash, nodes=3))
        assert (own.outcome, own.exit_code, own.cause, own.title) == ("refused", 2, "syntax-or-usage", said)
        one.member._send(Report(0, own))
        if run is hub or rank > 0:  # a node 0 without the port has no side: its own verdict stays
            verdict, _decision = run.side.agree(own, 0, again)
            assert (verdict.title, verdict.exit_code) == (said, 2)
    for run in (hub, one, second):
        run.close()


def test_a_node_0_without_its_port_judges_alone_and_stops_asking_when_ranks_start(loop: Loop, place: Place) -> None:
    with socket.create_server((place.address, place.port)):
        run = Run(loop, place)
        assert run._side is None
        (noted,) = run.events
        assert isinstance(noted, Noted)
        assert noted.text.startswith("each node judges for itself: ")
        assert run._rival is not None
        assert run._rival._link is not None
        run._rival.hear(started(0))
        assert run._rival._link is None
        serve_for(loop, 1.5)
        assert run._rival._link is None
    run.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_too_many_ends_alone(loop: Loop, place: Place, runs: list[Run], rank: int) -> None:
    second = Run(loop, replace(place, node_rank=rank, host="d", folder="/another"))
    serve(loop, lambda: bool(second.told))
    assert second.was_told[0].startswith(f"{'ab'[rank]} and d both say that they are node {rank}: ")
    assert [run.told for run in runs] == [[], [], []]
    second.close()


def test_who_comes_in_the_place_of_a_node_that_is_gone_is_no_second_one(loop: Loop, place: Place) -> None:
    hub, gone = Run(loop, place), Run(loop, replace(place, node_rank=1, host="b"))
    serve(loop, lambda: gone.has_joined)
    gone.close()
    again = Run(loop, replace(place, node_rank=1, host="b", folder="/another"))
    serve(loop, lambda: bool(hub.told))
    assert hub.was_told[0].endswith("was lost: its ddp-run was killed or its host went down")
    assert not any(isinstance(event, NodeRankTaken) for event in (*hub.events, *again.events))
    hub.close()
    again.close()


def test_a_node_0_that_reaches_itself_from_outside_is_no_second_one(loop: Loop, place: Place) -> None:
    hub = Run(loop, place)
    rival = Rival(place, hub.side._ears)
    serve(loop, lambda: rival._link is not None)
    serve(loop, lambda: rival._link is None)
    serve_for(loop, 0.2)
    assert (hub.told, hub.events) == ([], [])
    hub.close()


@pytest.mark.parametrize("node", [0, 1])
def test_one_failure_ends_the_ranks_of_all_others_once(loop: Loop, runs: list[Run], node: int) -> None:
    runs[node].side.hear(failed(node))
    others = [run for rank, run in enumerate(runs) if rank != node]
    serve(loop, lambda: all(run.told for run in others))
    runs[node].side.hear(RankExited(MonotonicNs(1), Rank(node), 0, 1))
    others[0].side.hear(RankExited(MonotonicNs(1), Rank(2), 0, -15))
    serve_for(loop, 0.3)
    assert runs[node].told == []
    for run in others:
        ((_attempt, told),) = run.told
        assert isinstance(told, PeerFailed)
        assert (told.node_rank, told.host, told.said) == (node, "abc"[node], f"rank {node} failed")


def ended() -> RanksEnded:
    return RanksEnded(MonotonicNs(time.monotonic_ns()))


def test_agents_are_let_go_when_all_nodes_have_ended_well_and_node_0s_last(loop: Loop, runs: list[Run]) -> None:
    hub, one, other = runs
    other.side.hear(ended())
    hub.side.hear(ended())
    serve_for(loop, 0.3)
    assert [run.told for run in runs] == [[], [], []]
    one.side.hear(ended())
    serve(loop, lambda: bool(one.told and other.told))
    assert [(attempt, type(event)) for run in (one, other) for attempt, event in run.told] == [(0, AllRanksEnded)] * 2
    well = Verdict("succeeded", 0)
    for run in (one, other):
        assert hub.told == []
        run.side.hear(AgentExited(MonotonicNs(1), -9))
        run.member._send(Report(0, well))
        serve_for(loop, 0.3)
    assert [(attempt, type(event)) for attempt, event in hub.told] == [(0, AllRanksEnded)]
    assert hub.side.agree(well, 0, lambda _verdict: Decision(False, "done"))[0].outcome == "succeeded"


def test_no_agent_is_let_go_when_a_node_fails_after_another_has_ended(loop: Loop, runs: list[Run]) -> None:
    for run in runs[:2]:
        run.side.hear(ended())
    runs[2].side.hear(failed(2))
    serve(loop, lambda: bool(runs[0].told and runs[1].told))
    runs[2].side.hear(ended())
    serve_for(loop, 0.3)
    assert [type(event) for run in runs for _attempt, event in run.told] == [PeerFailed, PeerFailed]


@pytest.mark.parametrize("node", [0, 1])
def test_after_a_failure_node_0s_agent_is_let_go_when_the_others_are_through_or_lost(
    loop: Loop, runs: list[Run], node: int
) -> None:
    hub, one, other = runs
    runs[node].side.hear(failed(node))
    serve(loop, lambda: bool(other.told))
    hub.told.clear()
    one.member._send(Report(0, BAD))
    serve_for(loop, 0.3)
    assert hub.told == []
    other.close()
    serve(loop, lambda: bool(hub.told))
    ((attempt, event),) = hub.told
    assert isinstance(event, AllRanksEnded)
    assert (attempt, event.well) == (0, False)
    assert [type(told) for run in (one, other) for _attempt, told in run.told].count(AllRanksEnded) == 0


def test_agents_that_restart_ranks_fail_only_as_agents(loop: Loop, place: Place) -> None:
    with Loop([]) as own:
        run = Run(own, replace(place, agent_restarts=True))
        run.side.hear(failed(0))
        assert not run.hub._is_ending
        run.side.hear(SignalReceived(MonotonicNs(1), 15))
        assert run.hub._is_ending
        run.close()


def test_all_give_the_same_verdict(runs: list[Run], loop: Loop) -> None:
    worse = Verdict("failed", 75, "peer-died", "DDP501", "rank 2 lost its connection", "certain")
    hub, one, other = runs[0].hub, runs[1].member, runs[2].member
    one._send(Report(0, BAD))
    other._send(Report(0, worse))
    own = replace(worse, title="rank 0 lost its connection")
    agreed = hub.agree(own, 0, lambda verdict: Decision(False, f"no retry of {verdict.cause}"))
    assert (agreed[0].exit_code, agreed[0].cause) == (7, "python-exception")
    assert agreed[1].reason == "no retry of python-exception"
    assert [one.agree(BAD, 0, refused), other.agree(worse, 0, refused)] == [agreed, agreed]
    assert one.where() == ("a", runs[0].side._place.folder)
    assert hub.where() is None


def agree_on_another(loop: Loop, runs: list[Run]) -> None:
    """The first attempt fails on node 1; all agree to make another one."""
    hub, members = runs[0].hub, [run.member for run in runs[1:]]
    runs[1].side.hear(failed(1))
    for member in members:
        member._send(Report(0, BAD))
    verdict, decision = hub.agree(BAD, 0, again)
    assert (decision.retry, decision.port) == (True, 29501)
    assert [member.agree(BAD, 0, refused)[1] for member in members] == [decision, decision]
    assert hub.where() is members[0].where() is None
    assert verdict.exit_code == 7
    for run in runs:
        run.told.clear()


def test_another_attempt_is_agreed_and_may_fail_and_end_as_the_first(loop: Loop, runs: list[Run]) -> None:
    agree_on_another(loop, runs)
    runs[2].side.hear(failed(2))
    serve(loop, lambda: bool(runs[0].told and runs[1].told))
    assert [attempt for run in runs for attempt, _event in run.told] == [1, 1]
    last = Verdict("failed", 9, "python-exception", "DDP600", "rank 2 raised KeyError", "certain")
    for run in runs[1:]:
        run.member._send(Report(1, last))
    agreed = runs[0].side.agree(last, 1, lambda _verdict: Decision(False, "all retries used"))
    assert agreed[0].exit_code == 9
    assert [run.side.agree(last, 1, refused) for run in runs[1:]] == [agreed, agreed]


def test_a_node_that_is_lost_between_attempts_ends_the_next_one_before_it_begins(loop: Loop, runs: list[Run]) -> None:
    agree_on_another(loop, runs)
    runs[2].close()
    serve(loop, lambda: bool(runs[0].told and runs[1].told))
    ((attempt, told),) = runs[1].told
    assert attempt == 1
    assert isinstance(told, PeerFailed)
    assert told.said.startswith("node 2 (c) was lost")
    own = Verdict("failed", 75, title="ended")
    runs[1].member._send(Report(1, own))
    verdict, decision = runs[0].side.agree(own, 1, again)
    assert (verdict.cause, verdict.exit_code, decision.retry) == ("node-failed", 75, False)
    assert decision.reason.startswith("node 2 (c) cannot take part in another attempt")


def test_a_failure_of_the_attempt_before_ends_nothing(loop: Loop, runs: list[Run]) -> None:
    agree_on_another(loop, runs)
    one = runs[1].member
    one._send(Failing(0, "a word that was late"))
    serve_for(loop, 0.3)
    assert [run.told for run in runs] == [[], [], []]


def test_a_node_that_did_not_hear_of_the_next_attempt_hears_when_it_is_back(loop: Loop, runs: list[Run]) -> None:
    hub, one, other = runs[0].hub, runs[1].member, runs[2].member
    assert one._link is not None
    for member in (one, other):
        member._send(Report(0, BAD))
    serve(loop, lambda: all(node.report is not None for node in hub._nodes.values()))
    one._link.close()
    _verdict, decision = hub.agree(BAD, 0, again)
    assert one.agree(BAD, 0, refused)[1] == decision


def test_a_node_that_ends_before_its_first_word_came_through_waits_for_it(loop: Loop, place: Place) -> None:
    """All ranks have met, so node 0 is there: it may only be slow, on a busy host."""
    hub, one = (Run(loop, replace(place, nodes=2, node_rank=rank, host=name)) for rank, name in enumerate("ab"))
    own = Verdict("interrupted", 143, "preempted-sigterm", title="stopped by SIGTERM")
    agreed: list[tuple[Verdict, Decision]] = []
    for run, rank in ((hub, 0), (one, 1)):
        run.side.hear(started(rank))
    one.side.hear(SignalReceived(now(), signal.SIGTERM))
    loop.set_timer(0.5, lambda: agreed.append(hub.side.agree(own, 0, lambda _verdict: Decision(False, "no"))))
    assert one.side.agree(own, 0, refused) == agreed[0]
    assert agreed[0][0].exit_code == 143
    hub.close()
    one.close()


def test_node_0_waits_for_the_first_word_of_a_node_whose_ranks_it_has_met(loop: Loop, place: Place) -> None:
    hub = Run(loop, replace(place, nodes=2))
    late: list[Run] = []
    hub.side.hear(started(0))
    hub.side.hear(SignalReceived(now(), signal.SIGTERM))

    def join() -> None:
        late.append(Run(loop, replace(place, nodes=2, node_rank=1, host="b")))
        late[0].member._said.append(Report(0, BAD))

    loop.set_timer(0.5, join)
    hub.side.agree(Verdict("failed", 1, title="other"), 0, again)
    assert [(event.host, event.lost) for event in hub.events if isinstance(event, NodeReported)] == [("b", None)]
    for run in (hub, *late):
        run.close()


def test_no_other_attempt_without_a_node_that_never_came(loop: Loop, place: Place) -> None:
    runs = [Run(loop, replace(place, node_rank=rank, host=name)) for rank, name in enumerate("ab")]
    hub, one = runs[0].hub, runs[1].member
    serve(loop, lambda: len(hub._nodes) == 1)
    one._send(Report(0, BAD))
    _verdict, decision = hub.agree(BAD, 0, again)
    reason = "node 2 did not join: the nodes cannot agree on another attempt"
    assert (decision.retry, decision.reason) == (False, reason)
    for run in runs:
        run.close()


def test_a_node_that_ends_without_a_word_is_lost(loop: Loop, runs: list[Run]) -> None:
    runs[1].close()
    serve(loop, lambda: bool(runs[0].told and runs[2].told))
    ((_attempt, told),) = runs[2].told
    assert isinstance(told, PeerFailed)
    assert told.said == "node 1 (b) was lost: its ddp-run was killed or its host went down"
    assert runs[0].said == [told.said]


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_paused_is_not_lost(
    loop: Loop, runs: list[Run], node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (roster, messages):
        monkeypatch.setattr(module, "LOST_S", 8.0)
    stopped = SignalSent(MonotonicNs(1), Target.JOB, signal.SIGSTOP, (), "ddp-run was stopped")
    runs[node].side.hear(stopped)
    serve_for(loop, 0.1)
    link = runs[0].hub._nodes[1].link if node else runs[1].member._link
    assert link is not None
    told = runs[1 - node].told
    until = time.monotonic() + 3
    while time.monotonic() < until:
        link.heard_at = time.monotonic() - 60
        if node == 0:
            runs[1].member._heard_at = time.monotonic() - 60
        serve_for(loop, 0.1)
    assert told == []
    runs[node].side.hear(replace(stopped, signum=signal.SIGCONT))
    serve_for(loop, 0.1)
    serve_for(loop, 0.1)
    assert told == []


def test_node_0_is_lost(loop: Loop, runs: list[Run]) -> None:
    runs[0].close()
    serve(loop, lambda: bool(runs[1].told and runs[2].told))
    ((_attempt, told),) = runs[1].told
    assert isinstance(told, PeerFailed)
    assert told.node_rank == 0
    assert told.said == "node 0 (a) was lost: its ddp-run was killed or its host went down"
    own = Verdict("failed", 75, "peer-died", "DDP501", "lost", "certain")
    verdict, decision = runs[1].side.agree(own, 0, refused)
    assert (verdict.cause, verdict.exit_code) == ("node-failed", 75)
    assert verdict.first_failure is not None
    assert (told.host, verdict.first_failure.host) == ("a", "a")
    assert decision == Decision(False, "node 0 (a) cannot take part in another attempt")


@pytest.mark.parametrize(
    ("said", "host"),
    [
        (Joined("\x1b[31mgpu"), "127.0.0.1"),
        (Joined("gpu-a"), "gpu-a"),
    ],
    ids=["no name", "a name"],
)
def test_node_0_is_called_by_its_address_until_it_says_its_name(
    loop: Loop, place: Place, said: Message, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "DEAD_S", 0.2)
    with socket.create_server((place.address, place.port)) as listener:
        one = Run(loop, replace(place, node_rank=1, host="b"))
        connected, _address = listener.accept()
        node_0 = End(loop, connected, KEY, is_server=True)
        serve(loop, lambda: bool(node_0.opened))
        for message in (said, Ping(1)):
            node_0.link.send(message)
        serve(loop, lambda: any(isinstance(heard, Pong) for heard in node_0.heard))
        node_0.link.close()
    serve(loop, lambda: bool(one.told))
    ((_attempt, told),) = one.told
    assert isinstance(told, PeerFailed)
    assert (told.node_rank, told.host) == (0, host)
    assert one.said == [f"node 0 ({host}) was lost: its ddp-run was killed or its host went down"]
    one.close()


def test_a_connection_that_breaks_is_made_anew(loop: Loop, runs: list[Run]) -> None:
    one = runs[1].member
    assert one._link is not None
    one._link.close()
    hub = runs[0].hub
    before = hub._nodes[1].link
    serve(loop, lambda: hub._nodes[1].link is not before and hub._nodes[1].closed_at is None)
    serve_for(loop, 2.5)
    assert runs[0].told == []


def unlike(loop: Loop, place: Place, *, strict: bool = False) -> list[Run]:
    """Three nodes that have met; the last has another torch."""
    torch = [(Fact("torch", version),) for version in ("2.13.0", "2.13.0", "2.12.1")]
    runs = [
        Run(loop, replace(place, node_rank=rank, host=name, facts=torch[rank], strict=strict))
        for rank, name in enumerate("abc")
    ]
    serve(loop, lambda: bool(runs[0].events))
    return runs


DIFFERENCE = "nodes differ in torch: 2.13.0 on nodes 0-1, 2.12.1 on node 2 (c)"


def test_how_nodes_differ_is_said_once(loop: Loop, place: Place) -> None:
    runs = unlike(loop, place)
    facts = Path(place.folder) / "nodes" / "facts.txt"
    assert runs[0].said == [
        f"{DIFFERENCE}; jobs on such nodes often fail",
        f"full comparison: {facts}",
    ]
    (compared,) = runs[0].events
    assert isinstance(compared, NodesCompared)
    assert (compared.breaking, compared.differing, compared.refused) == ((DIFFERENCE[16:],), (), False)
    assert compared.alike == ("wall clock minus node 0's: 0.0 s on nodes 0-2",)
    assert "! torch" in facts.read_text()
    hub, one = runs[0].hub, runs[1].member
    assert one._link is not None
    before = hub._nodes[1].link
    one._link.close()
    serve(loop, lambda: hub._nodes[1].link is not before and hub._nodes[1].closed_at is None)
    assert len(runs[0].said) == 2
    assert [run.told for run in runs] == [[], [], []]
    for run in runs:
        run.close()


@pytest.mark.parametrize(("wall_s", "seconds"), [(-300.0, "-300.0"), (0.0, "0.0")])
def test_a_nodes_wall_clock_is_measured(loop: Loop, wall_s: float, seconds: str) -> None:
    one, other = connected()
    link = End(loop, one, KEY, is_server=True).link
    node = OtherNode(1, Join(1, 2, "b", "/r"), link)
    node.ping(7)
    assert not node.clock.facts
    node.clock._asked = (7, time.monotonic_ns() - 10**9)
    node.clock.measure(Pong(7, time.monotonic_ns(), time.time_ns()))
    assert not node.clock.facts, "an answer after a second tells too little"
    node.ping(7)
    node.clock.measure(Pong(7, time.monotonic_ns(), time.time_ns() + round(wall_s * 1e9)))
    assert [fact.value for fact in node.clock.facts] == [seconds]
    link.close()
    other.close()


def test_a_measurement_of_a_clock_loses_worth_with_time(loop: Loop) -> None:
    one, other = connected()
    link = End(loop, one, KEY, is_server=True).link
    node = OtherNode(1, Join(1, 2, "b", "/r"), link)

    def measure(after_s: float, ahead_s: float) -> float:
        """An answer that took 2 ms more than nothing, so long after the last one that counted."""
        node.clock._measured_at -= round(after_s * 1e9)
        node.clock._asked = (7, time.monotonic_ns() - 4_000_000)
        node.clock.measure(Pong(7, time.monotonic_ns(), time.time_ns() + round(ahead_s * 1e9)))
        offset_ns = node.clock.wall_offset_ns
        assert offset_ns is not None
        return round(offset_ns / 1e9, 1)

    node.ping(7)
    assert node.clock.wall_offset_ns is None
    node.clock.measure(Pong(7, time.monotonic_ns(), time.time_ns() + 10**9))
    assert round((node.clock.wall_offset_ns or 0) / 1e9, 1) == 1.0
    assert measure(10, 2.0) == 1.0, "clocks run apart by 0.15 ms in ten seconds: a rough answer knows less"
    assert measure(1000, 3.0) == 3.0, "and by 15 ms in a thousand"
    link.close()
    other.close()


def test_a_clock_that_nobody_tells_is_not_waited_for(loop: Loop, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerClock, "measure", lambda _clock, _pong: None)
    runs = unlike(loop, place)
    (compared,) = runs[0].events
    assert isinstance(compared, NodesCompared)
    assert compared.breaking == (DIFFERENCE[16:],)
    for run in runs:
        run.close()


def test_nodes_that_must_be_alike_do_not_run_if_they_differ(loop: Loop, place: Place) -> None:
    runs = unlike(loop, place, strict=True)
    serve(loop, lambda: all(run.told for run in runs))
    for run in runs:
        ((attempt, told),) = run.told
        assert isinstance(told, PeerFailed)
        assert (attempt, told.node_rank, told.said) == (0, 0, f"{DIFFERENCE} (--preflight strict)")
    ended = Verdict("failed", 75, title="ended")
    for run in runs[1:]:
        run.member._send(Report(0, ended))
    (compared,) = runs[0].events
    assert isinstance(compared, NodesCompared)
    assert runs[0].said == []
    own = judge(Evidence(unlike=compared))
    agreed = runs[0].side.agree(own, 0, lambda verdict: Decision(False, str(verdict.outcome)))
    assert (agreed[0].exit_code, agreed[0].cause, agreed[1].reason) == (78, "unlike-nodes", "refused")
    assert agreed[0].title == f"{DIFFERENCE} (--preflight strict)"
    assert [run.side.agree(ended, 0, refused) for run in runs[1:]] == [agreed, agreed]
    for run in runs:
        said = own if run is runs[0] else ended
        again = of_nodes.again(said, NodeReport(0, "a", "/r", said, here=True), run.events)
        assert again == agreed[0]
        run.close()


def test_a_job_that_ends_by_itself_first_is_not_compared(loop: Loop, place: Place) -> None:
    hub = Run(loop, replace(place, nodes=2, facts=(Fact("torch", "2.13.0"),), strict=True))
    hub.side.hear(failed(0))
    one = Run(loop, replace(place, nodes=2, node_rank=1, host="b", facts=(Fact("torch", "2.12.1"),)))
    serve(loop, lambda: bool(one.told))
    assert hub.said == []
    hub.close()
    one.close()


@pytest.mark.parametrize(
    "message",
    [
        Join(1, 3, "x; rm -rf /", "/runs/1"),
        Join(1, 3, "", "/runs/1"),
        Report(0, Verdict("failed", 1 << 40)),
        Report(0, Verdict("failed", -9)),
        Report(0, Verdict("failed", 1), (), Ends((Rank(1),), ())),
        Agreed(0, Verdict("failed", 1), Decision(True, "again", port=70000), "a", "/runs"),
    ],
    ids=["host", "no host", "large code", "signal", "ends", "port"],
)
def test_what_a_node_may_not_say_is_refused(message: Message) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(json.loads(json.dumps(encode(message))))


def test_all_that_is_said_comes_back() -> None:
    for message in (
        Join(1, 3, "gpu-01.cluster", "/runs/1", 0, (Fact("torch", "2.13.0"),)),
        Joined("gpu-00.cluster"),
        RankTaken("gpu-00.cluster"),
        Report(0, Verdict("failed", 1, title="x"), ("a",), Ends()),
        Agreed(1, Verdict("failed", 1), Decision(True, "again", free=True, backend="gloo", port=29502), "a", "/runs"),
    ):
        assert decode(json.loads(json.dumps(encode(message)))) == message
    assert decode({"message": "Sing"}) is None
