"""Shared memory, /dev/shm: NCCL's and gloo's buffers within a host, and what DataLoader workers hand over."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.observe.memory import SHM
from ddp_run.values.finding import Finding, failed, warned
from ddp_run.values.words import size_in_words

_WANTED = 1 << 30
_NAME = "/dev/shm"  # noqa: S108 - what is looked at
_HELPS = (
    "docker run --shm-size=8g, or --ipc=host   # Kubernetes: an emptyDir with medium: Memory at /dev/shm",
    "sudo mount -o remount,size=8g /dev/shm   # a host of your own",
)


def _look(_around: Surroundings) -> Iterator[Finding]:
    try:
        found = os.statvfs(SHM)
    except OSError as error:
        yield failed(_NAME, error.strerror or "missing", "NCCL and DataLoader workers need it", _HELPS[0])
        return
    yield judged(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, os.access(SHM, os.W_OK))


def judged(free: int, total: int, writable: bool) -> Finding:
    """Bytes."""
    value = f"{size_in_words(free)} free of {size_in_words(total)}"
    if not writable:
        return failed(_NAME, "not writable", "NCCL and DataLoader workers write there", "ls -ld /dev/shm")
    if total < _WANTED:
        return warned(_NAME, value, "below 1 GiB a DataLoader with workers may die of a bus error", *_HELPS)
    if free < total // 10:
        return warned(_NAME, value, "below a tenth: an earlier job may have left files", "ls -lhS /dev/shm | head")
    return Finding(_NAME, value)


CHECK = Check(
    "shared_memory",
    Group.MEMORY,
    "Size of `/dev/shm` and what is free; warns below 1 GiB or a tenth free, fails if it is missing or not writable.",
    _look,
)
