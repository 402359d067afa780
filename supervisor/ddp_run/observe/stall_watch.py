"""When to look closer at the ranks. Pure.

A job makes progress while any rank's phase, steps or count of collectives changes. Before the ranks join a process
group, none of these changes; then each rank must work, that is, take CPU time or move bytes. After a while without
progress a closer look is due. An early look, before that, reads only the flight recorders, which disturbs no rank and
shows whether the ranks have come apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from ddp_run.record.events import MonotonicNs, Rank

LOOK_S = 1.0
"""How often boards are read."""
PATIENCE_S = 15.0
"""Without progress for this long, or for STEPS_OF_PATIENCE times the usual step, a closer look is taken."""
STEPS_OF_PATIENCE = 3.0
AGAIN_S = 30.0
"""How long to wait before the next closer look while nothing changes."""
PATIENCE_LEFT_S = 5.0
"""The patience once a rank has exited with 0: it won't come back."""
QUIET_S = 10.0
"""A rank stands still if it was not seen to work for this long, and nothing else shows progress."""
EARLY_S = 3.0
"""After this long without progress, or STEPS_OF_PATIENCE usual steps, the flight recorders are read."""
_LOOK_TAKES_S = 3.0
"""A closer look should be over by the time at which the user wants a job to end that stands still."""
_EARLY_AGAIN_S = 10.0
"""Then not again for this long, doubled each time up to _AT_MOST_S: a job may pause at every step."""
_AT_MOST_S = 600.0
_SECOND = 1_000_000_000
_KEPT = 64


class Due(StrEnum):
    """Which look is due."""

    EARLY = "early"
    CLOSER = "closer"


@dataclass(frozen=True, slots=True)
class RankLook:
    """What a rank's board shows. `left`: it exited with 0."""

    rank: Rank
    phase: str | None = None
    phase_at: int = 0
    steps: int = 0
    collectives: int = 0
    collective_at: int = 0
    left: bool = False
    call: str = ""
    worked_at: int = 0
    """When it was last seen to work, or started."""

    @property
    def progress_at(self) -> int:
        """When its phase or its collectives last changed. Steps don't count: they have no time."""
        return max(self.phase_at, self.collective_at)


@dataclass
class Watch:
    """Decides when to take a closer look. Call `look` once a second."""

    end_after_s: float | None = None
    """After this long without progress, the user wants the job to end."""
    _seen_at: int = 0
    _steps: dict[Rank, tuple[int, int]] = field(default_factory=dict)
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _asked_at: int = 0
    _last_look: int = 0
    _someone_left: bool = False
    _looked_early: int = 0
    _early_again_s: float = _EARLY_AGAIN_S
    _early_not_before: int = 0
    _alone_s: float = PATIENCE_S
    """Patience with ranks that have not joined. Grows after each pause, as some programs just wait for work."""
    _all_stood: bool = False
    """At the last closer look."""
    joined: bool = False
    """Some rank has begun to join the process group."""

    def look(self, at: int, ranks: Sequence[RankLook]) -> Due | None:
        """Which look is due now, if any. `at` in nanoseconds of CLOCK_MONOTONIC."""
        if self._last_look and at - self._last_look > 10 * LOOK_S * _SECOND:
            self._seen_at = at  # this machine, or ddp-run, was suspended meanwhile
        self._last_look = at
        self._learn(at, ranks)
        at_work = any(each.phase in ("init", "after-init", "training") for each in ranks)
        self._someone_left = at_work and any(each.left for each in ranks)
        self.joined = at_work or any(each.phase == "shutdown" for each in ranks)
        if self.joined:
            stepped = (seen_at for _steps, seen_at in self._steps.values())
            moved = latest = max([*(each.progress_at for each in ranks), *stepped])
        else:
            worked = [max(each.progress_at, each.worked_at) for each in ranks if not each.left]
            moved, latest = min(worked, default=at), max(worked, default=at)
        if moved > self._seen_at:
            if self._asked_at and not self.joined:
                self._alone_s = min(2 * self._alone_s, _AT_MOST_S)
            self._seen_at, self._asked_at = moved, 0
        if at - self._seen_at < self.patience_s * _SECOND:
            return self._early(at, ranks)
        all_stand = self.joined or at - latest >= QUIET_S * _SECOND
        if not all_stand and at - latest >= EARLY_S * _SECOND:
            return None  # the next looks will tell
        again_s = AGAIN_S if self.end_after_s is None else min(AGAIN_S, max(2 * _LOOK_TAKES_S, self.end_after_s))
        if self._asked_at and at - self._asked_at < again_s * _SECOND and all_stand == self._all_stood:
            return None
        self._asked_at, self._all_stood = at, all_stand
        return Due.CLOSER

    @property
    def since(self) -> MonotonicNs:
        """When progress was last made; before the ranks join, by the one that has stood still longest."""
        return MonotonicNs(self._seen_at)

    @property
    def patience_s(self) -> float:
        """Seconds without progress after which a closer look is due."""
        if not self.joined:
            return self._alone_s
        usual = PATIENCE_LEFT_S if self._someone_left else max(PATIENCE_S, STEPS_OF_PATIENCE * self.step_s)
        return usual if self.end_after_s is None else min(usual, max(EARLY_S, self.end_after_s - _LOOK_TAKES_S))

    @property
    def step_s(self) -> float:
        """The usual time of a step in seconds; 0 if none was seen."""
        return median(self._durations) if self._durations else 0.0

    def _early(self, at: int, ranks: Sequence[RankLook]) -> Due | None:
        """An early look, if it is due: once per pause while a process group exists, at growing intervals."""
        if self._looked_early == self._seen_at or at < self._early_not_before:
            return None
        if not any(each.phase in ("after-init", "training") for each in ranks):
            return None
        if at - self._seen_at < max(EARLY_S, STEPS_OF_PATIENCE * self.step_s) * _SECOND:
            return None
        self._looked_early = self._seen_at
        self._early_not_before = at + round(self._early_again_s * _SECOND)
        self._early_again_s = min(2 * self._early_again_s, _AT_MOST_S)
        return Due.EARLY

    def _learn(self, at: int, ranks: Sequence[RankLook]) -> None:
        """Record new steps. Boards don't time them, so the time between two looks is divided among them."""
        for each in ranks:
            steps, seen_at = self._steps.get(each.rank, (0, 0))
            if each.steps == steps:
                continue
            if each.steps > steps > 0:
                self._durations.append((at - seen_at) / (each.steps - steps) / _SECOND)
            self._steps[each.rank] = (each.steps, at)
