"""The host: its kernel, torch and the driver, its clock, its CPUs, and what earlier runs say about it."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from ddp_run import __version__
from ddp_run.doctor.check import Group, NoAnswer, Surroundings, check, kernel_value
from ddp_run.doctor.findings import Finding, failed, skipped, warned
from ddp_run.judge import bad_hosts
from ddp_run.judge.bad_hosts import HostRecord
from ddp_run.observe.memory import own_cgroup
from ddp_run.plan import node_facts
from ddp_run.record import host_failures
from ddp_run.values.node_fact import Known


@check(Group.HOST, "kernel and Python")
def system(_around: Surroundings) -> Iterator[Finding]:
    """Host name, container, kernel (5.3 or newer), versions."""
    inside = any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv", "/.singularity.d"))
    yield Finding("host", f"{platform.node()}{', in a container' if inside else ''}")
    yield kernel(platform.release())
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("ddp-run", __version__)


def kernel(release: str) -> Finding:
    """Judge the kernel: pidfd_open (Linux 5.3) tells the order in which ranks died, and their exit codes."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is not None and (int(found[1]), int(found[2])) < (5, 3):
        return warned("kernel", release, "older than 5.3: ddp-run cannot read some exit codes of ranks")
    return Finding("kernel", release)


_LEAST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""The oldest Linux driver for each major CUDA version (NVIDIA, CUDA Compatibility, minor version compatibility)."""
_DRIVERS_CUDA = re.compile(r"CUDA (?:UMD )?Version: *(\d+)\.(\d+)")


@check(Group.HOST, "torch and the driver")
def torch_build(around: Surroundings) -> Iterator[Finding]:
    """torch, its CUDA and NCCL, read without importing it, against the driver; fails if torch is missing, has no CUDA
    although there is a driver, or needs a newer driver."""
    facts = {fact.name: fact.value for fact in node_facts.collect(around.options, {}, "127.0.0.1").facts}
    if Known.TORCH not in facts:
        yield failed("torch", "not found", "", f"{sys.executable} -m pip install torch")
        return
    yield Finding("torch", facts[Known.TORCH])
    if "+rocm" in facts[Known.TORCH] or "+xpu" in facts[Known.TORCH]:
        yield skipped("torch's CUDA", "this torch is not built for NVIDIA GPUs; the doctor checks no others")
        return
    cuda = facts.get(Known.CUDA, "none")
    yield cuda_build(cuda, has_driver=around.has_driver)
    if cuda == "none":
        return
    yield Finding("NCCL", facts.get(Known.NCCL, "inside torch"))
    if around.has_driver:
        try:
            banner = around.nvidia_smi()
        except NoAnswer:
            banner = ""
        yield driver(cuda, facts.get(Known.DRIVER), _DRIVERS_CUDA.search(banner))


def cuda_build(cuda: str, *, has_driver: bool) -> Finding:
    """Judge torch's CUDA version, or "none". With CUDA but without a driver, torch still works on CPUs."""
    if cuda == "none" and has_driver:
        helps = "pip install torch   # from https://pytorch.org/get-started/locally/, for your CUDA"
        return failed("torch's CUDA", "none", "there is an NVIDIA driver here, but this torch cannot use GPUs", helps)
    if cuda != "none" and not has_driver:
        return warned("torch's CUDA", cuda, "no NVIDIA driver here: only gloo on CPUs works", "nvidia-smi")
    return Finding("torch's CUDA", cuda)


def driver(cuda: str, version: str | None, newest: re.Match[str] | None) -> Finding:
    """Judge whether the driver runs torch's CUDA. `newest`: the CUDA version that nvidia-smi says it supports."""
    if version is None:
        return skipped("NVIDIA driver", "its version cannot be read here")
    major = int(cuda.partition(".")[0])
    least = _LEAST_DRIVER.get(major)
    shown = f"{version}, for CUDA {newest[1]}.{newest[2]}" if newest is not None else version
    helps = ("update the driver, or install a torch for an older CUDA (pytorch.org/get-started/previous-versions)",)
    if least is not None and tuple(map(int, version.split("."))) < least:
        return failed("NVIDIA driver", shown, f"CUDA {cuda} needs {'.'.join(map(str, least))} or newer", *helps)
    if newest is not None and int(newest[1]) < major:
        return failed("NVIDIA driver", shown, f"torch needs CUDA {cuda}", *helps)
    return Finding("NVIDIA driver", shown, against=f"torch needs CUDA {cuda}")


_TIMEX_BYTES = 256
"""More than struct timex takes on any architecture."""
_MAXERROR = 3
"""Index among its longs: modes, offset, freq, maxerror (bits/timex.h)."""
_TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronized."""


@check(Group.HOST, "the clock")
def clock(_around: Surroundings) -> Iterator[Finding]:
    """Whether the kernel's clock is synchronized (adjtimex); warns if not."""
    longs = (ctypes.c_long * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_long)))()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(longs))
    yield clock_state(state, longs[_MAXERROR])


def clock_state(state: int, most_error_us: int) -> Finding:
    """Judge what adjtimex(2) returned, and the clock's largest error in microseconds."""
    if state < 0:
        return skipped("clock", "the kernel doesn't allow adjtimex here")
    if state == _TIME_ERROR:
        advice = "timedatectl status; systemctl enable --now chronyd   # or timesyncd; on the host, not in a container"
        against = "the kernel reports no time synchronization: timestamps of different nodes may disagree"
        return warned("clock", "not synchronized", against, advice)
    return Finding("clock", f"synchronized, off by at most {most_error_us / 1000:.0f} ms")


@check(Group.HOST, "CPUs")
def cpus(around: Surroundings) -> Iterator[Finding]:
    """CPUs (affinity, control group) against ranks, `OMP_NUM_THREADS` and DataLoader workers; warns if too few."""
    usable = len(os.sched_getaffinity(0))
    quota = _quota()
    yield cpu_count(os.cpu_count() or usable, usable, quota, around.ranks)
    yield omp_threads(min(usable, quota or usable), around.ranks, around.environ.get("OMP_NUM_THREADS"))


def _quota() -> float | None:
    """Return the CPUs that the control groups allow (v2 cpu.max, v1 cpu.cfs_quota_us); None without a limit."""
    cgroup = own_cgroup()
    v2 = cgroup.folders if cgroup is not None and cgroup.version == 2 else ()
    v1 = Path("/sys/fs/cgroup/cpu")
    limits = [kernel_value(folder / "cpu.max") for folder in v2]
    limits.append(f"{kernel_value(v1 / 'cpu.cfs_quota_us')} {kernel_value(v1 / 'cpu.cfs_period_us')}")
    return min(filter(None, map(cpu_limit, limits)), default=None)


def cpu_limit(text: str) -> float | None:
    """Return the CPUs in a limit: `200000 100000` is two, `max` is None. Source: cgroup-v2, cpu.max."""
    quota, _, period = text.partition(" ")
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None
    return int(quota) / int(period)


def cpu_count(present: int, usable: int, quota: float | None, ranks: int) -> Finding:
    """Judge whether each rank has a CPU, of those that this process may use."""
    value = f"{usable} of {present}" if usable < present else str(present)
    limited = quota if quota is not None and quota < usable else None
    if limited is not None:
        value += f", limited to {limited:g} by the control group"
    fewest = limited or usable
    if fewest < ranks:
        return warned("CPUs", value, f"fewer than {ranks} ranks: they take turns", "allow more CPUs")
    each = workers(fewest, ranks)
    if limited is not None:
        note = f"programs see {usable} CPUs; with a worker for each they'd be throttled"
        return warned("CPUs", value, note, f"DataLoader(num_workers=…): at most {each} per rank")
    none_left = "no cores left over for DataLoader workers"
    return Finding("CPUs", value, against=f"DataLoader(num_workers=…): up to {each} per rank" if each else none_left)


def workers(cpus: float, ranks: int) -> int:
    """Return how many DataLoader workers each rank can have, with one CPU left for the rank."""
    return max(0, int(cpus // ranks) - 1)


def omp_threads(cpus: float, ranks: int, omp: str | None) -> Finding:
    """Judge OMP_NUM_THREADS against the CPUs of a rank."""
    each = max(1, int(cpus // ranks))
    name, helps = "OMP_NUM_THREADS", f"export OMP_NUM_THREADS={each}"
    if omp is None:
        note = "torchrun sets 1 if there are several ranks"
        return Finding(name, "not set", against=f"{note}; {each} would use all CPUs" if each > 1 else note)
    first = omp.partition(",")[0].strip()  # the first of nested levels
    if not first.isdecimal() or int(first) == 0:
        return warned(name, omp or "empty", "not a number above 0: OpenMP ignores it", helps)
    if int(first) * ranks > cpus and int(first) > 1:
        return warned(name, omp, f"{ranks} ranks with {first} threads each are more than {cpus:g} CPUs", helps)
    return Finding(name, omp)


_EARLIER = "earlier runs here"
_DAYS = 30


@check(Group.HOST, "earlier runs on this host")
def host_history(around: Surroundings) -> Iterator[Finding]:
    """What `ddp-run hosts` knows about this host; warns if runs of the last 30 days failed because of it."""
    where = host_failures.folder(around.environ)
    if where is None:
        yield skipped(_EARLIER, "neither DDP_RUN_HOSTS_DIR nor HOME is set")
        return
    yield history(bad_hosts.records(host_failures.read(where), time.time() - _DAYS * 86400), around.host)


def history(records: Sequence[HostRecord], host: str) -> Finding:
    """Judge a host by the records of all hosts."""
    record = next((each for each in records if each.host == host), None)
    if record is None:
        return Finding(_EARLIER, f"no host-related failures in {_DAYS} days")
    day = datetime.fromtimestamp(record.last_s).astimezone().date().isoformat()
    value = f"{record.runs} failed because of this host, last on {day}: {record.last_title}"
    helps = ["ddp-run hosts", *([f"sbatch --exclude={host} …"] if record.exclude else [])]
    return warned(_EARLIER, value, f"in the last {_DAYS} days", *helps)
