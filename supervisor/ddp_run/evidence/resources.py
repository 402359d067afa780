"""Memory of ranks and GPUs around a failure, in words of one line each.

Values only: `ddp_run.evidence.gather` makes them from a run's events, and rules cite them.
"""

from __future__ import annotations

from ddp_run.record.events import MonotonicNs, Rank
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import size_in_words


@frozen
class MemoryUse:
    """Memory in bytes at one moment: `own` is a rank's resident memory, `children` that of the processes below it.

    Shared pages count for each process, so the sum can exceed the host's memory.
    """

    at: MonotonicNs
    own: int
    children: int
    available: int | None = None
    """The host's available memory."""


@frozen
class MemoryTrend:
    """A rank's memory from its start to its end. `limit` is its cgroup's, else the host's memory."""

    first: MemoryUse
    last: MemoryUse
    limit: int | None
    ended_at: MonotonicNs | None
    cgroup: bool = False
    """Whether the limit is that of a memory cgroup."""

    @property
    def words(self) -> str:
        """The trend in one line, with the age of the last look when the rank ended."""
        grown = f"{size_in_words(self.first.own)}, then {size_in_words(self.last.own)}"
        ago = "" if self.ended_at is None else f" {max(0.0, (self.ended_at - self.last.at) / 1e9):.1f} s before its end"
        within = (
            ""
            if self.limit is None
            else f", of {size_in_words(self.limit)} {'in its cgroup' if self.cgroup else 'here'}"
        )
        children = f"; its child processes {size_in_words(self.last.children)}" if self.last.children else ""
        return f"resident memory {grown}{ago}{within}{children}"

    @property
    def nearly_all(self) -> bool:
        """Whether the last look saw nine tenths of the limit in use: by this rank and its children, or on the host."""
        if self.limit is None:
            return False
        scarce = not self.cgroup and self.last.available is not None and self.last.available < self.limit / 10
        return scarce or self.last.own + self.last.children >= 0.9 * self.limit


@frozen
class GpuHolder:
    """A process that holds `held` bytes of a GPU's memory. `rank`: the rank that it is or descends from."""

    pid: int
    held: int | None
    rank: Rank | None = None
    name: str = ""

    @property
    def who(self) -> str:
        """`rank 0`, `process 4242 (python)`."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"process {self.pid}" + (f" ({self.name})" if self.name else "")


@frozen
class Gpu:
    """One GPU at one moment, memory in bytes. `number`: as in nvidia-smi. `holders`: the largest first."""

    number: int
    uuid: str
    free: int
    total: int
    holders: tuple[GpuHolder, ...] = ()


@frozen
class GpuLook:
    """The GPUs of the node when a rank was last seen on one, else when it was last seen alive.

    `visible`: the GPUs that it saw when it started, in torch's order; None if unknown. `own_pids`: the holders' pids
    are from our pid namespace; otherwise nobody knows whose they are. `ended_at`: when the rank failed.
    """

    at: MonotonicNs
    gpus: tuple[Gpu, ...]
    visible: tuple[int, ...] | None
    own_pids: bool
    ended_at: MonotonicNs | None = None

    def gpu_of(self, rank: Rank | None, number: int | None, local_rank: int | None) -> tuple[Gpu | None, bool]:
        """The GPU that torch in this rank calls `number` (None: not named), and whether that is certain.

        A program may have set CUDA_VISIBLE_DEVICES itself, so the GPU on which it holds memory takes precedence over
        what it saw when it started.
        """
        on = [gpu for gpu in self.gpus if any(holder.rank == rank for holder in gpu.holders)]
        if len(on) == 1:
            return on[0], True
        if on and number is None:
            return None, False
        place = local_rank if number is None else number
        order = self.visible or ()
        meant = next((gpu for gpu in self.gpus if place is not None and gpu.number in order[place : place + 1]), None)
        return (meant, bool(on)) if not on or meant in on else (None, False)

    def words(self, gpu: Gpu) -> str:
        """One GPU in one line, with the time of the look."""
        when = (
            ""
            if self.ended_at is None
            else f" {abs(self.age_s):.1f} s {'before' if self.age_s > 0 else 'after'} it failed"
        )
        free = f"{size_in_words(gpu.free)} of {size_in_words(gpu.total)} free{when}"
        parts = [f"GPU {gpu.number} ({gpu.uuid[:12]}): {free}"]
        if self.own_pids:
            parts += [f"{each.who} {size_in_words(each.held)}" for each in gpu.holders if each.held is not None]
        elif gpu.holders:
            count = f"{len(gpu.holders)} process{'es' if len(gpu.holders) > 1 else ''}"
            parts.append(f"{count} on it (pids of another pid namespace)")
        return "; ".join(parts)

    @property
    def age_s(self) -> float:
        """How long the rank ran after this look; negative if the look came after its failure."""
        return 0.0 if self.ended_at is None else (self.ended_at - self.at) / 1e9
