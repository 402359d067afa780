"""Looks at all nodes' parts of one job whose folders are in one place, as on a shared file system."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import final

from ddp_run.commands.watch.look import BEHIND, Watched
from ddp_run.record.recorded_runs import RecordedRun, by_job, recorded_runs
from ddp_run.tell.snapshot import RankRow, Slowest, Snapshot

_LOOK_FOR_NODES_S = 10.0
_MOST_HOSTS = 4


@final
class WatchedJob:
    """A run, and the parts of it that other nodes record beside it, as they come. Raises OSError like `Watched`."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._parts: dict[Path, Watched] = {run.folder: Watched(run)}
        self._looked_at = float("-inf")

    def close(self) -> None:
        """Close its files."""
        for part in self._parts.values():
            part.close()

    @property
    def over(self) -> bool:
        """Whether the given node's part had ended at the last look."""
        return self._parts[self._run.folder].over

    def look(self) -> Snapshot:
        """The job now. Raises OSError if a journal can't be read any longer."""
        self._look_for_nodes()
        own, others = self._parts[self._run.folder].look(), list[Snapshot]()
        for folder, part in self._parts.items():
            with suppress(OSError):  # a node's disk may be gone
                others += [part.look()] if folder != self._run.folder else []
        return joined(own, others) if others else own

    def _look_for_nodes(self) -> None:
        nodes = self._run.started.nodes if self._run.started is not None else 1
        if len(self._parts) >= nodes or time.monotonic() - self._looked_at < _LOOK_FOR_NODES_S:
            return
        self._looked_at = time.monotonic()
        with suppress(OSError):
            for job in by_job(recorded_runs(self._run.folder.parent)):
                if any(run.folder == self._run.folder for run in job):
                    self._parts |= {run.folder: Watched(run) for run in job if run.folder not in self._parts}


def joined(own: Snapshot, others: Sequence[Snapshot]) -> Snapshot:
    """One snapshot: of the given node, with the ranks of all. What waits for whom is as the node says that knows."""
    every = (own, *others)
    rows = sorted((row for each in every for row in each.ranks), key=lambda row: row.ranks)
    first = max((row.step for row in rows if row.step is not None), default=0)
    ranks = tuple(replace(row, behind=None if row.behind is None else first - (row.step or 0)) for row in rows)
    rates = [each.steps_per_s for each in every if each.steps_per_s is not None]
    notes = dict.fromkeys(each.note for each in every if each.note is not None)
    hosts = dict.fromkeys(each.host for each in every if each.host is not None)
    told = {each.line: each for one in every for each in one.told}
    return replace(
        own,
        host=", ".join(hosts) if len(hosts) <= _MOST_HOSTS else f"{len(hosts)} hosts",
        steps_per_s=min(rates, default=None),
        slowest=_slowest(every, ranks),
        progress=next((each.progress for each in every if each.progress is not None), None),
        ranks=ranks,
        told=tuple(sorted(told.values(), key=lambda each: -each.ago_s)),
        note="; ".join(notes) or None,
        stalls=max(each.stalls for each in every),
        stalled_s=max((each.stalled_s for each in every if each.stalled_s is not None), default=None),
    )


def _slowest(every: Sequence[Snapshot], ranks: Sequence[RankRow]) -> Slowest | None:
    said = [each.slowest for each in every if each.slowest is not None]
    waited_for = [each for each in said if not each.why.endswith("steps behind")]
    if waited_for:
        return waited_for[0]
    last = max(ranks, key=lambda row: row.behind or 0, default=None)
    if last is None or (last.behind or 0) < BEHIND:
        return None
    return Slowest(last.ranks[0], f"{last.behind} steps behind")
