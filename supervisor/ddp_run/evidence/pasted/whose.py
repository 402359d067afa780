"""Finds the rank of an exception in whose lines none is named. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from ddp_run.evidence.pasted.labels import ranks_of
from ddp_run.evidence.pasted.line_prefixes import OF_PROCESS
from ddp_run.evidence.pasted.spoken_text import SpokenText
from ddp_run.evidence.traceback_text import OF_A_RANK
from ddp_run.record.events import ExceptionInfo, Rank

_SPAWNED = re.compile(
    r"(?:-- Process |^\[Rank | due to an error in rank )(?P<rank>\d{1,9})"
    r"(?: terminated with the following error:| Error Snippet\]:|\s*$)"
)
"""Before the traceback of a child of torch.multiprocessing.spawn, or of a worker of Ray Train."""
_RAYS = re.compile(r"\bray::\S{1,200} \(pid=(\d{1,9}), ")
_RAYS_WORKER = re.compile(r"\bpid=(?P<pid>\d{1,9})\) world_rank=(?P<rank>\d{1,9})\b")
_ANNOUNCES = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|[Ee]xception|EXCEPTION)\b")
_SELF = re.compile(
    r"which did not receive grad for rank (\d{1,9})\b|^\[Rank (\d{1,9})\]: |^Rank (\d{1,9}) successfully reached"
)
"""Messages of torch in which a rank names itself (reducer.cpp, ProcessGroupGloo.cpp)."""
_FAILED_ON = re.compile(rf"^CheckpointException ranks:dict_keys\(\[(\d{{1,9}})|{re.escape(OF_A_RANK)}(\d{{1,9}})\)")
"""torch.distributed.checkpoint's, about the rank that failed, in what it raises on all of them."""


class Namer:
    """Says of which rank an exception is, as a parent, torch, a launcher or a logger tells it."""

    def __init__(self, spoken: SpokenText) -> None:
        self._spoken = spoken

    def of(self, start: int, info: ExceptionInfo, shown: str) -> tuple[Rank, ...]:
        """Return its rank; empty if nothing tells it.

        `start`: the exception's first line; `shown`: all that is shown of it, with what was raised from it.
        """
        return self._spawned(start) or named(info) or self._of_process(shown) or self._logged_by(start - 1)

    def _spawned(self, start: int) -> tuple[Rank, ...]:
        """Return the rank of a child whose traceback its parent prints from this line on."""
        for line in self._spoken.lines[max(0, start - 3) : start]:
            hit = _SPAWNED.search(line)
            if hit:
                return (Rank(int(hit["rank"])),)
        return ()

    def _of_process(self, traceback: str) -> tuple[Rank, ...]:
        """Return the rank of Ray's process from which an exception came, if that names itself elsewhere."""
        places = (f"{OF_PROCESS}{pid}" for pid in reversed(_RAYS.findall(traceback)))
        return next((self._processes[place] for place in places if place in self._processes), ())

    @cached_property
    def _processes(self) -> dict[str, tuple[Rank, ...]]:
        """The ranks of places; of Ray's processes, those in its list of them, too."""
        ranks = {each.place: each.ranks for each in self._spoken.by if each.ranks and each.place}
        started = (_RAYS_WORKER.search(line) for line in self._spoken.lines if " world_rank=" in line)
        return ranks | {f"{OF_PROCESS}{hit['pid']}": (Rank(int(hit["rank"])),) for hit in started if hit is not None}

    def _logged_by(self, above: int) -> tuple[Rank, ...]:
        """Return the rank of a logger that announces an exception in the line above it."""
        lines, by = self._spoken.lines, self._spoken.by
        says = above >= 0 and _ANNOUNCES.search(lines[above]) is not None
        return ranks_of(lines[above], by[above]) if says else ()


def named(info: ExceptionInfo, above: Sequence[str] = ()) -> tuple[Rank, ...]:
    """Return the rank named in an exception's text, or in the line above it."""
    told = (_FAILED_ON.search(text) for text in (info.message, *above))
    hit = next(filter(None, told), None) or _SELF.search(info.message)
    return () if hit is None else (Rank(int(hit[hit.lastindex or 1])),)
