"""The side of every other node: joins the hub, says how its attempt goes, and gets the verdict of all.

"Node 0" is the node that has the hub. With c10d torch may give it another number.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import final

from ddp_run.judge import judging
from ddp_run.judge.of_nodes import NodeReport, agreed, alone
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan import net
from ddp_run.record.attempt_events import since_waiting
from ddp_run.record.events import AllRanksEnded, Noted, PeerFailed, WaitsAsSpare
from ddp_run.record.journal import now
from ddp_run.supervise.nodes import messages
from ddp_run.supervise.nodes.agreement import FIRST_WORD_S, VERDICTS_S, Decide, Side
from ddp_run.supervise.nodes.link import Ended, Link, Opened, Reach, dial
from ddp_run.supervise.nodes.messages import EndedWell, Failing, Leaving, Message, Numbered, Paused, Report, Word
from ddp_run.supervise.nodes.place import SECRET, Ears, Place
from ddp_run.supervise.nodes.reach import command, end_for_rank, if_this_host, in_words, silence
from ddp_run.supervise.nodes.together import MemberView
from ddp_run.values.words import node_name


@final
class Member(Side):
    """Dials node 0 until it answers, and again when nothing is heard from it."""

    def __init__(self, place: Place, ears: Ears) -> None:
        super().__init__(place, ears)
        self.others: MemberView = MemberView(ears, lambda: self._attempt, self._show)
        self._host_of_0 = place.address
        """Its address until it has said its host's name."""
        self._rank_of_0 = None if place.node_rank is None else 0
        self._link: Link | None = None
        """The last connection on which both have greeted."""
        self._dialled: Link | None = None
        """One that is being made."""
        self._reach = Reach.SILENT
        """How far the last one came."""
        self._probe: Link | None = None
        """To the master's port, shortly before something is said about it."""
        self._heard_at: float | None = None
        """When node 0 was last heard; None: it never was."""
        self._refused_since: float | None = None
        self._paused = False
        """Node 0 is."""
        self._noted = False
        self._said: list[Message] = []
        """What node 0 must know of this attempt, on each connection."""
        self._lost: str | None = None
        self._part: messages.Start | None = None if place.spares else messages.Start(0, None)
        """Since when this node takes part; None: it waits as a spare one."""
        self._has_left = False
        """This node has left an elastic job, which goes on."""
        self._beat()

    def close(self) -> None:
        """This node leaves."""
        self._ears.loop.cancel_timer(self._beat)
        for link in (self._dialled, self._probe, self._link):
            if link is not None:
                link.close()

    # ------------------------------------------------------------------------------- how this node joins

    def _dial(self) -> None:
        place = self._place
        if self._dialled is not None:
            self._reach = self._dialled.reach
            self._dialled.close()
        where = (place.address, place.port, place.job_key)
        self._dialled = dial(self._ears.loop, *where, self._on_message, unlock=place.munge.open)
        if self._dialled is None:
            self._reach = Reach.FAILED

    def _on_opened(self, link: Link) -> None:
        place = self._place
        if self._link is not None:
            self._link.close()
        self._link, self._dialled = link, None
        join = messages.Join(place.node_rank, place.nodes, place.host, place.folder, self._attempt, place.facts)
        for message in (join, *self._said):
            link.send(message)

    def _on_ended(self, link: Link) -> None:
        if link not in (self._link, self._dialled):
            return
        self._reach = link.reach
        if link is self._link:
            self._paused = False  # a stopped process closes nothing
        else:
            self._dialled = None
        host_is_there = self._reach in (Reach.REFUSED, Reach.STRANGER, Reach.HUNG_UP)
        if host_is_there and self._heard_at is not None and self._refused_since is None:
            self._refused_since = time.monotonic()

    def _find_out(self) -> None:
        place = self._place
        if self._probe is None:
            self._probe = dial(self._ears.loop, place.address, place.master_port, b"", lambda _link, _message: None)

    def _missing(self) -> tuple[str, str]:
        place = self._place
        route = net.route_to(place.address)
        through = f" (from {route.ip} on {route.interface})" if route is not None else ""
        try_this = command(self._reach, address=place.address, control_port=place.port)
        why = f": {self._why()}{if_this_host(place.address)}. Try: {try_this}"
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        return f"{place.node_0} at {place.address}{through}", why

    def _why(self) -> str:
        if self._place.munge.why is not None:
            return f"{self._place.munge.why}; or set the same {SECRET} on all nodes"
        place, master = self._place, self._probe.reach if self._probe is not None else Reach.SILENT
        ports = {"control_port": place.port, "master_port": place.master_port}
        return in_words(self._reach, master, whose=place.node_0, **ports)

    def _give_up(self) -> None:
        self._lose(f"was not reached within {self._place.join_s:g} s: {self._why()}")

    # --------------------------------------------------------------------------------------- who hears whom

    def _tell(self, word: Word) -> None:
        match word:
            case Failing() if self._part is None:
                self._send(Leaving(word.said))
            case Paused():
                self._heard_at = time.monotonic() if self._heard_at is not None else None
                self._send(word)
            case Numbered() | EndedWell():
                self._say(word)
            case Failing() if self._place.least is not None and not self._started:
                self._tell(Leaving(word.said))
            case Failing() | Leaving():
                if not self._is_ending:
                    self._is_ending, self._has_left = True, isinstance(word, Leaving)
                    self._say(word)

    def _say(self, message: Message) -> None:
        """Say it, and again on each further connection."""
        self._said.append(message)
        self._send(message)

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def _on_message(self, link: Link, message: Message | Opened | Ended) -> None:
        if isinstance(message, Ended):
            self._on_ended(link)
            return
        if isinstance(message, Opened):
            self._on_opened(link)
            return
        self._heard_at, self._refused_since = time.monotonic(), None
        match message:
            case messages.Joined(host, node_rank):
                self._host_of_0 = host
                self._rank_of_0 = self._rank_of_0 if node_rank is None else node_rank
            case Numbered(node_rank):
                self._rank_of_0 = node_rank
            case messages.RankTaken(host):
                self._is_ending, self._heard_at = True, None  # no word comes from there
                end_for_rank(self._ears, self._place, self._attempt, host)
                self.close()
            case messages.Ping(number):
                link.send(messages.Pong(number, time.monotonic_ns(), time.time_ns()))
                self.others.hear(message)
            case messages.Stalled() | messages.Slow():
                self.others.hear(message)
            case Paused(on):
                self._paused = on
            case messages.End(attempt, node_rank, host, said) if attempt == self._attempt:
                self._end_ranks(node_rank, host, said)
            case EndedWell(attempt) if attempt == self._attempt:
                self._all_well = True
                self._ears.end_ranks(attempt, AllRanksEnded(now()))
            case messages.Start(attempt) if self._part is None:
                self._part, self._attempt, self._began = message, attempt, time.monotonic()
            case messages.Agreed(attempt=attempt) if attempt == self._attempt or self._part is None:
                self._agreed = message
                if message.left_out:
                    self._part = None
                    self._said.clear()
                elif message.decision.retry:
                    self._begin_next()
                else:
                    link.close()
            case _:
                pass

    def _show(self, message: Message) -> bool:
        """Send it at once, or not at all. Returns whether that was done."""
        if self._link is None or not self._link.is_open or not messages.fits(message):
            return False
        self._link.send(message)
        return True

    def _look(self, moment: float, stood_s: float) -> float:
        """Dial if there is no connection or node 0 is silent; see whether it is lost."""
        left_s = messages.LOST_S
        if self._heard_at is not None:
            self._heard_at = min(self._heard_at + stood_s, moment)
            left_s -= moment - self._heard_at
        again_s = min(messages.REDIAL_S, left_s) if left_s > 0 else messages.REDIAL_S
        if self._is_over or self._lost is not None or self._paused:
            return again_s
        if self._heard_at is None:
            if not self._started and not self._is_ending:
                self._wait_for_missing(moment)
            self._note_silence(moment)
        elif self._refused_since is not None and moment - self._refused_since > messages.DEAD_S:
            self._lose("was lost: its ddp-run was killed or its host went down")
        elif left_s <= 0:
            answers = self._reach is Reach.STRANGER  # its host takes the connection, and nobody speaks
            has_route = net.route_to(self._place.address) is not None
            self._lose(f"was lost: {silence(messages.LOST_S, answers=answers, has_route=has_route)}")
        silent = self._heard_at is not None and moment - self._heard_at > messages.SILENT_S
        if self._link is None or not self._link.is_open or silent:
            self._dial()
        return again_s

    def _note_silence(self, moment: float) -> None:
        if not self._noted and moment - self._began > FIRST_WORD_S:
            self._noted = True
            where = f"{self._place.node_0} at {self._place.address} port {self._place.port}"
            self._ears.emit(Noted(now(), f"no answer from {where}: each node judges for itself"))

    def _lose(self, how: str) -> None:
        self._lost = how
        self._standstill.lost(time.monotonic())
        said = f"{self._name_of_0} {how}"
        self._ears.say(said)
        self._end_ranks(self._rank_of_0, self._host_of_0, said)

    @property
    def _name_of_0(self) -> str:
        return node_name(self._rank_of_0, self._host_of_0)

    # ------------------------------------------------------------------------------ how an attempt's end is agreed

    def _end_ranks(self, node_rank: int | None, host: str, said: str) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._ears.end_ranks(self._attempt, PeerFailed(now(), node_rank, host, said))

    def _agree(self, own: Report, _decide: Decide) -> tuple[Verdict, Decision]:
        """Node 0's word; without it this node's own verdict, and that node 0 was lost if nothing failed here."""
        attempt, verdict, until = own.attempt, own.verdict, self._first_words_until()

        def not_told() -> str:
            # all nodes' ranks have met: on a busy host node 0 may listen only after this
            may_speak = self._started and time.monotonic() < until
            is_there = self._lost is None and (self._heard_at is not None or may_speak)
            return self._name_of_0 if is_there and (self._agreed is None or self._agreed.attempt < attempt) else ""

        if not self._has_left:
            self._say(replace(own, verdict=verdict.without_secrets()))
            self._wait(not_told, self._place.grace_s + 2 * VERDICTS_S)
        elif not self._started:  # an agent that waits to be taken in ends with the job, too
            self._wait(not_told, VERDICTS_S)
        if self._agreed is not None and self._agreed.attempt == attempt:
            return self._told(self._agreed)
        if self._has_left:
            return alone(verdict), Decision(False, "this node has left the job")
        if self._lost is None:
            refused = verdict.retry.reason if verdict.outcome == "refused" and verdict.retry is not None else None
            reason = refused or f"no verdict from {self._name_of_0}, and one node cannot retry alone"
            return alone(verdict), Decision(False, reason)
        verdict = self._verdict_of_all(own, [self._gone()])
        return verdict, Decision(False, f"{self._name_of_0} cannot take part in another attempt")

    def await_part(self) -> messages.Start | tuple[Verdict, Decision]:
        """Wait for node 0's word."""
        ears, stops = self._ears, self._ears.stops()
        if self._part is None:
            ears.emit(WaitsAsSpare(now()))
        while self._part is None and not self._is_over and self._lost is None and ears.stops() == stops:
            ears.serve(messages.BEAT_S)
        if self._part is not None:
            return self._part
        verdict = judging.as_spare(since_waiting(ears.events))
        if self._is_over and self._agreed is not None:
            return self._told(self._agreed)
        if self._lost is not None:
            verdict = self._verdict_of_all(Report(0, verdict), [self._gone()])
        return verdict, Decision(False, "this spare node never took part")

    def _told(self, agreed_on: messages.Agreed) -> tuple[Verdict, Decision]:
        self._ears.emit(agreed(now(), agreed_on.verdict, agreed_on.host, agreed_on.folder))
        return agreed_on.verdict, agreed_on.decision

    def _gone(self) -> NodeReport:
        return NodeReport(self._rank_of_0, self._host_of_0, "", None, self._lost)

    def _begin_next(self) -> None:
        super()._begin_next()
        self._said.clear()
        self.others.begin()
        self._rank_of_0 = None if self._place.node_rank is None else 0

    @property
    def _is_over(self) -> bool:
        """Node 0 has said how the job ends."""
        return self._agreed is not None and not self._agreed.decision.retry and not self._agreed.left_out

    def where(self) -> tuple[str, str] | None:
        """Where node 0 keeps the whole verdict."""
        return (self._agreed.host, self._agreed.folder) if self._is_over and self._agreed is not None else None
