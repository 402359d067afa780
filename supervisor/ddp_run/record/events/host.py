"""What the host shows: memory, GPUs, free space, the kernel's log."""

from __future__ import annotations

from ddp_run.record.events.attempts import Event, MonotonicNs, Rank
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import size_in_words


@frozen
class MemoryCounted(Event):
    """Out-of-memory kills so far, as the kernel counts them: host-wide and in this process' own memory cgroup."""

    host_oom_kills: int | None
    cgroup_oom_kills: int | None


@frozen
class MemorySampled(Event):
    """Memory in bytes at one moment. `own[i]` and `children[i]` are the resident memory of rank `ranks[i]` and of the
    processes below it. Pages that they share count for each of them.

    `available` and `total` are the host's; `cgroup_used` and `cgroup_limit` those of the tightest memory cgroup that
    this process is in. Null: can't be read, or there is no limit.
    """

    ranks: tuple[Rank, ...]
    own: tuple[int, ...]
    children: tuple[int, ...]
    available: int | None
    total: int | None
    cgroup_used: int | None
    cgroup_limit: int | None
    shm_free: int | None
    """Free bytes of /dev/shm, and its size, if it is a tmpfs."""
    shm_total: int | None


@frozen
class GpuSampled(Event):
    """Memory in bytes and use of this node's GPUs at one moment, by NVML. `gpus` are numbers as in nvidia-smi. `busy`
    is the time in which a kernel ran, in per cent; null if it can't be read.

    Process `pids[i]` holds `held[i]` bytes of GPU `on[i]`. `members[i]` is the rank that it is or descends from, null
    if it isn't a rank's. If `own_pids` is false, the pids belong to another pid namespace, or NVML gave none: nobody
    knows whose they are. `visible[i]` are the GPUs of rank `ranks[i]` in torch's order, as its environment had them
    when it started; null if unknown.
    """

    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    used: tuple[int, ...]
    free: tuple[int, ...]
    total: tuple[int, ...]
    busy: tuple[int | None, ...]
    pids: tuple[int, ...]
    on: tuple[int, ...]
    held: tuple[int | None, ...]
    names: tuple[str, ...]
    members: tuple[Rank | None, ...]
    own_pids: bool
    ranks: tuple[Rank, ...]
    visible: tuple[tuple[int, ...] | None, ...]


@frozen
class SpaceCounted(Event):
    """Free space of the file system that `path` is on, in bytes and inodes that an ordinary user may take.

    A file system without a fixed number of inodes (btrfs) has 0 of 0.
    """

    path: str
    free: int
    total: int
    free_inodes: int
    total_inodes: int

    @property
    def nearly_full(self) -> bool:
        """Whether less than a twentieth and less than 64 MiB is free, or no inode: a write can fail before it is 0."""
        inodes = self.total_inodes > 0 and self.free_inodes == 0
        return inodes or (self.total > 0 and self.free < min(64 << 20, max(1 << 20, self.total // 20)))

    @property
    def words(self) -> str:
        """The space in one line."""
        inodes = ", no free inodes" if self.total_inodes and not self.free_inodes else ""
        return f"{self.path}: {size_in_words(self.free)} of {size_in_words(self.total)} free{inodes}"


@frozen
class CheckpointSeen(Event):
    """After a failure or a signal to stop: the newest checkpoint below `folder`, or another folder that ranks wrote
    some to, and when it was written, by its file's time. `path`: null if none is there."""

    folder: str
    path: str | None
    written: MonotonicNs | None


@frozen
class KernelLogged(Event):
    """Lines that the kernel logged during the attempt and that may explain a death.

    `left_out`: how many such lines weren't kept. `own_pids`: their pids are the ones that this process sees (both are
    in the first pid namespace).
    """

    lines: tuple[str, ...]
    left_out: int
    own_pids: bool
