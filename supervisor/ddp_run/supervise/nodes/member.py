"""The side of every other node: joins node 0, says how its attempt goes, and takes the verdict of all from there."""

from __future__ import annotations

import socket
import time
from typing import final

from ddp_run.judge.of_nodes import Ends, NodeReport, agreed, alone, of_nodes, reported
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan import net
from ddp_run.record.events import AllRanksEnded, Event, Noted, PeerFailed, RanksEnded, RankStarted
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.agreement import (
    DEAD_S,
    FIRST_WORD_S,
    LOST_S,
    REDIAL_S,
    SILENT_S,
    SOON_S,
    VERDICTS_S,
    WAITING_S,
    Decide,
    Ears,
    Place,
    end_for_rank,
    first_words_until,
    wait,
)
from ddp_run.supervise.nodes.dial import Dial
from ddp_run.supervise.nodes.failing import line_of, paused_by
from ddp_run.supervise.nodes.host_clocks import HostClocks, say_what_happened
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import (
    Agreed,
    End,
    EndedWell,
    Failing,
    Join,
    Joined,
    Message,
    Paused,
    Ping,
    Pong,
    RankTaken,
    Report,
)
from ddp_run.supervise.nodes.reach import Reach, command, if_this_host, in_words, of_errno, silence
from ddp_run.supervise.nodes.standstill import Standstill
from ddp_run.values.words import node_name


@final
class Member:
    """Dials node 0 until it answers, and anew when nothing is heard of it."""

    def __init__(self, place: Place, ears: Ears) -> None:
        self._place, self._ears = place, ears
        self._host_of_0 = place.address
        """What node 0 is called: its address until it has said its host's name."""
        self._link: Link | None = None
        self._dialling: Dial | None = None
        self._control, self._master = Reach.SILENT, Reach.SILENT
        """What node 0's ports answered last."""
        self._probe: Dial | None = None
        """Of the master's port, shortly before something is said of it."""
        self._began = time.monotonic()
        self._heard_at: float | None = None
        """When anything of node 0's was last heard; null: it never was."""
        self._refused_since: float | None = None
        self._paused = False
        """Node 0 is."""
        self._noted = False
        self._started = False
        """Ranks of this node have started: all nodes have met."""
        self._waits_said = 0
        self._attempt = 0
        self._failing: str | None = None
        self._ended = False
        """This node's ranks were told to end, or fail by themselves."""
        self._ended_well, self._all_ended_well = False, False
        """All ranks of this node have; those of all nodes."""
        self._report: Report | None = None
        self._word: Agreed | None = None
        """What node 0 said last."""
        self._lost: str | None = None
        self._standstill, self._clocks = Standstill(), HostClocks()
        self._watch()

    # ------------------------------------------------------------------------------- the run's side

    def hear(self, event: Event) -> None:
        """A sink: the first event that means a failure here goes to node 0."""
        self._started = self._started or isinstance(event, RankStarted)
        paused = paused_by(event)
        if paused is not None:
            self._send(Paused(paused))
            self._standstill = Standstill()
            self._heard_at = time.monotonic() if self._heard_at is not None else None
        if isinstance(event, RanksEnded):
            self._ended_well = True
            self._send(EndedWell(self._attempt))
        agent_needed = not self._all_ended_well
        said = line_of(event, agent_restarts=self._place.agent_restarts, agent_needed=agent_needed)
        if said is not None and not self._ended:
            self._ended, self._failing = True, said
            self._send(Failing(self._attempt, said))

    def agree(
        self, attempt: int, verdict: Verdict, ends: Ends, last_lines: tuple[str, ...], _decide: Decide
    ) -> tuple[Verdict, Decision]:
        """Node 0's word; without it this node's own verdict, and that node 0 was lost where nothing failed here."""

        until = first_words_until(self._began)

        def without_word() -> str:
            is_there = self._lost is None and (self._heard_at is not None or self._may_speak(until))
            return "node 0" if is_there and (self._word is None or self._word.attempt < attempt) else ""

        self._report = Report(attempt, verdict.without_secrets(), last_lines, ends)
        self._send(self._report)
        within_s = self._place.grace_s + 2 * VERDICTS_S
        wait(self._ears, for_whom=without_word, ended=lambda: self._ended, at_most_s=within_s)
        if self._word is not None and self._word.attempt == attempt:
            word = self._word
            self._ears.emit(agreed(now(), word.verdict, word.host, word.folder))
            return word.verdict, word.decision
        if self._lost is None:
            refused = verdict.retry.reason if verdict.outcome == "refused" and verdict.retry is not None else None
            reason = refused or "no word of node 0, and one node cannot make another attempt"
            return alone(verdict), Decision(False, reason)
        place = self._place
        own = NodeReport(place.node_rank, place.host, place.folder, verdict, here=True, ends=ends)
        gone = NodeReport(0, self._host_of_0, "", None, self._lost)
        self._ears.emit(reported(now(), gone))
        verdict = of_nodes(self._standstill.told_by([own, gone]))
        if self._standstill.has_cost_nodes:
            self._ears.emit(agreed(now(), verdict, place.host, place.folder))
        return verdict, Decision(False, f"{node_name(0, self._host_of_0)} cannot take part in another attempt")

    def _may_speak(self, until: float) -> bool:
        """Whether node 0, which was not heard yet, may be: all nodes' ranks have met, and its port refuses nobody."""
        return self._started and self._control is not Reach.REFUSED and time.monotonic() < until

    def where(self) -> tuple[str, str] | None:
        """Where node 0 keeps the whole of it."""
        return (self._word.host, self._word.folder) if self._is_over and self._word is not None else None

    @property
    def _is_over(self) -> bool:
        """Node 0 has said how the job ends."""
        return self._word is not None and not self._word.decision.retry

    def close(self) -> None:
        """This node leaves."""
        self._ears.loop.cancel_timer(self._watch)
        self._hang_up()
        self._end_probe()
        if self._link is not None:
            self._link.close()

    # ------------------------------------------------------------------------------- node 0's side

    def _watch(self) -> None:
        """Once a second: dial where there is no connection, or it is silent; see whether node 0 is lost."""
        moment = time.monotonic()
        stood_s = self._standstill.look(moment)
        say_what_happened(self._clocks, self._ears)
        if self._heard_at is not None:
            self._heard_at = min(self._heard_at + stood_s, moment)
        left_s = LOST_S - (moment - self._heard_at) if self._heard_at is not None else LOST_S
        again_s = min(REDIAL_S, left_s) if left_s > 0 else REDIAL_S
        self._ears.loop.set_timer(max(again_s, SOON_S), self._watch, lasting=True)
        if self._is_over or self._lost is not None or self._paused:
            return
        if self._heard_at is None:
            if not self._started and not self._ended:
                self._wait_for_node_0(moment - self._began)
            if not self._noted and moment - self._began > FIRST_WORD_S:
                self._noted = True
                place = self._place
                note = f"no answer of node 0 at {place.address} port {place.port}: each node judges for itself"
                self._ears.emit(Noted(now(), note))
        elif self._refused_since is not None and moment - self._refused_since > DEAD_S:
            self._lose("was lost: its ddp-run was killed or its host went down")
        elif left_s <= 0:
            self._lose(f"was lost: {self._silence()}")
        silent = self._heard_at is not None and moment - self._heard_at > SILENT_S
        if self._link is None or not self._link.is_open or silent:
            self._dial()

    def _wait_for_node_0(self, for_s: float) -> None:
        """Say why it is not there, every few seconds; after the deadline it is not waited for any more."""
        place, due_s = self._place, WAITING_S * (self._waits_said + 1)
        if for_s > place.join_s:
            self._lose(f"was not reached within {place.join_s:g} s: {self._why()}")
        elif for_s > due_s:
            self._waits_said += 1
            try_this = command(self._control, address=place.address, control_port=place.port)
            route = net.route_to(place.address)
            through = f" (from {route.ip} on {route.interface})" if route is not None else ""
            where = f"node 0 at {place.address}{through}"
            line = f"waiting for {where} for {for_s:.0f} s: {self._why()}{if_this_host(place.address)}"
            self._ears.say(f"{line}. Try: {try_this}")
            self._end_probe()
        elif for_s > due_s - 2 * REDIAL_S and self._probe is None:
            self._master = Reach.SILENT
            self._probe = Dial(self._ears.loop, place.address, place.master_port, self._probed)

    def _silence(self) -> str:
        answers = self._control is Reach.STRANGER  # its host takes the connection, and nobody speaks
        has_route = self._control is not Reach.NO_ROUTE or net.route_to(self._place.address) is not None
        return silence(LOST_S, answers=answers, has_route=has_route)

    def _why(self) -> str:
        place = self._place
        return in_words(self._control, self._master, control_port=place.port, master_port=place.master_port)

    def _probed(self, connected: socket.socket | None, code: int) -> None:
        self._master = Reach.OPEN if connected is not None else of_errno(code)
        if connected is not None:
            connected.close()

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _dial(self) -> None:
        if self._dialling is not None:  # nobody has answered the last one
            self._control = Reach.SILENT
        elif self._link is not None and not self._link.is_open and not self._link.is_closed:
            self._control = Reach.STRANGER  # ddp-run speaks first
        self._hang_up()
        self._dialling = Dial(self._ears.loop, self._place.address, self._place.port, self._dialled)

    def _hang_up(self) -> None:
        if self._dialling is not None:
            self._dialling.close()
            self._dialling = None

    def _dialled(self, connected: socket.socket | None, code: int) -> None:
        self._dialling = None
        if connected is None:
            self._control = of_errno(code)
            if self._control is Reach.REFUSED:  # the host is there, and nobody listens; else it cannot be reached
                self._refused()
            return
        if self._link is not None:
            self._link.close()
        self._link = Link(
            self._ears.loop,
            connected,
            self._place.job_key,
            is_server=False,
            on_open=self._on_open,
            on_message=self._on_message,
            on_end=self._on_end,
        )

    def _on_end(self, link: Link, _why: str) -> None:
        if link is self._link:
            self._control = Reach.HUNG_UP if link.has_greeted else Reach.STRANGER
            self._paused = False  # who is stopped closes nothing
            self._refused()

    def _refused(self) -> None:
        if self._heard_at is not None and self._refused_since is None:
            self._refused_since = time.monotonic()

    def _on_open(self, link: Link) -> None:
        place = self._place
        link.send(Join(place.node_rank, place.nodes, place.host, place.folder, self._attempt, place.facts))
        if self._failing is not None:
            link.send(Failing(self._attempt, self._failing))
        if self._ended_well:
            link.send(EndedWell(self._attempt))
        if self._report is not None:
            link.send(self._report)

    def _on_message(self, link: Link, message: Message) -> None:
        self._heard_at, self._refused_since = time.monotonic(), None
        match message:
            case Joined(host):
                self._host_of_0 = host
            case RankTaken(host):
                self._ended, self._heard_at = True, None  # no word comes from there
                end_for_rank(self._ears, self._place, self._attempt, host)
                self.close()
            case Ping(number):
                link.send(Pong(number, time.monotonic_ns(), time.time_ns()))
            case End(attempt, node_rank, host, said) if attempt == self._attempt:
                self._end_ranks(node_rank, host, said)
            case Paused(on):
                self._paused = on
            case EndedWell(attempt) if attempt == self._attempt:
                self._all_ended_well = True
                self._ears.end_ranks(attempt, AllRanksEnded(now()))
            case Agreed(attempt=attempt) if attempt == self._attempt:
                self._word = message
                if message.decision.retry:
                    self._begin_next()
                else:
                    link.close()
            case _:
                pass

    def _begin_next(self) -> None:
        """At once: what node 0 says from now on is about the next attempt."""
        self._attempt += 1
        self._failing, self._ended, self._report = None, False, None
        self._ended_well = self._all_ended_well = False

    def _lose(self, how: str) -> None:
        self._lost = how
        self._standstill.lost(time.monotonic())
        said = f"{node_name(0, self._host_of_0)} {how}"
        self._ears.say(said)
        self._end_ranks(0, self._host_of_0, said)

    def _end_ranks(self, node_rank: int, host: str, said: str) -> None:
        if not self._ended and node_rank != self._place.node_rank:
            self._ended = True
            self._ears.end_ranks(self._attempt, PeerFailed(now(), node_rank, host, said))

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)
