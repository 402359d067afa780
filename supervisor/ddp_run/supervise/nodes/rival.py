"""Another node 0 at the master's address. A node 0 without that address, or without the port there, looks for it.

Behind address translation a host rightly doesn't have it, and any program may hold a port. So node 0 asks the
program that answers there. Only a ddp-run of the same job counts, if it says that it is node 0.
"""

from __future__ import annotations

from typing import final

from ddp_run.record.events import Event, RankStarted
from ddp_run.supervise.nodes.agreement import Ears, Place, end_for_rank
from ddp_run.supervise.nodes.link import Ended, Link, Opened, dial
from ddp_run.supervise.nodes.messages import REDIAL_S, Join, Message, RankTaken


@final
class Rival:
    """Asks until it has an answer, or until ranks have started."""

    def __init__(self, place: Place, ears: Ears) -> None:
        self._place, self._ears = place, ears
        self._link: Link | None = None
        self._ask()

    def hear(self, event: Event) -> None:
        """A sink: when ranks start, the nodes have met."""
        if isinstance(event, RankStarted):
            self.close()

    def close(self) -> None:
        """Stop asking."""
        self._ears.loop.cancel_timer(self._ask)
        if self._link is not None:
            self._link.close()
            self._link = None

    def _ask(self) -> None:
        self.close()
        place = self._place
        where = (place.address, place.port, place.job_key)
        self._link = dial(self._ears.loop, *where, self._hear, unlock=place.munge.open)
        self._ears.loop.set_timer(REDIAL_S, self._ask, lasting=True)

    def _hear(self, link: Link, message: Message | Opened | Ended) -> None:
        place = self._place
        match message:
            case Opened():
                link.send(Join(place.node_rank, place.nodes, place.host, place.folder))
            case Ended():
                pass
            case RankTaken(host):
                self.close()
                end_for_rank(self._ears, place, 0, host)
            case _:  # this node's own answer, through its external address
                self.close()
