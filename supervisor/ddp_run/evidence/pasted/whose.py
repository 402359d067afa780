"""Finds the rank of an exception in whose lines none is named. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def of(spoken: SpokenText, start: int, info: ExceptionInfo, shown: str) -> tuple[Rank, ...]:
    """Return it as a parent, a launcher, torch or a logger says it; empty if none does.

    `start`: the exception's first line; `shown`: all that is shown of it, with what was raised from it.
    """
    return _spawned(spoken.lines, start) or named(info) or _of_process(spoken, shown) or _logged_by(spoken, start - 1)


def _spawned(lines: Sequence[str], start: int) -> tuple[Rank, ...]:
    """Return the rank of a child whose traceback its parent prints from this line on."""
    for line in lines[max(0, start - 3) : start]:
        hit = _SPAWNED.search(line)
        if hit:
            return (Rank(int(hit["rank"])),)
    return ()


def _of_process(spoken: SpokenText, traceback: str) -> tuple[Rank, ...]:
    """Return the rank of Ray's process from which an exception came, if that names itself elsewhere."""
    pids = _RAYS.findall(traceback)[::-1]
    ranks = {each.place: each.ranks for each in spoken.by if each.ranks and each.place} if pids else {}
    started = (_RAYS_WORKER.search(line) for line in spoken.lines if pids and " world_rank=" in line)
    ranks |= {f"{OF_PROCESS}{hit['pid']}": (Rank(int(hit["rank"])),) for hit in started if hit is not None}
    return next((known for pid in pids if (known := ranks.get(f"{OF_PROCESS}{pid}"))), ())


def _logged_by(spoken: SpokenText, above: int) -> tuple[Rank, ...]:
    """Return the rank of a logger that announces an exception in the line above it."""
    says = above >= 0 and _ANNOUNCES.search(spoken.lines[above]) is not None
    return ranks_of(spoken.lines[above], spoken.by[above]) if says else ()


def named(info: ExceptionInfo, above: Sequence[str] = ()) -> tuple[Rank, ...]:
    """Return the rank named in an exception's text, or in the line above it."""
    told = (_FAILED_ON.search(text) for text in (info.message, *above))
    hit = next(filter(None, told), None) or _SELF.search(info.message)
    return () if hit is None else (Rank(int(hit[hit.lastindex or 1])),)
