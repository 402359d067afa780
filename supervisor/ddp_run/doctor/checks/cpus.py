"""CPUs for the ranks, their threads and their DataLoader workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.observe.memory import own_cgroup
from ddp_run.values.finding import Finding, warned


def _look(around: Surroundings) -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0))
    quota = _quota()
    yield counted(os.cpu_count() or usable, usable, quota, around.ranks)
    yield threads(min(usable, quota or usable), around.ranks, around.environ.get("OMP_NUM_THREADS"))


def _quota() -> float | None:
    """CPUs that the control groups allow, v2 cpu.max or v1 cpu.cfs_quota_us; null without a limit."""
    cgroup = own_cgroup()
    found = []
    for folder in cgroup.folders if cgroup is not None and cgroup.version == 2 else ():
        found.append(of_cpu_max(_text(folder / "cpu.max")))
    v1 = Path("/sys/fs/cgroup/cpu")
    found.append(of_cpu_max(f"{_text(v1 / 'cpu.cfs_quota_us')} {_text(v1 / 'cpu.cfs_period_us')}"))
    return min(filter(None, found), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def of_cpu_max(text: str) -> float | None:
    """`200000 100000` is two CPUs; null for `max` and for what is no limit. Source: cgroup-v2, cpu.max."""
    quota, _, period = text.partition(" ")
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None
    return int(quota) / int(period)


def counted(present: int, usable: int, quota: float | None, ranks: int) -> Finding:
    """The CPUs that this process may use, and whether each rank has one."""
    value = f"{usable} of {present}" if usable < present else str(present)
    if quota is not None and quota < usable:
        value += f", limited to {quota:g} by the control group"
    fewest = min(usable, quota or usable)
    if fewest < ranks:
        return warned("CPUs", value, f"fewer than {ranks} ranks: they take turns", "allow more CPUs")
    if quota is not None and quota < usable:
        note = f"programs see {usable} CPUs and may start a worker for each: they would be throttled"
        return warned("CPUs", value, note, f"num_workers of DataLoader: at most {workers(quota, ranks)} for each rank")
    for_workers = workers(fewest, ranks)
    none_left = "all are the ranks' own: workers of DataLoader would share them"
    many = f"num_workers of DataLoader: up to {for_workers} for each rank"
    return Finding("CPUs", value, against=many if for_workers else none_left)


def workers(cpus: float, ranks: int) -> int:
    """DataLoader workers for each rank that leave a CPU to the rank itself."""
    return max(0, int(cpus // ranks) - 1)


def threads(cpus: float, ranks: int, omp: str | None) -> Finding:
    """OMP_NUM_THREADS against the CPUs of a rank."""
    each = max(1, int(cpus // ranks))
    if omp is None:
        note = "torchrun sets 1 where there are several ranks"
        return Finding("OMP_NUM_THREADS", "not set", against=f"{note}; {each} would use all CPUs" if each > 1 else note)
    first = omp.partition(",")[0].strip()  # the first of nested levels
    if not first.isdecimal() or int(first) == 0:
        helps = f"export OMP_NUM_THREADS={each}"
        return warned("OMP_NUM_THREADS", omp or "empty", "no number above 0: OpenMP ignores it", helps)
    if int(first) * ranks > cpus and int(first) > 1:
        note = f"{ranks} ranks with {first} threads each are more than {cpus:g} CPUs"
        return warned("OMP_NUM_THREADS", omp, note, f"export OMP_NUM_THREADS={each}")
    return Finding("OMP_NUM_THREADS", omp)


CHECK = Check(
    "cpus",
    Group.HOST,
    "CPUs (affinity, control group) against ranks, `OMP_NUM_THREADS` and DataLoader workers; warns if they are fewer.",
    _look,
)
