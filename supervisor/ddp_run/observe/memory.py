"""Memory of the host, of this process's memory cgroup and of processes, and out-of-memory kills, from the kernel.

Sources: /proc/vmstat `oom_kill` (Linux 4.13); cgroup v2 `memory.events`, `memory.max`, `memory.current`; cgroup v1
`memory.oom_control`, `memory.limit_in_bytes`, `memory.usage_in_bytes`; /proc/PID/statm. Unreadable values are None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ddp_run.observe.mounts import Mount, mounts
from ddp_run.record.events import MemorySampled, MonotonicNs, Rank
from ddp_run.values import kernel_text
from ddp_run.values.process_table import below

SHM = "/dev/shm"  # noqa: S108  # not a temporary file: where shared memory lies
_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGESIZE")

FIRST_LOOK_S = 0.25
LOOK_S = 5.0
"""Between two looks at the ranks' memory: short at first, when it grows fastest."""
_CHANGE = 0.1
_SMALL = 64 << 20
"""Changes below this many bytes are not worth a line."""
_AT_LEAST_EVERY_NS = 60_000_000_000
_MOST_SAMPLES = 2000
"""Per attempt, in the journal. The last sample before a death is written in any case."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A memory cgroup. `folders`: its own, then those of its visible ancestors."""

    version: int
    folders: tuple[Path, ...]

    def oom_kills(self) -> int | None:
        """Number of its processes that the kernel's out-of-memory killer has ended.

        v2 includes its descendants, v1 doesn't.
        """
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _counter(self.folders[0] / name, "oom_kill")

    def tightest(self) -> tuple[int, int] | None:
        """(bytes used, limit) of the cgroup, itself or an ancestor, with the least left; None without a limit."""
        used, limit = ("current", "max") if self.version == 2 else ("usage_in_bytes", "limit_in_bytes")
        found = []
        for folder in self.folders:
            at_most = _number(folder / f"memory.{limit}")
            # v1 has no word for "none": it shows the largest multiple of a page
            if at_most is None or at_most >= 1 << 60:
                continue
            taken = _number(folder / f"memory.{used}")
            if taken is not None:
                found.append((taken, at_most))
        return min(found, key=lambda pair: pair[1] - pair[0], default=None)


def own_cgroup(proc: Path = _PROC) -> Cgroup | None:
    """This process's memory cgroup: in v1's hierarchy if the memory controller is there, else in v2's."""
    paths: dict[int, str] = {}
    for entry in kernel_text.lines(proc / "self/cgroup"):
        number, _, rest = entry.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths[1] = path
        elif number == "0" and not controllers:
            paths[2] = path
    for version, kind in ((1, "cgroup"), (2, "cgroup2")):
        if version in paths:
            found = [mount for mount in mounts(proc / "self") if mount.kind == kind]
            if version == 1:
                found = [mount for mount in found if "memory" in mount.options.split(",")]
            folders = _folders(paths[version], found)
            return Cgroup(version, folders) if folders else None
    return None


def count_oom_kills() -> tuple[int | None, int | None]:
    """Out-of-memory kills: (on the host since boot, in our cgroup since it was created)."""
    cgroup = own_cgroup()
    return _counter(_PROC / "vmstat", "oom_kill"), cgroup.oom_kills() if cgroup else None


def _folders(path: str, hierarchies: Sequence[Mount]) -> tuple[Path, ...]:
    """The cgroup's folder and its ancestors' up to the mount. A container may have mounted only its own part."""
    for root, point in ((mount.root, Path(mount.point)) for mount in hierarchies):
        if root in ("/", path) or path.startswith(root + "/"):
            within = path if root == "/" else path[len(root) :]
            if ".." in within.split("/"):  # outside what our cgroup namespace shows
                continue
            folder = point / within.strip("/")
            return (folder, *(parent for parent in folder.parents if parent == point or point in parent.parents))
    return ()


@final
class Sampler:
    """Looks at the ranks' memory and returns the samples that are worth a line in the journal."""

    def __init__(self, proc: Path = _PROC) -> None:
        self.proc = proc
        self._cgroup = own_cgroup(proc)
        # Unlike others, a tmpfs can be asked for its space without waiting for another machine.
        self._shm = [mount.kind for mount in mounts(proc / "self") if mount.point == SHM][-1:] == ["tmpfs"]
        self._written: MemorySampled | None = None
        self._latest: MemorySampled | None = None
        self._lines = 0

    def look(self, at: MonotonicNs, pids: Mapping[Rank, int]) -> MemorySampled | None:
        """A sample, if it differs enough from the last one that was returned."""
        sample = self._latest = self._sample(at, pids)
        if self._written is not None and not _differs(self._written, sample):
            return None
        if self._lines >= _MOST_SAMPLES:
            return None
        self._lines += 1
        self._written = sample
        return sample

    def at_death(self, at: MonotonicNs, pids: Mapping[Rank, int]) -> list[MemorySampled]:
        """The last look, if it was not returned yet, and one from now: a dead rank has no memory left to measure."""
        held = [self._latest] if self._latest is not None and self._latest is not self._written else []
        self._written = self._latest = self._sample(at, pids)
        return [*held, self._written]

    def _sample(self, at: MonotonicNs, pids: Mapping[Rank, int]) -> MemorySampled:
        own = {rank: _resident(self.proc, pid) for rank, pid in pids.items()}
        ranks = tuple(rank for rank, size in own.items() if size)
        available, total = host_memory(self.proc)
        used, limit = (self._cgroup.tightest() if self._cgroup else None) or (None, None)
        shm_free, shm_total = _shm_space() if self._shm else (None, None)
        return MemorySampled(
            at=at,
            ranks=ranks,
            own=tuple(own[rank] for rank in ranks),
            children=tuple(sum(_resident(self.proc, pid) for pid in below(pids[rank]) or ()) for rank in ranks),
            available=available,
            total=total,
            cgroup_used=used,
            cgroup_limit=limit,
            shm_free=shm_free,
            shm_total=shm_total,
        )


def _differs(old: MemorySampled, new: MemorySampled) -> bool:
    # few samples if little changes: a run of weeks must not fill a disk
    if new.at - old.at >= _AT_LEAST_EVERY_NS:
        return True
    if old.ranks != new.ranks:
        return True
    pairs = [*zip(old.own, new.own, strict=True), *zip(old.children, new.children, strict=True)]
    pairs.append((old.available or 0, new.available or 0))
    pairs.append((old.shm_free or 0, new.shm_free or 0))
    return any(abs(one - other) > max(_SMALL, _CHANGE * one) for one, other in pairs)


def _resident(proc: Path, pid: int) -> int:
    """Resident memory in bytes; 0 for a process that is gone or a zombie. Source: proc(5), statm, second field."""
    pages = kernel_text.read(proc / str(pid) / "statm").split()
    return int(pages[1]) * _PAGE if pages else 0


def host_memory(proc: Path = _PROC) -> tuple[int | None, int | None]:
    """The host's (available, total) memory in bytes."""
    text = kernel_text.read(proc / "meminfo")
    found = {name: int(size) << 10 for name, size in re.findall(r"^(MemAvailable|MemTotal):\s*(\d+) kB", text, re.M)}
    return found.get("MemAvailable"), found.get("MemTotal")


def _shm_space() -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None, None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _number(path: Path) -> int | None:
    text = kernel_text.read(path).strip()
    return int(text) if text.isdigit() else None


def _counter(path: Path, name: str) -> int | None:
    found = dict(line.split(" ", 1) for line in kernel_text.lines(path) if " " in line)
    value = found.get(name, "").strip()
    return int(value) if value.isdigit() else None
