"""Whether a rank moves: by CPU time and bytes every two seconds, and by its stack and process between two looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from ddp_run.observe.close_look import CloseLook, ProcessState
from ddp_run.observe.process_look import ProcessLook, described, used
from ddp_run.observe.stack_text import Doing, Stack
from ddp_run.record.events import MonotonicNs, Rank, RankStarted

_BUSY = 0.05
"""CPU seconds per second from which a process counts as working. Polling every millisecond takes half as much."""
_BYTES = 1 << 16
"""Bytes per second likewise: more than a few lines of output, or a small file that is polled."""
_APART_S = 1.9
_NAPPING = 0.05
"""CPU seconds per second. A loop that only sleeps and polls takes less."""
_SECOND = 1_000_000_000

Seen = tuple[Stack | None, ProcessLook]
"""What one look at a rank shows."""


def close_look(
    rank: Rank,
    first: Seen | None,
    second: Seen,
    apart_s: float,
    ranks: Mapping[int, Rank],
) -> CloseLook:
    """What two looks show, `apart_s` seconds apart; only the second if there is no first. `ranks`: by pid."""
    (stack, now), before = second, first[1] if first is not None else second[1]
    ran = now.state is ProcessState.SLEEPING and (
        before.state is ProcessState.RUNNING or (before.driven and now.driven)
    )
    cpu_s, apart_s = now.cpu_s - before.cpu_s, max(apart_s, 0.1)
    # A look may catch it between two sleeps.
    naps = (now.asleep or before.asleep) and now.naps - before.naps > 1 and cpu_s < _NAPPING * apart_s
    awaits_child = now.reaps or (stack is not None and stack.doing is Doing.PROCESS)
    return CloseLook(
        rank=rank,
        state=ProcessState.RUNNING if ran else now.state,
        first=first[0] if first is not None else None,
        second=stack,
        cpu_s=cpu_s,
        io_bytes=now.io_bytes - before.io_bytes,
        apart_s=apart_s,
        waits_on=now.waits_on(ranks),
        on_lock=now.on_lock and before.on_lock,
        asleep=now.asleep,
        naps=naps,
        helpers=now.helpers,
        child=described(now.child).partition(" ")[2] or None if awaits_child and now.child is not None else None,
    )


@dataclass(frozen=True, slots=True)
class _Standing:
    """A rank at the end of a closer look (`at`), and since when it has stood still."""

    stack: Stack | None
    process: ProcessLook
    at: int
    since: int

    def same(self, other: _Standing) -> bool:
        """Whether nothing has moved since. Allows for the look itself: a few wake-ups and some kilobytes written."""
        one, two, seconds = self.process, other.process, (other.at - self.at) / _SECOND
        frames = None if self.stack is None else self.stack.frames
        return (
            frames == (None if other.stack is None else other.stack.frames)
            and one.state == two.state
            and two.cpu_s - one.cpu_s < 0.02 * seconds + 0.1
            and two.io_bytes - one.io_bytes < 1 << 18
            and two.switches - one.switches < 0.4 * seconds + 4
        )


@final
@dataclass
class Movement:
    """When the ranks of one start were last seen to work."""

    _used: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)
    """By pid."""
    _sampled_at: int = 0
    _standing: dict[Rank, _Standing] = field(default_factory=dict)

    def sample(self, at: MonotonicNs, alive: Iterable[RankStarted]) -> None:
        """Look at what each rank has used since last time. Skipped if that was just now: CPU time comes in ticks."""
        if at - self._sampled_at < _APART_S * _SECOND:
            return
        self._sampled_at = at
        for pid in (event.pid for event in alive):
            cpu_s, io_bytes = used(pid)
            before_at, cpu_before, io_before = self._used.get(pid, (at, cpu_s, io_bytes))
            seconds = (at - before_at) / _SECOND
            self._used[pid] = at, cpu_s, io_bytes
            if seconds and (cpu_s - cpu_before >= _BUSY * seconds or io_bytes - io_before >= _BYTES * seconds):
                self._moved[pid] = at

    def moved(self, pid: int, at: MonotonicNs) -> None:
        """Record that a closer look has shown this process at work."""
        self._moved[pid] = at

    def last(self, event: RankStarted) -> int:
        """When the rank was last seen to work, or started."""
        return self._moved.get(event.pid, event.at)

    def stands_since(self, rank: Rank, seen: Seen, at: MonotonicNs, since: int) -> int:
        """When the rank began to stand still. `seen`: its state now, at the end of a closer look begun at `since`."""
        now, before = _Standing(*seen, at, since), self._standing.get(rank)
        if before is not None and before.same(now):
            now = replace(now, since=before.since)
        self._standing[rank] = now
        return now.since

    def progressed(self) -> None:
        """Forget since when ranks have stood still: the job has made progress."""
        self._standing.clear()
