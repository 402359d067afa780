"""Rates over the looks of a watcher: steps per second, and when a printed `120/500` will be through. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from ddp_run.tell.snapshot import Progress

_LEAST_S = 3.0
"""Over less time a rate says little."""
_WINDOW_S = 10.0
_COUNTS = 5
_LONGEST_S = 60.0
"""A rate is over `_WINDOW_S` and as much longer as `_COUNTS` take, but no longer than this."""
_OF = re.compile(r"(?<![\w./-])(\d{1,9}) ?/ ?(\d{1,9})(?![\d./-])")
_TQDM = re.compile(r"[ |](\d{1,9})/(\d{1,9}) \[[\d:]+<([\d:]{4,12}),")
"""tqdm/std.py, `format_meter`: it has its own estimate."""


@final
@dataclass
class Rate:
    """How fast a counter grows. `at` is in seconds of any clock that all calls share."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def feed(self, at: float, count: int) -> None:
        """What it showed at a time; times before the last one are left out. A counter that falls starts again."""
        if self._seen and at <= self._seen[-1][0]:
            return
        if not count or (self._seen and count < self._seen[-1][1]):
            self._seen.clear()
        if count:
            self._seen.append((at, count))
        while len(self._seen) > 2:
            seconds, counts = at - self._seen[1][0], count - self._seen[1][1]
            if seconds < _WINDOW_S or (counts < _COUNTS and seconds < _LONGEST_S):
                break
            self._seen.popleft()

    @property
    def per_s(self) -> float | None:
        """Over the last seconds, or between the last two times; None until a few seconds have been seen."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < _LEAST_S:
            return None
        (begin, before), (end, now) = self._seen[0], self._seen[-1]
        return round((now - before) / (end - begin), 3)


@final
@dataclass
class PrintedProgress:
    """What a program prints of how much it has done."""

    _total: int | None = None
    _rate: Rate = field(default_factory=Rate)

    def look(self, at: float, lines: Sequence[str]) -> Progress | None:
        """The progress that the last of these lines with any shows; None if none does, or it does not move."""
        for line in reversed(lines):
            bars = _TQDM.findall(line)
            if bars:
                done, total, left = bars[-1]
                return Progress(int(done), int(total), _seconds(left))
            found = [(int(done), int(total)) for done, total in _OF.findall(line) if 0 < int(total) >= int(done)]
            if found:
                return self._moving(at, *found[-1])
        return None

    def _moving(self, at: float, done: int, total: int) -> Progress | None:
        """Not a date such as `11/27`, which does not grow."""
        if total != self._total:
            self._total, self._rate = total, Rate()
        self._rate.feed(at, done)
        per_s = self._rate.per_s
        return Progress(done, total, round((total - done) / per_s, 1)) if per_s else None


def _seconds(clock: str) -> float:
    """`1:02:03` in seconds."""
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part or 0)
    return float(total)
