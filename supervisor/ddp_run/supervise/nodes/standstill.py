"""Whether this ddp-run itself did not run for a while: then others are gone because they took it for lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from ddp_run.judge.of_nodes import NodeReport
from ddp_run.supervise.nodes.agreement import BEAT_S, LOST_S, SILENT_S


@final
@dataclass(slots=True)
class Standstill:
    """The last one: stopped by a signal, with its container, or starved of CPU. Ctrl-Z is none, as others are told."""

    _looked_at: float = field(default_factory=time.monotonic)
    _seconds: float = 0.0
    _ended_at: float = 0.0
    has_cost_nodes: bool = False
    """Others were lost right after one that was too long for them."""

    def look(self, moment: float) -> float:
        """To be asked with each beat: for how many seconds nothing was heard because nobody listened."""
        by_s, self._looked_at = moment - self._looked_at, moment
        if by_s < SILENT_S:
            return 0.0
        self._seconds, self._ended_at = by_s, moment
        return by_s

    def lost(self, moment: float) -> None:
        """Another node is lost."""
        too_long = self._seconds >= LOST_S - BEAT_S
        self.has_cost_nodes = self.has_cost_nodes or (too_long and moment - self._ended_at <= LOST_S + BEAT_S)

    def told_by(self, reports: Sequence[NodeReport]) -> list[NodeReport]:
        """What the nodes said, where those that are gone did not wait for this one, the first of them."""
        if not self.has_cost_nodes:
            return list(reports)
        how = f"stood still for {self._seconds:.0f} s, stopped or starved of CPU: other nodes took it for lost"
        return [replace(reports[0], lost=how), *(report for report in reports[1:] if report.lost is None)]
