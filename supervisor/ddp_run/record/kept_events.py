"""Events in the order they came, without most of the samples of long ago: a job may run for months. Pure.

What is left out does not change with who reads: the live run keeps just what a replay of its journal keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import final, overload

from ddp_run.record.events import Event, GpuSampled, MemorySampled, ProgressSampled, Rank

_SAMPLES = (MemorySampled, GpuSampled, ProgressSampled)
RECENT = 2048
"""Samples of each kind that are kept, the latest ones; up to twice as many are held."""


@final
class KeptEvents(Sequence[Event]):
    """A sequence to append to. Of samples the latest are kept, and those that showed a rank's most memory so far."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: list[Event] = []
        self._for_good: list[bool] = []
        self._samples: dict[type[Event], int] = {}
        self._peaks: dict[Rank, int] = {}
        for event in events:
            self.append(event)

    def append(self, event: Event) -> None:
        """Take one more; now and then old samples go."""
        self._events.append(event)
        self._for_good.append(not isinstance(event, _SAMPLES) or self._is_peak(event))
        kind = type(event)
        if self._for_good[-1]:
            return
        self._samples[kind] = self._samples.get(kind, 0) + 1
        if self._samples[kind] >= 2 * RECENT:
            self._thin(kind)

    def _is_peak(self, event: Event) -> bool:
        """Whether a rank has more memory than ever: trends tell of the first look and of the peak."""
        if not isinstance(event, MemorySampled):
            return False
        found = False
        for rank, own, children in zip(event.ranks, event.own, event.children, strict=True):
            if own + children > self._peaks.get(rank, -1):
                self._peaks[rank] = own + children
                found = True
        return found

    def _thin(self, kind: type[Event]) -> None:
        left = RECENT
        drop: set[int] = set()
        for index in range(len(self._events) - 1, -1, -1):
            if type(self._events[index]) is kind and not self._for_good[index]:
                left -= 1
                if left < 0:
                    drop.add(index)
        self._events = [event for index, event in enumerate(self._events) if index not in drop]
        self._for_good = [kept for index, kept in enumerate(self._for_good) if index not in drop]
        self._samples[kind] = RECENT

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)
