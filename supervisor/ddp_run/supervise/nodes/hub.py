"""Node 0's side: hears all nodes, tells all to end when one fails, and says what the verdict of all is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from ddp_run.judge import known_differences
from ddp_run.judge.of_nodes import Ends, NodeReport, agreed, alone, of_nodes, reported
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import Event, NodeRankTaken, PeerFailed, RanksEnded, RankStarted
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.absent_nodes import AbsentNodes
from ddp_run.supervise.nodes.agreement import (
    BEAT_S,
    LOST_S,
    SOON_S,
    VERDICTS_S,
    Decide,
    Ears,
    Place,
    first_words_until,
    wait,
)
from ddp_run.supervise.nodes.comparison import Comparison
from ddp_run.supervise.nodes.ending import Ending
from ddp_run.supervise.nodes.failing import line_of, paused_by
from ddp_run.supervise.nodes.host_clocks import HostClocks, say_what_happened
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import (
    Agreed,
    EndedWell,
    Failing,
    Join,
    Joined,
    Message,
    Paused,
    Pong,
    RankTaken,
    Report,
)
from ddp_run.supervise.nodes.other_node import OtherNode
from ddp_run.supervise.nodes.reception import Reception
from ddp_run.supervise.nodes.rival import Rival
from ddp_run.supervise.nodes.standstill import Standstill
from ddp_run.tell.verdict_file import keep_report
from ddp_run.values.addresses import is_local
from ddp_run.values.words import named_nodes, node_name

_LAST_WORD_S = 2.0
_ALIVE_S = 2.5 * BEAT_S
"""Who has answered within this time is there."""
_MOST_FOLLOWERS = 64


@final
class Hub:
    """Listens for the other nodes; whoever has not joined is not waited for."""

    def __init__(self, place: Place, ears: Ears) -> None:
        """Raises OSError where the port cannot be had."""
        self._place, self._ears = place, ears
        self._nodes: dict[int, OtherNode] = {}
        self._by_link: dict[Link, OtherNode] = {}
        self._word: Agreed | None = None
        """What was agreed last."""
        self._pings = 0
        self._started = False
        """Ranks of this node have started: all nodes have met."""
        self._began = time.monotonic()
        self._absent = AbsentNodes(place, ears, self._nodes)
        self._ending = Ending(place, ears, self._nodes)
        self._comparison = Comparison(place, ears, self._nodes)
        self._standstill, self._clocks = Standstill(), HostClocks()
        self._reception = Reception(place, ears.loop, self._on_message, self._on_end)
        self._rival = None if is_local(place.address) else Rival(place, ears)
        self._beat()

    # ------------------------------------------------------------------------------- the run's side

    def hear(self, event: Event) -> None:
        """A sink: the first event that means a failure here ends the ranks everywhere."""
        self._started = self._started or isinstance(event, RankStarted)
        if self._rival is not None:
            self._rival.hear(event)
        paused = paused_by(event)
        if paused is not None:
            self._pause(paused)
        if isinstance(event, RanksEnded):
            self._ending.on_good_end(self._place.node_rank)
        agent_needed = not self._ending.all_well
        said = line_of(event, agent_restarts=self._place.agent_restarts, agent_needed=agent_needed)
        if said is not None:
            self._ending.on_failure(self._place.node_rank, self._place.host, said)

    def agree(
        self, attempt: int, verdict: Verdict, ends: Ends, _last_lines: tuple[str, ...], decide: Decide
    ) -> tuple[Verdict, Decision]:
        """The verdict of all who have joined; they have the grace, and a few seconds, to give theirs."""
        place = self._place
        own = NodeReport(place.node_rank, place.host, place.folder, verdict, here=True, ends=ends)
        if verdict.outcome != "succeeded":
            self._ending.on_failure(place.node_rank, place.host, verdict.title or "failed")
        within_s, ending = place.grace_s + VERDICTS_S, self._ending
        until = first_words_until(self._began) if self._started and ending.first is not None else 0.0
        wait(
            self._ears,
            for_whom=lambda: self._without_verdict(until),
            ended=lambda: ending.first is not None,
            at_most_s=within_s,
        )
        others = (node.told(rank, first=rank == ending.first) for rank, node in sorted(self._nodes.items()))
        reports = [own, *others, *self._absent.reports]
        for report in reports[1:]:
            self._ears.emit(reported(now(), report))
        verdict = of_nodes(self._standstill.told_by(reports)) if len(reports) > 1 else alone(verdict)
        if self._standstill.has_cost_nodes:
            self._ears.emit(agreed(now(), verdict, place.host, place.folder))
        verdict = known_differences.noted(verdict, self._comparison.found)
        decision = self._possible(decide(verdict), reports)
        # the whole list of a thousand ranks that followed is here; a thousand times it is 100 MB
        short = replace(verdict, collateral=verdict.collateral[:_MOST_FOLLOWERS])
        self._word = Agreed(attempt, short, decision, place.host, place.folder)
        for node in self._nodes.values():
            node.tell(self._word)
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
        if absent := self._absent.ranks:
            return Decision(False, f"{named_nodes(absent)} did not join: the nodes cannot agree on another attempt")
        return decision

    def _begin_next(self) -> None:
        self._ending.begin_next()
        for node in self._nodes.values():
            node.begin_next()

    def _let_them_hang_up(self) -> None:
        """Who has the last word hangs up; to close before would throw away what is on its way."""
        until = time.monotonic() + _LAST_WORD_S
        while any(node.link.is_open for node in self._nodes.values()) and time.monotonic() < until:
            self._ears.serve(0.02)

    def _without_verdict(self, absent_until: float) -> str:
        """The nodes that are still to give theirs; until then also those that have not joined yet."""
        missing = [rank for rank, node in self._nodes.items() if not node.is_through]
        if time.monotonic() < absent_until:
            missing += self._absent.ranks
        return named_nodes(missing) if missing else ""

    def where(self) -> tuple[str, str] | None:
        """The whole verdict is here."""
        return None

    def close(self) -> None:
        """Node 0 leaves."""
        if self._rival is not None:
            self._rival.close()
        self._absent.close()
        self._ears.loop.cancel_timer(self._beat)
        self._reception.close()
        for node in self._nodes.values():
            node.link.close()

    # ------------------------------------------------------------------------------- the nodes' side

    def _on_message(self, link: Link, message: Message) -> None:
        if isinstance(message, Join):
            self._on_join(link, message)
            return
        found = self._by_link.get(link)
        if found is None:
            return
        match message:
            case Pong():
                found.measure(message)
                self._compare_when_known()
            case Failing(attempt, said) if attempt == self._ending.attempt:
                self._ending.on_failure(found.join.node_rank, found.join.host, said)
            case Paused(on):
                found.paused = on
            case Report(attempt=attempt) if attempt == self._ending.attempt:
                found.report = message
                self._ending.on_last_word(found.join.node_rank)
            case EndedWell(attempt) if attempt == self._ending.attempt:
                self._ending.on_good_end(found.join.node_rank)
            case _:
                pass

    def _on_join(self, link: Link, join: Join) -> None:
        self._reception.let_in(link)
        place = self._place
        if join.nodes != place.nodes or not 0 <= join.node_rank < place.nodes:
            link.close()
            return
        if join.node_rank == place.node_rank:
            if (join.host, join.folder) != (place.host, place.folder):
                self._on_second(link, join, place.host)
            else:  # this node itself, by way of an address that it has outside
                link.send(Joined(place.host))
            return
        node = self._nodes.setdefault(join.node_rank, OtherNode(join, link))
        if (node.join.host, node.join.folder) != (join.host, join.folder):  # another ddp-run says that it is this node
            if node.link.is_open and time.monotonic() - node.link.heard_at < _ALIVE_S:
                self._on_second(link, join, node.join.host)
            else:  # it may come in the place of one that is gone
                link.close()
            return
        if node.link is not link:
            self._by_link.pop(node.link, None)
            node.dialled_anew(link)
        self._by_link[link] = node
        link.send(Joined(place.host))
        node.ping(self._pings)
        if self._word is not None and self._word.attempt == join.attempt:
            node.tell(self._word)
        self._ending.tell(link)
        if self._ending.first is None and not self._absent.ranks:
            self._comparison.all_are_here()
            self._compare_when_known()

    def _on_second(self, link: Link, join: Join, taken_by: str) -> None:
        """The newcomer cannot stay; and where nodes are missing, it is one of them: this job cannot start."""
        link.send(RankTaken(taken_by))
        if self._started or self._ending.first is not None or not self._absent.ranks:
            return
        place, clash = self._place, NodeRankTaken(now(), join.node_rank, taken_by, join.host)
        self._ears.emit(clash)
        self._ending.on_failure(place.node_rank, place.host, clash.said)
        self._ears.end_ranks(self._ending.attempt, PeerFailed(now(), place.node_rank, place.host, clash.said))

    def _compare_when_known(self) -> None:
        """End the job where the nodes differ so that it is not to run."""
        said = self._comparison.make_when_known() if self._ending.first is None else None
        if said is not None:
            place = self._place
            self._ending.on_failure(place.node_rank, place.host, said)
            self._ears.end_ranks(self._ending.attempt, PeerFailed(now(), place.node_rank, place.host, said))

    def _on_end(self, link: Link, _why: str) -> None:
        self._reception.let_in(link)
        node = self._by_link.pop(link, None)
        if node is not None:
            node.hung_up()

    def _beat(self) -> None:
        self._pings += 1
        moment = time.monotonic()
        stood_s = self._standstill.look(moment)
        say_what_happened(self._clocks, self._ears)
        self._wait_for_absent(moment)
        self._compare_when_known()
        self._reception.look(moment)
        again_s = BEAT_S
        for rank, node in self._nodes.items():
            if node.is_through or node.paused:
                continue
            node.link.heard_at = min(node.link.heard_at + stood_s, moment)
            why = node.gone(moment)
            if why is not None:
                self._lose(rank, node, why)
            else:
                node.ping(self._pings)
                again_s = min(again_s, node.link.heard_at + LOST_S - moment)
        self._ears.loop.set_timer(max(again_s, SOON_S), self._beat, lasting=True)

    def _pause(self, on: bool) -> None:
        """This node stops, or goes on: what it did not hear meanwhile is no silence of others."""
        self._standstill = Standstill()
        for node in self._nodes.values():
            node.link.send(Paused(on))
            node.link.heard_at = time.monotonic()

    def _wait_for_absent(self, moment: float) -> None:
        """After the deadline they are not waited for any more."""
        if self._started or self._ending.first is not None or not self._absent.ranks:
            return
        given_up = self._absent.wait(moment)
        if given_up is not None:
            self._ending.on_failure(*given_up)

    def _lose(self, rank: int, node: OtherNode, why: str) -> None:
        node.lost = f"was lost: {why}"
        self._standstill.lost(time.monotonic())
        node.link.close()
        said = f"{node_name(rank, node.join.host)} {node.lost}"
        self._ears.say(said)
        self._ending.on_failure(rank, node.join.host, said)
        self._ending.on_last_word(rank)
