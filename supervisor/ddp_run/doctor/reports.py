"""What the ranks that the doctor starts have reported: lines of JSON in a file per rank. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.record.events import NodesCompared
from ddp_run.values.typed_fields import frozen


@frozen
class Launched:
    """How the launch of the ranks ended. `verdict`: verdict.json's object; null where there is none."""

    exit_code: int
    seconds: float
    verdict: Mapping[str, Any] | None
    folder: str
    said: tuple[str, ...] = ()
    """What the launcher warned of."""
    compared: NodesCompared | None = None
    """How the nodes differ, on node 0 of several."""
    refused: str = ""
    """What it wrote when it refused to start."""


@frozen
class Reports:
    """The lines of this node's ranks, by rank, and the end of their launch."""

    launched: Launched
    by_rank: Mapping[int, Sequence[Mapping[str, Any]]]

    def of(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """All reports of a kind, by rank; each has `rank`."""
        for rank in sorted(self.by_rank):
            yield from (line for line in self.by_rank[rank] if line.get("report") == kind)

    def one(self, kind: str) -> Mapping[str, Any] | None:
        """What this node's lowest rank reported last; null where it never came to it."""
        found = list(self.by_rank[min(self.by_rank)]) if self.by_rank else []
        return next((line for line in reversed(found) if line.get("report") == kind), None)

    def last_step(self) -> str | None:
        """What the rank that came least far was doing."""
        steps = [[line["what"] for line in lines if line.get("report") == "doing"] for lines in self.by_rank.values()]
        return min(filter(None, steps), key=len, default=[None])[-1]

    def why_not(self) -> str:
        """For checks whose reports never came."""
        if self.launched.exit_code:
            return "the ranks did not come that far: see launch"
        return "the ranks did not report it"


def read_lines(text: str, rank: int) -> list[Mapping[str, Any]]:
    """The whole lines of one rank's file; a line that is no report is left out."""
    found: list[Mapping[str, Any]] = []
    for line in text.split("\n")[:-1]:
        try:
            report = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict) and isinstance(report.get("report"), str):
            found.append({**report, "rank": rank})
    return found
