"""Where a run's last attempt stands, by the events of its journal so far. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import final

from ddp_run.record.events import (
    AttemptStarted,
    Event,
    GpuSampled,
    MemorySampled,
    ProgressSampled,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    StragglerSeen,
)
from ddp_run.values.signals import signal_name


@final
@dataclass(slots=True)
class RankState:
    """A rank in its last start. `phase`: as a rank reports it; `failed`, `finished`, and how its process ended."""

    started: RankStarted
    phase: str = "before-init"
    ended: bool = False


@final
@dataclass(slots=True)
class JobState:
    """Feed it the events in order."""

    attempt: int | None = None
    """Counted from 0; None before the first."""
    ranks: dict[Rank, RankState] = field(default_factory=dict)
    """Of the last start of the ranks of this node."""
    memory: MemorySampled | None = None
    gpus: GpuSampled | None = None
    progress: deque[ProgressSampled] = field(default_factory=lambda: deque(maxlen=2))
    straggler: StragglerSeen | None = None
    """The last that was reported."""

    @property
    def alive(self) -> list[RankStarted]:
        """The ranks whose end has not been seen, by rank."""
        return [state.started for _, state in sorted(self.ranks.items()) if not state.ended]

    def take(self, event: Event) -> None:
        """The next event."""
        match event:
            case AttemptStarted():
                self.attempt = event.attempt
                self._forget()
            case RankStarted():
                if any(state.started.restart < event.restart for state in self.ranks.values()):
                    self._forget()
                self.ranks[event.rank] = RankState(event)
            case RankPhase() | RankFailed() | RankFinished() | RankExited():
                state = self.ranks.get(event.rank)
                if state is not None and state.started.restart == event.restart and not state.ended:
                    state.phase, state.ended = _phase(event), isinstance(event, RankExited)
            case MemorySampled():
                self.memory = event
            case GpuSampled():
                self.gpus = event
            case ProgressSampled():
                self.progress.append(event)
            case StragglerSeen():
                self.straggler = event
            case _:
                pass

    def _forget(self) -> None:
        self.ranks.clear()
        self.progress.clear()
        self.memory = self.gpus = self.straggler = None


def _phase(event: RankPhase | RankFailed | RankFinished | RankExited) -> str:
    match event:
        case RankPhase():
            return event.phase
        case RankFailed():
            return "failed"
        case RankFinished():
            return "finished"
        case RankExited():
            return "ended" if event.code is None else signal_name(event.code) or f"exit {event.code}"
