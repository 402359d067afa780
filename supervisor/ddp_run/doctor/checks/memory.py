"""Memory and limits: what's left for the ranks, what they inherit from this shell, and /dev/shm."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Group, Surroundings, check
from ddp_run.doctor.findings import Finding, failed, skipped, warned
from ddp_run.observe import memory
from ddp_run.values.words import size_in_words

_LEAST_RANK = 256 << 20
"""Bytes that a rank holds once it has imported torch (CPU build)."""
_USUAL_RANK = 2 << 30
"""Bytes with CUDA, its libraries and a small model."""


@check(Group.MEMORY, "free memory")
def host_memory(around: Surroundings) -> Iterator[Finding]:
    """Free memory of the host and of the control group; warns below 2 GiB a rank, fails below 256 MiB a rank."""
    available, total = memory.host_memory()
    if available is None or total is None:
        yield skipped("memory", "/proc/meminfo cannot be read")
    else:
        yield memory_left("memory", available, total, around.ranks)
    cgroup = memory.own_cgroup()
    if cgroup is not None and (tightest := cgroup.tightest()) is not None:
        used, limit = tightest
        yield memory_left("control group's memory", limit - used, limit, around.ranks)


def memory_left(what: str, free: int, total: int, ranks: int) -> Finding:
    """Judge the free bytes against the number of ranks."""
    value = f"{size_in_words(max(0, free))} free of {size_in_words(total)}"
    if free < _LEAST_RANK * ranks:
        against = f"importing torch takes {size_in_words(_LEAST_RANK)} for each of {ranks} ranks"
        return failed(what, value, against, "ps -eo rss,pid,user,args --sort=-rss | head   # the largest processes")
    if free < _USUAL_RANK * ranks:
        against = f"{size_in_words(_USUAL_RANK)} for each of {ranks} ranks is usual"
        return warned(what, value, against, "fewer ranks or DataLoader workers, or a larger limit (--memory, --mem)")
    return Finding(what, value)


_FILES_WANTED, _FILES_NEEDED = 4096, 128
_TASKS_WANTED, _TASKS_NEEDED = 256, 32
"""Threads and processes of one rank: torch's, those of libraries, DataLoader workers; then the very least."""
_RDMA = Path("/sys/class/infiniband")


@check(Group.MEMORY, "limits of this shell")
def limits(around: Surroundings) -> Iterator[Finding]:
    """`ulimit -n` (warns below 4096); `ulimit -u` and the control group's `pids.max` (warns below 256 a rank);
    `ulimit -v` (warns if limited); `ulimit -l` (warns if limited and there is InfiniBand)."""
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield tasks("processes (ulimit -u)", _soft(resource.RLIMIT_NPROC), 0, around.ranks, "ulimit -u unlimited")
    if (of_group := _pids()) is not None:
        yield tasks("control group's processes", *of_group, around.ranks, "docker run --pids-limit=-1")
    yield address_space(_soft(resource.RLIMIT_AS))
    yield locked_memory(_soft(resource.RLIMIT_MEMLOCK), has_rdma=_RDMA.is_dir() and any(_RDMA.iterdir()))


def _soft(which: int) -> int:
    return resource.getrlimit(which)[0]


def open_files(soft: int, hard: int) -> Finding:
    """Judge RLIMIT_NOFILE: each DataLoader worker, peer and mapped file takes some."""
    name = "open files (ulimit -n)"
    if soft == resource.RLIM_INFINITY:
        return Finding(name, "unlimited")
    if soft < _FILES_WANTED:
        most = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        admin = "raise nofile in /etc/security/limits.conf; docker run --ulimit nofile=65536"
        helps = f"ulimit -n {most}" if most >= _FILES_WANTED else admin
        against = f"below {_FILES_WANTED}, DataLoader workers and many peers end with 'Too many open files'"
        return (failed if soft < _FILES_NEEDED else warned)(name, str(soft), against, helps)
    return Finding(name, str(soft))


def tasks(name: str, limit: int, taken: int, ranks: int, helps: str) -> Finding:
    """Judge how many processes and threads may be started, against the number of ranks."""
    if limit == resource.RLIM_INFINITY:
        return Finding(name, "unlimited")
    value = f"{limit} ({taken} in use)" if taken else str(limit)
    if limit - taken < _TASKS_NEEDED * ranks:
        against = f"{ranks} ranks need {_TASKS_NEEDED} each: they cannot start their threads"
        return failed(name, value, against, helps)
    if limit - taken < _TASKS_WANTED * ranks:
        return warned(name, value, f"{_TASKS_WANTED} for each of {ranks} ranks is usual", helps)
    return Finding(name, value)


def address_space(soft: int) -> Finding:
    """Judge RLIMIT_AS: CUDA maps all memory of the host and its GPUs into each rank, far more than it uses."""
    name = "address space (ulimit -v)"
    if soft == resource.RLIM_INFINITY:
        return Finding(name, "unlimited")
    against = "limited: CUDA reserves far more than it uses, and libraries may fail to load"
    return warned(name, size_in_words(soft), against, "ulimit -v unlimited")


def locked_memory(soft: int, *, has_rdma: bool) -> Finding:
    """Judge RLIMIT_MEMLOCK: RDMA locks its buffers in memory."""
    name = "locked memory (ulimit -l)"
    if soft == resource.RLIM_INFINITY:
        return Finding(name, "unlimited")
    if not has_rdma:
        return Finding(name, size_in_words(soft), against="matters only with InfiniBand or RoCE, which this host lacks")
    against = "limited, but NCCL needs it unlimited for InfiniBand and RoCE"
    helps = "ulimit -l unlimited   # docker run --ulimit memlock=-1; SLURM: PropagateResourceLimitsExcept=MEMLOCK"
    return warned(name, size_in_words(soft), against, helps)


def _pids() -> tuple[int, int] | None:
    """Return (limit, in use) of the control group with the least left; None without a limit."""
    cgroup = memory.own_cgroup()
    found = []
    for folder in cgroup.folders if cgroup is not None else ():
        try:
            found.append((int((folder / "pids.max").read_text()), int((folder / "pids.current").read_text())))
        except (OSError, ValueError):  # missing, or the word "max"
            continue
    return min(found, key=lambda pair: pair[0] - pair[1], default=None)


_SHM_WANTED = 1 << 30
_SHM_HELPS = (
    "docker run --shm-size=8g, or --ipc=host   # Kubernetes: an emptyDir with medium: Memory at /dev/shm",
    "sudo mount -o remount,size=8g /dev/shm   # if the host is yours",
)


@check(Group.MEMORY, "shared memory")
def shared_memory(_around: Surroundings) -> Iterator[Finding]:
    """Size of `/dev/shm` and what's free; warns below 1 GiB or a tenth free, fails if it's missing or not writable."""
    try:
        found = os.statvfs(memory.SHM)
    except OSError as error:
        against = "NCCL, gloo and DataLoader workers need it"
        yield failed(memory.SHM, error.strerror or "missing", against, _SHM_HELPS[0])
        return
    yield shm_size(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, os.access(memory.SHM, os.W_OK))


def shm_size(free: int, total: int, writable: bool) -> Finding:
    """Judge /dev/shm by its size in bytes: NCCL, gloo and DataLoader workers pass data there."""
    value = f"{size_in_words(free)} free of {size_in_words(total)}"
    if not writable:
        return failed(memory.SHM, "not writable", "NCCL and DataLoader workers write there", "ls -ld /dev/shm")
    if total < _SHM_WANTED:
        against = "below 1 GiB, DataLoader workers may die of a bus error"
        return warned(memory.SHM, value, against, *_SHM_HELPS)
    if free < total // 10:
        against = "less than a tenth is free: an earlier job may have left files"
        return warned(memory.SHM, value, against, "ls -lhS /dev/shm | head")
    return Finding(memory.SHM, value)
