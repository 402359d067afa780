"""Node 0's side: hears all nodes, tells all to end when one fails, and says what the verdict of all is."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from ddp_run.judge import known_differences, unlike_nodes
from ddp_run.judge.of_nodes import Ends, NodeReport, agreed, alone, by_clock_of, of_nodes, reported
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan import net
from ddp_run.record.events import (
    AllRanksEnded,
    Event,
    NodesCompared,
    Noted,
    PeerFailed,
    RanksEnded,
    RankStarted,
)
from ddp_run.record.file_names import EVENTS
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.agreement import (
    BEAT_S,
    DEAD_S,
    LOST_S,
    SILENT_S,
    SOON_S,
    VERDICTS_S,
    WAITING_S,
    Decide,
    Ears,
    Place,
    wait,
)
from ddp_run.supervise.nodes.failing import line_of, paused_by
from ddp_run.supervise.nodes.host_names import HostNames
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import Agreed, End, EndedWell, Failing, Join, Message, Paused, Ping, Pong, Report
from ddp_run.supervise.nodes.reach import if_this_host, silence
from ddp_run.supervise.nodes.standstill import Standstill
from ddp_run.tell import node_table
from ddp_run.tell.node_files import keep_facts, keep_report
from ddp_run.values.addresses import is_local
from ddp_run.values.node_fact import Fact
from ddp_run.values.words import named_nodes, node_name

_BACKLOG = 1024
_LAST_WORD_S = 2.0
_UNKNOWN_NS = 1 << 62
_CLOCKS_S = 2.0
"""How long the comparison of all nodes waits for the answers that tell their clocks."""
_MOST_FOLLOWERS = 64
_GREETING_S = 10.0
"""How long a connection may stay that does not say which node it is."""


@dataclass(slots=True)
class _Node:
    """Another node, once it has joined."""

    join: Join
    link: Link
    closed_at: float | None = None
    """On time.monotonic(): since when its connection is closed."""
    pinged: tuple[int, int] = (0, 0)
    """Number and time (ns) of the last ping."""
    offset_ns: int = 0
    error_ns: int = _UNKNOWN_NS
    wall_offset_ns: int | None = None
    """Its wall clock minus ours, known to `error_ns` when it was measured."""
    paused: bool = False
    ended_well: bool = False
    """All its ranks have."""
    report: Report | None = None
    lost: str | None = None

    @property
    def clock(self) -> tuple[Fact, ...]:
        """Its wall clock, as a fact to compare."""
        return () if self.wall_offset_ns is None else unlike_nodes.clock(self.wall_offset_ns, self.error_ns)


@final
class Hub:
    """Listens for the other nodes; whoever has not joined is not waited for."""

    def __init__(self, place: Place, ears: Ears) -> None:
        """Raises OSError where the port cannot be had."""
        self._place, self._ears = place, ears
        self._nodes: dict[int, _Node] = {}
        self._by_link: dict[Link, _Node] = {}
        self._unknown: dict[Link, float] = {}
        """Who has not said yet which node it is, and since when, on time.monotonic()."""
        self._attempt = 0
        self._first: int | None = None
        """The node that said first that it fails in this attempt: all were told to end."""
        self._ended_well, self._all_ended_well = False, False
        """All ranks of this node have; those of all nodes, and these know it."""
        self._word: Agreed | None = None
        """What was agreed last."""
        self._pings = 0
        self._began = time.monotonic()
        self._started = False
        """Ranks of this node have started: all nodes have met."""
        self._waits_said = 0
        self._gave_up = False
        """Nodes did not join in time."""
        self._compared = place.facts == ()
        """The nodes were, or are not to be."""
        self._hosts = HostNames(place.host_names, place.nodes, ears.loop, ears.helpers)
        self._complete_at: float | None = None
        """On time.monotonic(): since when all are here."""
        self._differences: tuple[NodesCompared, ...] = ()
        self._standstill = Standstill()
        self._listener = _listener(place.address, place.port)
        ears.loop.watch(self._listener.fileno(), self._accept)
        self._beat()

    # ------------------------------------------------------------------------------- the run's side

    def hear(self, event: Event) -> None:
        """A sink: the first event that means a failure here ends the ranks everywhere."""
        self._started = self._started or isinstance(event, RankStarted)
        paused = paused_by(event)
        if paused is not None:
            self._pause(paused)
        if isinstance(event, RanksEnded):
            self._ended_well = True
            self._when_all_ended_well()
        agent_needed = not self._all_ended_well
        said = line_of(event, agent_restarts=self._place.agent_restarts, agent_needed=agent_needed)
        if said is not None:
            self._end_all(self._place.node_rank, self._place.host, said)

    def agree(
        self, attempt: int, verdict: Verdict, ends: Ends, _last_lines: tuple[str, ...], decide: Decide
    ) -> tuple[Verdict, Decision]:
        """The verdict of all who have joined; they have the grace, and a few seconds, to give theirs."""
        place = self._place
        own = NodeReport(place.node_rank, place.host, place.folder, verdict, here=True, ends=ends)
        if verdict.outcome != "succeeded":
            self._end_all(place.node_rank, place.host, verdict.title or "failed")
        within_s = place.grace_s + VERDICTS_S
        wait(self._ears, for_whom=self._without_verdict, ended=lambda: self._first is not None, at_most_s=within_s)
        reports = [own, *(self._report_of(rank, node) for rank, node in sorted(self._nodes.items()))]
        if self._gave_up:
            reports += [
                NodeReport(rank, self._hosts.of(rank), "", None, self._did_not_join()) for rank in self._absent()
            ]
        for report in reports[1:]:
            self._ears.emit(reported(now(), report))
        verdict = of_nodes(self._standstill.told_by(reports)) if len(reports) > 1 else alone(verdict)
        if self._standstill.has_cost_nodes:
            self._ears.emit(agreed(now(), verdict, place.host, place.folder))
        verdict = known_differences.noted(verdict, self._differences)
        decision = self._possible(decide(verdict), reports)
        # the whole list of a thousand ranks that followed is here; a thousand times it is 100 MB
        short = replace(verdict, collateral=verdict.collateral[:_MOST_FOLLOWERS])
        self._word = Agreed(attempt, short, decision, place.host, place.folder)
        for node in self._nodes.values():
            self._tell(node, self._word)
        for report in reports[1:]:
            said = self._nodes[report.node_rank].report if report.verdict is not None else None
            keep_report(Path(place.folder), report, said.last_lines if said is not None else ())
        if decision.retry:
            self._begin_next()
        else:
            self._let_them_hang_up()
        return verdict, decision

    def _possible(self, decision: Decision, reports: Sequence[NodeReport]) -> Decision:
        """All nodes make another attempt, or none."""
        if not decision.retry:
            return decision
        for report in reports:
            if report.verdict is None:
                node = node_name(report.node_rank, report.host)
                return Decision(False, f"{node} cannot take part in another attempt: it {report.lost}")
        if absent := self._absent():
            return Decision(False, f"{named_nodes(absent)} did not join: the nodes cannot agree on another attempt")
        return decision

    def _absent(self) -> list[int]:
        return [rank for rank in range(1, self._place.nodes) if rank not in self._nodes]

    def _did_not_join(self) -> str:
        return f"did not join within {self._place.join_s:g} s"

    def _begin_next(self) -> None:
        self._attempt += 1
        self._first = None
        self._ended_well = self._all_ended_well = False
        for node in self._nodes.values():
            node.report, node.ended_well = None, False
            node.link.heard_at = time.monotonic()  # who has reported was asked nothing

    def _let_them_hang_up(self) -> None:
        """Who has the last word hangs up; to close before would throw away what is on its way."""
        until = time.monotonic() + _LAST_WORD_S
        while any(node.link.is_open for node in self._nodes.values()) and time.monotonic() < until:
            self._ears.serve(0.02)

    def _without_verdict(self) -> str:
        """The nodes that are still to give theirs."""
        missing = [rank for rank, node in self._nodes.items() if node.report is None and node.lost is None]
        return named_nodes(missing) if missing else ""

    def where(self) -> tuple[str, str] | None:
        """The whole verdict is here."""
        return None

    def close(self) -> None:
        """Node 0 leaves."""
        self._hosts.close()
        self._ears.loop.cancel_timer(self._beat)
        self._ears.loop.unwatch(self._listener.fileno())
        self._listener.close()
        for link in (*self._unknown, *(node.link for node in self._nodes.values())):
            link.close()

    # ------------------------------------------------------------------------------- the nodes' side

    def _accept(self) -> None:
        try:
            connected, _address = self._listener.accept()
        except OSError:
            return
        place, loop = self._place, self._ears.loop
        link = Link(
            loop,
            connected,
            place.job_key,
            is_server=True,
            on_open=lambda _link: None,
            on_message=self._on_message,
            on_end=self._on_end,
        )
        self._unknown[link] = time.monotonic()

    def _on_message(self, link: Link, message: Message) -> None:
        if isinstance(message, Join):
            self._on_join(link, message)
            return
        found = self._by_link.get(link)
        if found is None:
            return
        match message:
            case Pong():
                _measure(found, message)
                self._compare_when_known()
            case Failing(attempt, said) if attempt == self._attempt:
                self._end_all(found.join.node_rank, found.join.host, said)
            case Paused(on):
                found.paused = on
            case Report(attempt=attempt) if attempt == self._attempt:
                found.report = message
                self._when_all_ended_well()
            case EndedWell(attempt) if attempt == self._attempt:
                found.ended_well = True
                self._when_all_ended_well()
            case _:
                pass

    def _when_all_ended_well(self) -> None:
        """No agent is needed then. The one here goes last: the others' may be talking to its store."""
        nodes = self._nodes.values()
        if self._first is not None or self._absent() or not self._ended_well:
            return
        if not all(node.ended_well for node in nodes):
            return
        if not self._all_ended_well:
            self._all_ended_well = True
            for node in nodes:
                node.link.send(EndedWell(self._attempt))
        if all(node.report is not None for node in nodes):
            self._ears.end_ranks(self._attempt, AllRanksEnded(now()))

    def _on_join(self, link: Link, join: Join) -> None:
        self._unknown.pop(link, None)
        place = self._place
        if join.nodes != place.nodes or not 0 < join.node_rank < place.nodes:
            link.close()
            return
        node = self._nodes.setdefault(join.node_rank, _Node(join, link))
        if (node.join.host, node.join.folder) != (join.host, join.folder):  # another ddp-run says that it is this node
            link.close()
            return
        if node.link is not link:
            node.link.close()
            self._by_link.pop(node.link, None)
            node.link, node.closed_at = link, None
        self._by_link[link] = node
        self._ping(node)
        if self._word is not None and self._word.attempt == join.attempt:
            self._tell(node, self._word)
        if self._all_ended_well:
            link.send(EndedWell(self._attempt))
        if self._first is not None:
            link.send(End(self._attempt, place.node_rank, place.host, "the job is ending"))
        elif self._complete_at is None and not self._absent():
            self._complete_at = time.monotonic()
            self._compare_when_known()

    def _compare_when_known(self) -> None:
        """Once all nodes are here and have said what their clocks show; after a while without those that have not."""
        if self._compared or self._complete_at is None or self._first is not None:
            return
        measured = all(node.error_ns < _UNKNOWN_NS for node in self._nodes.values())
        if measured or time.monotonic() - self._complete_at > _CLOCKS_S:
            self._compared = True
            self._compare()

    def _compare(self) -> None:
        """Say how the nodes differ; end the job where it is not to run so."""
        place = self._place
        facts = {place.node_rank: (*place.facts, *unlike_nodes.clock(0, 0))}
        facts |= {rank: (*node.join.facts, *node.clock) for rank, node in self._nodes.items()}
        hosts = {place.node_rank: place.host} | {rank: node.join.host for rank, node in self._nodes.items()}
        for node in self._nodes.values():
            node.join = replace(node.join, facts=())
        try:
            rows = unlike_nodes.compare(facts)
            found = unlike_nodes.compared(now(), rows, hosts, strict=place.strict)
            kept = keep_facts(Path(place.folder), node_table.render(rows, hosts))
            lines = unlike_nodes.warnings(rows, hosts, str(kept or Path(place.folder, EVENTS)))
        except Exception as error:
            self._ears.emit(Noted(now(), f"the nodes were not compared: {type(error).__name__}: {error}"))
            return
        self._differences = (found,)
        self._ears.emit(found)
        if not found.refused:  # else it is the verdict that says so
            for line in lines:
                self._ears.say(line)
            return
        said = f"nodes differ in {found.breaking[0]} (--preflight strict)"
        self._end_all(place.node_rank, place.host, said)
        self._ears.end_ranks(self._attempt, PeerFailed(now(), place.node_rank, place.host, said))

    def _on_end(self, link: Link, _why: str) -> None:
        self._unknown.pop(link, None)
        node = self._by_link.pop(link, None)
        if node is not None:
            node.closed_at, node.paused = time.monotonic(), False  # who is stopped closes nothing

    def _beat(self) -> None:
        self._pings += 1
        moment = time.monotonic()
        stood_s = self._standstill.look(moment)
        self._wait_for_absent(moment - self._began)
        self._compare_when_known()
        for link in [link for link, since in self._unknown.items() if moment - since > _GREETING_S]:
            link.close()
            del self._unknown[link]
        again_s = BEAT_S
        for rank, node in self._nodes.items():
            if node.report is not None or node.lost is not None or node.paused:
                continue
            node.link.heard_at = min(node.link.heard_at + stood_s, moment)
            silent_s = moment - node.link.heard_at
            if node.closed_at is not None and moment - node.closed_at > DEAD_S and silent_s > DEAD_S:
                self._lose(rank, node, "its ddp-run was killed or its host went down")
            elif silent_s >= LOST_S:
                self._lose(rank, node, _silence(node.link))
            else:
                self._ping(node)
                again_s = min(again_s, LOST_S - silent_s)
        self._ears.loop.set_timer(max(again_s, SOON_S), self._beat, lasting=True)

    def _pause(self, on: bool) -> None:
        """This node stops, or goes on: what it did not hear meanwhile is no silence of others."""
        self._standstill = Standstill()
        for node in self._nodes.values():
            node.link.send(Paused(on))
            node.link.heard_at = time.monotonic()

    def _wait_for_absent(self, for_s: float) -> None:
        """Say who is not here, every few seconds; after the deadline they are not waited for any more."""
        missing = self._absent()
        if self._started or not missing or self._first is not None:
            return
        if for_s > self._place.join_s:
            self._gave_up = True
            said = f"{self._hosts.named(missing)} {self._did_not_join()}"
            self._ears.say(said)
            self._end_all(missing[0], self._hosts.of(missing[0]), said)
            return
        if for_s > WAITING_S / 2:
            self._hosts.ask()  # they are known when they are to be named
        if for_s <= WAITING_S * (self._waits_said + 1):
            return
        self._waits_said += 1
        here = ", ".join(f"{rank} ({node.join.host})" for rank, node in sorted(self._nodes.items())) or "none"
        names = self._hosts.named(missing)
        line = f"waiting for {names} of {self._place.nodes} for {for_s:.0f} s; other nodes here: {here}"
        self._ears.say(line + if_this_host(self._place.address))

    def _lose(self, rank: int, node: _Node, why: str) -> None:
        node.lost = f"was lost: {why}"
        self._standstill.lost(time.monotonic())
        node.link.close()
        said = f"{node_name(rank, node.join.host)} {node.lost}"
        self._ears.say(said)
        self._end_all(rank, node.join.host, said)

    @staticmethod
    def _tell(node: _Node, word: Agreed) -> None:
        node.link.send(replace(word, verdict=by_clock_of(word.verdict, node.offset_ns)))

    def _ping(self, node: _Node) -> None:
        node.pinged = self._pings, time.monotonic_ns()
        node.link.send(Ping(self._pings))

    def _end_all(self, node_rank: int, host: str, said: str) -> None:
        if self._first is not None:
            return
        self._first = node_rank
        for node in self._nodes.values():
            node.link.send(End(self._attempt, node_rank, host, said))
        if node_rank != self._place.node_rank:
            self._ears.end_ranks(self._attempt, PeerFailed(now(), node_rank, host, said))

    def _report_of(self, rank: int, node: _Node) -> NodeReport:
        verdict = node.report.verdict if node.report is not None else None
        lost = node.lost if verdict is None else None
        if verdict is None and lost is None:
            lost = "gave no verdict in time"
        return NodeReport(
            *(rank, node.join.host, node.join.folder, verdict, lost),
            *(node.offset_ns, min(node.error_ns, 10**12)),
            ends=node.report.ends if node.report is not None else Ends(),
            first=rank == self._first,
        )


def _silence(link: Link) -> str:
    address = link.peer
    return silence(
        LOST_S,
        answers=link.acknowledged_within(SILENT_S),
        has_route=address is None or net.route_to(address) is not None,
    )


def _measure(node: _Node, pong: Pong) -> None:
    """Its clock minus ours, by the quickest answer so far: half of the way is the error (RFC 5905, 8)."""
    number, sent = node.pinged
    there_and_back = time.monotonic_ns() - sent
    if pong.number == number and there_and_back // 2 < node.error_ns:
        half = there_and_back // 2
        node.offset_ns, node.error_ns = pong.at - (sent + half), half
        node.wall_offset_ns = None if pong.wall is None else pong.wall - (time.time_ns() - half)


def _listener(address: str, port: int) -> socket.socket:
    """At node 0's own address; at all, where that is another machine's (address translation)."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = address if is_local(address) else ("::" if family == socket.AF_INET6 else "0.0.0.0")  # noqa: S104
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bound, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
