"""Extracts memory, space and GPUs around an attempt's deaths, and core dumps, from its events. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ddp_run.evidence.rank_ends import RankEnds
from ddp_run.evidence.resources import Gpu, GpuHolder, GpuLook, MemoryTrend, MemoryUse
from ddp_run.record.attempt_events import AttemptEvents
from ddp_run.record.events import (
    CoreDumped,
    GpuSampled,
    MemoryCounted,
    MemorySampled,
    MonotonicNs,
    RankStarted,
    SpaceCounted,
)

_SHM = "/dev/shm"  # noqa: S108 # not a temporary file: the location of shared memory
_ABOUT_NS = 10_000_000_000
"""The interval of two memory samples."""


def oom_kills(part: AttemptEvents) -> tuple[int | None, int | None]:
    """Return the kernel's out-of-memory kills between the first and the last count: on the host, in our cgroup."""
    counts = [*part.of(MemoryCounted)]
    if len(counts) == 1 and part.counted_before is not None:
        counts.insert(0, part.counted_before)
    if len(counts) < 2:
        return None, None
    first, last = counts[0], counts[-1]
    return _delta(first.host_oom_kills, last.host_oom_kills), _delta(first.cgroup_oom_kills, last.cgroup_oom_kills)


def space(part: AttemptEvents, restart: int) -> tuple[SpaceCounted, ...]:
    """Return the free space when the first rank of this start failed; for shared memory, the minimum around that time.

    Shared memory is returned as its users end, so the sample before the death can show more than the one after it.
    """
    began = min((e.at for e in part.of(RankStarted) if e.restart == restart), default=0)
    found = {e.path: e for e in part.of(SpaceCounted) if e.at >= began and e.total > 0}
    shared = found.get(_SHM)
    if shared is not None:
        near = (e.shm_free for e in part.of(MemorySampled) if abs(shared.at - e.at) <= _ABOUT_NS)
        found[_SHM] = replace(shared, free=min([shared.free, *(free for free in near if free is not None)]))
    return tuple(found.values())


def memory(part: AttemptEvents, start: RankStarted, ended_at: MonotonicNs | None) -> MemoryTrend | None:
    """Return the memory history of a rank and its children, up to its end; None if there are no samples."""
    looks = [
        look for look in part.of(MemorySampled) if look.at >= start.at and (ended_at is None or look.at <= ended_at)
    ]
    looks.sort(key=lambda look: look.at)
    first, last = (next((look for look in way if start.rank in look.ranks), None) for way in (looks, reversed(looks)))
    if first is None or last is None:
        return None
    limit = last.total if last.cgroup_limit is None else last.cgroup_limit
    first_use, last_use = _use(first, start), _use(last, start)
    return MemoryTrend(first_use, last_use, limit, ended_at=ended_at, cgroup=last.cgroup_limit is not None)


def _use(look: MemorySampled, start: RankStarted) -> MemoryUse:
    index = look.ranks.index(start.rank)
    return MemoryUse(look.at, look.own[index], look.children[index], look.available)


def gpus(part: AttemptEvents, start: RankStarted, ends: RankEnds) -> GpuLook | None:
    """Return the last sample that shows the rank's own memory, else the last one while it was alive."""
    failed, exited = ends.failed.get(start.rank), ends.exited.get(start.rank)
    stamps = [event.at for event in (failed, exited) if event is not None]
    looks = [look for look in part.of(GpuSampled) if look.at >= start.at and (exited is None or look.at <= exited.at)]
    looks.sort(key=lambda look: look.at)
    if not looks:
        return None
    look = next((look for look in reversed(looks) if start.rank in look.members), looks[-1])
    order = look.visible[look.ranks.index(start.rank)] if start.rank in look.ranks else None
    ended_at = min(stamps, default=None)
    return GpuLook(look.at, tuple(map(partial(_gpu, look), range(len(look.gpus)))), order, look.own_pids, ended_at)


def _gpu(look: GpuSampled, index: int) -> Gpu:
    number = look.gpus[index]
    processes = zip(look.pids, look.on, look.held, look.members, look.names, strict=True)
    holders = [GpuHolder(pid, held, member, name) for pid, on, held, member, name in processes if on == number]
    holders.sort(key=lambda holder: -(holder.held or 0))
    return Gpu(number, look.uuids[index], look.free[index], look.total[index], tuple(holders))


def core(part: AttemptEvents, start: RankStarted) -> str | None:
    """Return where the kernel put the rank's core: a path, or the pattern that sends it to a program ("|…") or
    socket."""
    own = [e for e in part.of(CoreDumped) if (e.rank, e.restart) == (start.rank, start.restart)]
    dumped = next((e for e in own if e.at >= start.at), None)
    if dumped is None:
        return None
    handed_on = dumped.pattern if dumped.pattern and dumped.pattern.startswith(("|", "@")) else None
    return dumped.path or handed_on


def _delta(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
