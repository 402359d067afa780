"""Memory that is left for the ranks, on the host and in its control group."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.observe.memory import host_memory, own_cgroup
from ddp_run.values.finding import Finding, failed, skipped, warned
from ddp_run.values.words import size_in_words

_LEAST_RANK = 256 << 20
"""A rank that has only imported torch (CPU build) holds about this much."""
_USUAL_RANK = 2 << 30
"""With CUDA, its libraries and a small model."""


def _look(around: Surroundings) -> Iterator[Finding]:
    available, total = host_memory()
    if available is None or total is None:
        yield skipped("memory", "/proc/meminfo cannot be read")
    else:
        yield judged("memory", available, total, around.ranks)
    tightest = (cgroup.tightest() if (cgroup := own_cgroup()) is not None else None) or (0, None)
    if tightest[1] is not None:
        yield judged("control group's memory", tightest[1] - tightest[0], tightest[1], around.ranks)


def judged(what: str, free: int, total: int, ranks: int) -> Finding:
    """Bytes that are left, against so many ranks."""
    value = f"{size_in_words(max(0, free))} free of {size_in_words(total)}"
    if free < _LEAST_RANK * ranks:
        against = f"{size_in_words(_LEAST_RANK)} for each of {ranks} ranks is what importing torch takes"
        return failed(what, value, against, "ps -eo rss,pid,user,args --sort=-rss | head   # who holds it")
    if free < _USUAL_RANK * ranks:
        against = f"{size_in_words(_USUAL_RANK)} for each of {ranks} ranks is usual"
        return warned(what, value, against, "fewer ranks or DataLoader workers, or a larger limit (--memory, --mem)")
    return Finding(what, value)


CHECK = Check(
    "host_memory",
    Group.MEMORY,
    "Free memory of the host and of the control group; warns below 2 GiB a rank, fails below 256 MiB a rank.",
    _look,
    place=1,
)
