"""Limits of this shell, which every rank inherits: open files, processes, locked memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.observe.memory import own_cgroup
from ddp_run.values.finding import Finding, failed, warned
from ddp_run.values.words import size_in_words

_FILES_WANTED, _FILES_NEEDED = 4096, 128
_TASKS_WANTED, _TASKS_NEEDED = 256, 32
"""Threads and processes of one rank: torch's and the libraries' own, and DataLoader workers; at the least a few."""
_RDMA = Path("/sys/class/infiniband")


def _look(around: Surroundings) -> Iterator[Finding]:
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    soft, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    yield tasks("processes (ulimit -u)", soft, 0, around.ranks, "ulimit -u unlimited")
    if (control := _pids()) is not None:
        yield tasks("control group's processes", *control, around.ranks, "docker run --pids-limit=-1")
    reserved, _hard = resource.getrlimit(resource.RLIMIT_AS)
    yield address_space(reserved)
    locked, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    yield locked_memory(locked, has_rdma=_RDMA.is_dir() and any(_RDMA.iterdir()))


def open_files(soft: int, hard: int) -> Finding:
    """RLIMIT_NOFILE; every DataLoader worker, peer and mapped file takes some."""
    name, value = "open files (ulimit -n)", _shown(soft)
    if soft != resource.RLIM_INFINITY and soft < _FILES_WANTED:
        enough = hard == resource.RLIM_INFINITY or hard >= _FILES_WANTED
        more = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        helps = f"ulimit -n {more}" if enough else "raise nofile in /etc/security/limits.conf; docker run --ulimit"
        against = f"below {_FILES_WANTED}, DataLoader workers and many peers end with 'Too many open files'"
        return (failed if soft < _FILES_NEEDED else warned)(name, value, against, helps)
    return Finding(name, value)


def tasks(name: str, limit: int, taken: int, ranks: int, helps: str) -> Finding:
    """Processes and threads that may be started, against so many ranks."""
    if limit == resource.RLIM_INFINITY:
        return Finding(name, "unlimited")
    value = f"{limit} ({taken} in use)" if taken else str(limit)
    if limit - taken < _TASKS_NEEDED * ranks:
        return failed(name, value, f"{_TASKS_NEEDED} for each of {ranks} ranks: threads cannot be started", helps)
    if limit - taken < _TASKS_WANTED * ranks:
        return warned(name, value, f"{_TASKS_WANTED} for each of {ranks} ranks is usual", helps)
    return Finding(name, value)


def address_space(soft: int) -> Finding:
    """RLIMIT_AS; CUDA maps all memory of host and GPUs into each rank, many times what it uses."""
    name = "address space (ulimit -v)"
    if soft == resource.RLIM_INFINITY:
        return Finding(name, "unlimited")
    against = "limited: CUDA reserves far more than it uses, and libraries may not load"
    return warned(name, size_in_words(soft), against, "ulimit -v unlimited")


def locked_memory(soft: int, *, has_rdma: bool) -> Finding:
    """RLIMIT_MEMLOCK, which RDMA registers its buffers against."""
    name = "locked memory (ulimit -l)"
    if soft == resource.RLIM_INFINITY:
        return Finding(name, "unlimited")
    if has_rdma:
        helps = "ulimit -l unlimited   # docker run --ulimit memlock=-1; SLURM: PropagateResourceLimitsExcept=MEMLOCK"
        return warned(
            name, size_in_words(soft), "not unlimited: there is InfiniBand or RoCE here, and NCCL needs it", helps
        )
    return Finding(name, size_in_words(soft), against="matters with InfiniBand or RoCE only; there is none here")


def _shown(soft: int) -> str:
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _pids() -> tuple[int, int] | None:
    """(limit, in use) of the tightest control group; null without a limit."""
    cgroup = own_cgroup()
    found = []
    for folder in cgroup.folders if cgroup is not None else ():
        try:
            most, used = (folder / "pids.max").read_text(), (folder / "pids.current").read_text()
            found.append((int(most), int(used)))
        except (OSError, ValueError):  # none, or the word "max"
            continue
    return min(found, key=lambda pair: pair[0] - pair[1], default=None)


CHECK = Check(
    "limits",
    Group.MEMORY,
    "`ulimit -n` (warns below 4096), `ulimit -u` and the control group's `pids.max` (warns below 256 a rank), `ulimit"
    " -v` (warns if limited), `ulimit -l` (warns if limited beside InfiniBand).",
    _look,
)
