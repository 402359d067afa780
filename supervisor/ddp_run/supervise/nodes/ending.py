"""How an attempt ends on all nodes, as node 0 knows it; who must know of that is told, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from ddp_run.record.events import AllRanksEnded, PeerFailed
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.agreement import Ears, Place
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import End, EndedWell
from ddp_run.supervise.nodes.other_node import OtherNode


@final
class Ending:
    """Of the attempt that runs, or of the next one where something ends the job before that.

    `others`, by node rank, grows.
    """

    def __init__(self, place: Place, ears: Ears, others: Mapping[int, OtherNode]) -> None:
        self._place, self._ears, self._others = place, ears, others
        self.attempt = 0
        self._forget()

    def _forget(self) -> None:
        self.first: int | None = None
        """The node that said first that it fails: all were told to end."""
        self.all_well = False
        """All ranks of all nodes have ended well, and these know it."""
        self._well: set[int] = set()
        """Nodes all of whose ranks have ended well."""
        self._through: set[int] = set()
        """Other nodes that have reported, so that nothing of the attempt is left there; or are lost."""
        self._agent_was_let_go = False

    def begin_next(self) -> None:
        """Another attempt."""
        self.attempt += 1
        self._forget()

    def on_failure(self, node_rank: int, host: str, said: str) -> None:
        """A node fails, or is lost: the first one ends the ranks everywhere."""
        if self.first is None:
            self.first = node_rank
            for node in self._others.values():
                node.link.send(End(self.attempt, node_rank, host, said))
            if node_rank != self._place.node_rank:
                self._ears.end_ranks(self.attempt, PeerFailed(now(), node_rank, host, said))
        self._look()

    def on_good_end(self, node_rank: int) -> None:
        """All ranks of a node have ended well."""
        self._well.add(node_rank)
        self._look()

    def on_last_word(self, node_rank: int) -> None:
        """Another node has reported, or nothing will be heard of it any more."""
        self._through.add(node_rank)
        self._look()

    def tell(self, link: Link) -> None:
        """A node that comes, or comes back, hears what all were told."""
        place = self._place
        if self.all_well:
            link.send(EndedWell(self.attempt))
        if self.first is not None:
            link.send(End(self.attempt, place.node_rank, place.host, "the job is ending"))

    def _look(self) -> None:
        if self.first is None and len(self._well) == self._place.nodes and not self.all_well:
            self.all_well = True  # no agent is needed then
            for node in self._others.values():
                node.link.send(EndedWell(self.attempt))
        if len(self._through) == self._place.nodes - 1 and (self.all_well or self.first is not None):
            self._let_agent_go(well=self.first is None)

    def _let_agent_go(self, *, well: bool) -> None:
        """The one here goes last: ranks and agents of the others may be talking to its store."""
        if not self._agent_was_let_go:
            self._agent_was_let_go = True
            self._ears.end_ranks(self.attempt, AllRanksEnded(now(), well))
