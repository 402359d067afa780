"""When each rank was last seen to work: by CPU time and bytes every two seconds, by its stack in closer looks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from ddp_run.observe.process_look import used
from ddp_run.record.events import MonotonicNs, RankStarted

_BUSY = 0.05
"""CPU seconds per second from which a process counts as working. Polling every millisecond takes half as much."""
_BYTES = 1 << 16
"""Bytes per second likewise: more than a few lines of output, or a small file that is polled."""
_APART_S = 1.9
_SECOND = 1_000_000_000


@final
@dataclass
class Movement:
    """When the ranks of one start were last seen to work."""

    _used: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)
    """By pid."""
    _sampled_at: int = 0

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
