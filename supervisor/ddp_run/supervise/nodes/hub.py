"""Node 0's side: hears all nodes, tells all to end when one fails, and forms the verdict of all."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import final

from ddp_run.judge.of_nodes import noted
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import AllRanksEnded, NodeRankTaken, Noted, PeerFailed
from ddp_run.record.journal import now
from ddp_run.supervise import open_files
from ddp_run.supervise.nodes import messages
from ddp_run.supervise.nodes.agreement import VERDICTS_S, Decide, Side
from ddp_run.supervise.nodes.link import Ended, Link, Listener, Opened
from ddp_run.supervise.nodes.messages import EndedWell, Failing, Join, Message, Numbered, Paused, Report, Word
from ddp_run.supervise.nodes.place import Ears, Place
from ddp_run.supervise.nodes.reach import if_this_host
from ddp_run.supervise.nodes.roster import OtherNode, Roster
from ddp_run.supervise.nodes.together import Comparison, HubView
from ddp_run.tell.verdict_file import keep_report
from ddp_run.values.words import node_name

_LAST_WORD_S = 2.0
_LEFT_OUT = Decision(False, "the job goes on with a spare node in place of this one, which waits for its end")
_ALIVE_S = 2.5 * messages.BEAT_S
"""A node that has answered within this time is there."""
_MOST_FOLLOWERS = 64
_MOST_STRANGERS = 64
"""So many connections, besides one for each node, may be open."""


@final
class Hub(Side):
    """Listens for the other nodes. A node that has not joined is not waited for when an attempt ends."""

    def __init__(self, place: Place, ears: Ears) -> None:
        """Raises OSError if the port can't be had."""
        super().__init__(place, ears)
        self._links: dict[Link, OtherNode] = {}
        """The connections of nodes that have joined."""
        self._roster = Roster(place, ears)
        self._nodes = self._roster.nodes
        self._never_joined: str | None = None
        """The message about nodes that didn't join in time."""
        self._pings = 0
        self._first: OtherNode | None = None
        """The node that was the first to fail, if it's another one."""
        self._ended_well = False
        """All ranks of this node have."""
        self._agent_was_let_go = False
        self._comparison = Comparison(place, ears, self._roster)
        self.others: HubView = HubView(ears, self._roster, lambda: self._attempt, self._send_all, self._named)
        self._key = place.job_key + place.munge.make()
        most = place.nodes + place.spares + _MOST_STRANGERS
        open_files.make_room(most)
        where = (ears.loop, place.address, place.port)
        self._listener = Listener(*where, self._welcome, room=lambda: most - len(self._links))
        self._beat()

    def _named(self) -> str:
        return node_name(self._node_rank, self._place.host)

    def close(self) -> None:
        """Node 0 leaves."""
        self._roster.close()
        self._ears.loop.cancel_timer(self._beat)
        self._listener.close()
        for link in self._links:
            link.close()

    # ------------------------------------------------------------------------------------ how nodes join

    def _welcome(self, connected: socket.socket) -> Link:
        shown = self._place.munge.credential
        return Link(self._ears.loop, connected, self._key, self._on_message, is_server=True, credential=shown)

    def _on_join(self, link: Link, join: Join) -> None:
        place, key = self._place, self._roster.key_of(join)
        if key is None:
            link.close()
        elif key > 0:
            node = self._nodes.setdefault(key, OtherNode(key, join, link, is_spare=place.spares > 0))
            if node.is_of(join):
                self._has_joined(node, link, join.attempt)
            elif node.link.is_open and time.monotonic() - node.link.heard_at < _ALIVE_S:
                self._on_second(link, key, join.host, node.join.host)
            else:  # it may replace one that is gone
                link.close()
        elif (join.host, join.folder) == (place.host, place.folder):  # this node itself, through its external address
            link.send(messages.Joined(place.host))
        else:
            self._on_second(link, key, join.host, place.host)

    def _has_joined(self, node: OtherNode, link: Link, attempt: int) -> None:
        """The node is here, or here again on another connection: tell it what it has missed of this attempt."""
        if node.link is not link:
            node.link.close()
            self._links.pop(node.link, None)
            node.link, node.closed_at = link, None
        self._links[link] = node
        self._listener.is_no_stranger(link)
        link.send(messages.Joined(self._place.host, self._node_rank))
        node.ping(self._pings, self.others.question)
        if self._place.spares:
            self._settle_places()
            if node.is_spare:
                self._ears.emit(Noted(now(), f"{node.name} waits"))
                return
            link.send(self.await_part())
        if self._agreed is not None and self._agreed.attempt == attempt:
            node.tell(self._agreed)
        if self._all_well:
            link.send(EndedWell(self._attempt))
        if self._is_ending:
            link.send(messages.End(self._attempt, self._node_rank, self._place.host, "the job is ending"))

    def _settle_places(self) -> None:
        """Nodes that are gone leave their places, and spare ones take those that are free: none is while ranks run."""
        if not self._is_ending:
            for node in self._roster.settle(is_in=self._node_rank is not None):
                node.link.send(self.await_part())

    def _on_second(self, link: Link, node_rank: int, host: str, taken_by: str) -> None:
        """The newcomer can't stay. If nodes are missing, it is one of them, so this job can't start."""
        link.send(messages.RankTaken(taken_by))
        if not self._started and not self._is_ending and self._roster.absent:
            clash = NodeRankTaken(now(), node_rank, taken_by, host)
            self._ears.emit(clash)
            self._end_all(self._node_rank, self._place.host, clash.said)

    def _compare_when_known(self) -> None:
        if not self._is_ending and (said := self._comparison.make_when_known()) is not None:
            self._end_all(self._node_rank, self._place.host, said)

    def _find_out(self) -> None:
        self._roster.ask()

    def _missing(self) -> tuple[str, str]:
        return self._roster.missing, f"; other nodes here: {self._roster.here}{if_this_host(self._place.address)}"

    def _give_up(self) -> None:
        self._never_joined = f"did not join within {self._place.join_s:g} s"
        said = f"{self._roster.named(self._roster.absent)} {self._never_joined}"
        self._ears.say(said)
        self._end_all(*self._roster.never_seen()[0], said)

    # --------------------------------------------------------------------------------------- who hears whom

    def _tell(self, word: Word) -> None:
        match word:
            case Numbered():
                self._send_all(word)
                self._begin_round(word.nodes)
            case Paused():
                self._send_all(word)
                for node in self._nodes.values():
                    node.link.heard_at = time.monotonic()
            case EndedWell():
                self._ended_well = True
                self._let_agents_go()
            case Failing(said=said) | messages.Leaving(said=said):  # the store of a c10d rendezvous is on this host
                self._end_all(self._node_rank, self._place.host, said, here=True)

    def _begin_round(self, nodes: int) -> None:
        """Torch has met with so many nodes: one that was lost may not be among them."""
        self._roster.round_size = nodes
        self._settle_places()

    def _send_all(self, message: Message) -> None:
        """To spare nodes, too, if it isn't about an attempt."""
        for node in self._nodes.values():
            if not node.is_spare or isinstance(message, Paused):
                node.link.send(message)

    def _on_message(self, link: Link, message: Message | Opened | Ended) -> None:
        if isinstance(message, Join):
            self._on_join(link, message)
            return
        node = self._links.get(link)
        if isinstance(message, Ended):
            self._links.pop(link, None)
            self._listener.is_no_stranger(link)
        if node is None:
            return
        match message:
            case Ended():  # a stopped process closes nothing, so it isn't paused any more
                node.closed_at, node.paused = time.monotonic(), False
                self._settle_places()
            case messages.Pong():
                node.clock.measure(message)
                self._compare_when_known()
            case messages.Looked() | messages.Came():
                self.others.hear(node, message)
            case Paused(on):
                node.paused = on
            case Numbered(node_rank):
                node.node_rank = node_rank
                self._begin_round(message.nodes)
            case messages.Leaving(said):
                self._lose(node, f"left: {said}")
            case Failing(attempt, said) if attempt == self._attempt:
                self._end_all(node.node_rank, node.join.host, said, by=node)
            case EndedWell(attempt) if attempt == self._attempt:
                node.ended_well = True
                self._let_agents_go()
            case Report(attempt=attempt) if attempt == self._attempt:
                node.report = message
                self._let_agents_go()
            case _:
                pass

    def _look(self, moment: float, stood_s: float) -> float:
        self._pings += 1
        if not self._started and not self._is_ending and self._roster.absent:
            self._wait_for_missing(moment)
        self._compare_when_known()
        self.others.look()
        question = self.others.question
        self._listener.look(moment)
        again_s = messages.BEAT_S
        for node in [*self._nodes.values()]:
            if node.is_through or node.paused:
                continue
            node.link.heard_at = min(node.link.heard_at + stood_s, moment)
            why = node.gone(moment)
            if why is not None:
                self._standstill.lost(time.monotonic())
                node.link.close()
                self._links.pop(node.link, None)
                self._lose(node, f"was lost: {why}")
            else:
                node.ping(self._pings, question)
                again_s = min(again_s, node.link.heard_at + messages.LOST_S - moment)
        return again_s

    def _lose(self, node: OtherNode, how: str) -> None:
        """`how`: "was lost: …", or "left: …" in an elastic job."""
        node.lost = how
        said = f"{node.name} {node.lost}"
        self._ears.say(said)
        self.others.is_gone(node)
        if node.is_spare:
            node.link.close()
            del self._nodes[node.key]
        elif self._is_ending:
            self._let_agents_go()
        elif self._place.least is not None or (node.node_rank is None and not self._started):
            self._settle_places()
        else:
            self._end_all(node.node_rank, node.join.host, said, by=node)

    # ------------------------------------------------------------------------------ how an attempt's end is agreed

    def _end_all(
        self, node_rank: int | None, host: str, said: str, *, by: OtherNode | None = None, here: bool = False
    ) -> None:
        """A node fails, or is lost: the first one ends the ranks everywhere. `here`: it is this one."""
        if not self._is_ending:
            self._is_ending, self._first = True, by
            self._send_all(messages.End(self._attempt, node_rank, host, said))
            if not here:
                self._ears.end_ranks(self._attempt, PeerFailed(now(), node_rank, host, said))
        self._let_agents_go()

    def _let_agents_go(self) -> None:
        """Now that a node has ended well, has reported or is lost, see whether agents are still needed.

        They are not when the ranks of all nodes have ended well. Node 0's agent goes last, when the others are through:
        their ranks and agents may be talking to its store.
        """
        if not self._roster.is_complete:
            return
        nodes = self._roster.counted
        if not self._is_ending and not self._all_well and self._ended_well and all(node.ended_well for node in nodes):
            self._all_well = True
            self._send_all(EndedWell(self._attempt))
        is_over = self._is_ending or self._all_well
        if is_over and not self._agent_was_let_go and all(node.is_through for node in nodes):
            self._agent_was_let_go = True
            self._ears.end_ranks(self._attempt, AllRanksEnded(now(), not self._is_ending))

    def _agree(self, own: Report, decide: Decide) -> tuple[Verdict, Decision]:
        """The verdict of all that have joined; they have the grace, and a few seconds, to give theirs."""
        place = self._place
        if own.verdict.outcome != "succeeded":
            self._end_all(self._node_rank, place.host, own.verdict.title or "failed", here=True)
        absent_until = self._first_words_until() if self._started and self._is_ending else 0.0
        self._wait(lambda: self._without_verdict(absent_until), place.grace_s + VERDICTS_S)
        self._comparison.make_at_the_end()
        others = self._roster.reports(self._first, self._never_joined)
        verdict = noted(self._verdict_of_all(own, others), self._ears.events)
        decision = decide(self._roster.with_spares(verdict))
        decision, left_out = self._roster.possible(decision, verdict, self._attempt + 1)
        # this node keeps the whole list of a thousand ranks that followed; sent a thousand times, it is 100 MB
        short = replace(verdict, collateral=verdict.collateral[:_MOST_FOLLOWERS])
        self._agreed = messages.Agreed(own.attempt, short, decision, place.host, place.folder)
        for node in self._nodes.values():
            if not node.is_spare or not decision.retry:
                node.tell(self._agreed)
        for node in left_out:
            node.tell(replace(self._agreed, decision=_LEFT_OUT, left_out=True))
        for node in self._nodes.values():
            if node.report is not None:
                keep_report(Path(place.folder), node.told(), node.report.last_lines)
        if decision.retry:
            self._begin_next()
        else:
            self._let_them_hang_up()
        return verdict, decision

    def _without_verdict(self, absent_until: float) -> str:
        """The nodes that have not given theirs; until then also those that have not joined yet."""
        missing = [node.key for node in self._roster.counted if not node.is_through]
        if time.monotonic() < absent_until:
            missing += self._roster.absent
        return self._roster.named(missing) if missing else ""

    def _begin_next(self) -> None:
        super()._begin_next()
        self._first, self._ended_well, self._agent_was_let_go = None, False, False
        self.others.begin()
        for node in self._nodes.values():
            node.begin_next()
        self._settle_places()

    def await_part(self) -> messages.Start:
        """Node 0 always takes part: it has the rendezvous' store."""
        return messages.Start(self._attempt, self._agreed.decision if self._agreed is not None else None)

    def _let_them_hang_up(self) -> None:
        """A node that has the last word hangs up; closing first would throw away what is on its way."""
        until = time.monotonic() + _LAST_WORD_S
        while any(node.link.is_open for node in self._nodes.values()) and time.monotonic() < until:
            self._ears.serve(0.02)
