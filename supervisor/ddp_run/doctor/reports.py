"""What the doctor's ranks reported: lines of JSON, in a file for each rank. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ddp_run.record.events import NodesCompared
from ddp_run.values.typed_fields import frozen


@frozen
class Launched:
    """How the launch of the ranks ended. `verdict`: the object in verdict.json, if there is one."""

    exit_code: int = 0
    seconds: float = 0.0
    verdict: Mapping[str, Any] | None = None
    folder: str = ""
    said: tuple[str, ...] = ()
    """The launcher's warnings."""
    compared: NodesCompared | None = None
    """How the nodes differ: only node 0 of several nodes knows."""
    refused: str = ""
    """What it printed when it refused to start."""


@frozen
class Reports:
    """How the launch ended, and what the ranks of this node reported."""

    launched: Launched = field(default_factory=Launched)
    by_rank: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def of(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """Yield all reports of a kind, ordered by rank; each names its `rank`."""
        for rank in sorted(self.by_rank):
            yield from (line for line in self.by_rank[rank] if line["report"] == kind)

    def one(self, kind: str) -> Mapping[str, Any] | None:
        """Return the last report of a kind from this node's lowest rank; None if it never got that far."""
        lines = self.by_rank[min(self.by_rank)] if self.by_rank else ()
        return next((line for line in reversed(lines) if line["report"] == kind), None)

    def last_step(self) -> str | None:
        """Return the step of the rank that got least far."""
        steps = [[line["what"] for line in lines if line["report"] == "doing"] for lines in self.by_rank.values()]
        return min(filter(None, steps), key=len, default=[None])[-1]

    def why_not(self) -> str:
        """Return why a check has no report to judge."""
        if self.launched.exit_code:
            return "the ranks did not get that far: see launch"
        return "the ranks did not report it"


def read_lines(text: str, rank: int) -> list[Mapping[str, Any]]:
    """Return the reports in a rank's file; skips a last line without its end, and other text."""
    found: list[Mapping[str, Any]] = []
    for line in text.split("\n")[:-1]:
        try:
            report = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict) and isinstance(report.get("report"), str):
            found.append({**report, "rank": rank})
    return found
