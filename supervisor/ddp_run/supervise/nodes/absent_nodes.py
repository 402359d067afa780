"""Nodes that have not joined: named every few seconds, and for how long they are waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import final

from ddp_run.judge.of_nodes import NodeReport
from ddp_run.supervise.nodes.agreement import WAITING_S, Ears, Place
from ddp_run.supervise.nodes.host_names import HostNames
from ddp_run.supervise.nodes.other_node import OtherNode
from ddp_run.supervise.nodes.reach import if_this_host


@final
class AbsentNodes:
    """Of a job with `others` here, by node rank, which grows."""

    def __init__(self, place: Place, ears: Ears, others: Mapping[int, OtherNode]) -> None:
        self._place, self._ears, self._others = place, ears, others
        self._hosts = HostNames(place.host_names, place.nodes, ears.loop, ears.helpers)
        self._began = time.monotonic()
        self._waits_said = 0
        self._gave_up = False
        """They did not join in time."""

    @property
    def ranks(self) -> list[int]:
        """Their node ranks."""
        return [rank for rank in range(1, self._place.nodes) if rank not in self._others]

    @property
    def reports(self) -> list[NodeReport]:
        """That they did not come, where they are not waited for any more."""
        ranks = self.ranks if self._gave_up else []
        return [NodeReport(rank, self._hosts.of(rank), "", None, self._did_not_join) for rank in ranks]

    def wait(self, moment: float) -> tuple[int, str, str] | None:
        """Say who is not here, every few seconds; after the deadline: the first one, its host, and what is said."""
        missing, for_s = self.ranks, moment - self._began
        if for_s > self._place.join_s:
            self._gave_up = True
            said = f"{self._hosts.named(missing)} {self._did_not_join}"
            self._ears.say(said)
            return missing[0], self._hosts.of(missing[0]), said
        if for_s > WAITING_S / 2:
            self._hosts.ask()  # they are known when they are to be named
        if for_s > WAITING_S * (self._waits_said + 1):
            self._waits_said += 1
            here = ", ".join(f"{rank} ({node.join.host})" for rank, node in sorted(self._others.items())) or "none"
            names = f"{self._hosts.named(missing)} of {self._place.nodes}"
            line = f"waiting for {names} for {for_s:.0f} s; other nodes here: {here}"
            self._ears.say(line + if_this_host(self._place.address))
        return None

    def close(self) -> None:
        """Nobody will ask."""
        self._hosts.close()

    @property
    def _did_not_join(self) -> str:
        return f"did not join within {self._place.join_s:g} s"
