"""Another node 0, at the master's address: for a node 0 that does not have that address, or not the port there.

Behind address translation a host rightly does not have it, and any program may hold a port. So whoever answers there is
asked, and only a ddp-run of the same job that says that it is node 0 counts.
"""

from __future__ import annotations

import socket
from typing import final

from ddp_run.judge import retry
from ddp_run.judge.of_nodes import Ends, alone
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import Event, RankStarted
from ddp_run.supervise.nodes.agreement import REDIAL_S, Decide, Ears, Place, end_for_rank
from ddp_run.supervise.nodes.dial import Dial
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import Join, Message, RankTaken


@final
class Rival:
    """Asks until somebody has answered, or ranks have started. As an agreement: this node judges for itself."""

    def __init__(self, place: Place, ears: Ears) -> None:
        self._place, self._ears = place, ears
        self._dialling: Dial | None = None
        self._link: Link | None = None
        self._ask()

    def hear(self, event: Event) -> None:
        """A sink: where ranks start, the nodes have met."""
        if isinstance(event, RankStarted):
            self.close()

    def agree(
        self, _attempt: int, verdict: Verdict, _ends: Ends, _last_lines: tuple[str, ...], decide: Decide
    ) -> tuple[Verdict, Decision]:
        """This node's own, and no other attempt."""
        decision = decide(verdict)
        return alone(verdict), retry.ALONE if decision.retry else decision

    def where(self) -> tuple[str, str] | None:
        """The whole verdict is here."""
        return None

    def close(self) -> None:
        """Ask no more."""
        self._ears.loop.cancel_timer(self._ask)
        for each in (self._dialling, self._link):
            if each is not None:
                each.close()
        self._dialling = self._link = None

    def _ask(self) -> None:
        self.close()
        place = self._place
        self._dialling = Dial(self._ears.loop, place.address, place.port, self._dialled)
        self._ears.loop.set_timer(REDIAL_S, self._ask, lasting=True)

    def _dialled(self, connected: socket.socket | None, _code: int) -> None:
        self._dialling = None
        if connected is not None:
            self._link = Link(
                self._ears.loop,
                connected,
                self._place.job_key,
                is_server=False,
                on_open=self._introduce,
                on_message=self._on_answer,
                on_end=lambda _link, _why: None,
            )

    def _introduce(self, link: Link) -> None:
        place = self._place
        link.send(Join(place.node_rank, place.nodes, place.host, place.folder))

    def _on_answer(self, _link: Link, message: Message) -> None:
        """Any other answer is this node's own, by way of the address that it has outside."""
        self.close()
        if isinstance(message, RankTaken):
            end_for_rank(self._ears, self._place, 0, message.host)
