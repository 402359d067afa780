"""One attempt's part of the journal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ddp_run.record.events import (
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    Event,
    MemoryCounted,
    Next,
    PeerFailed,
    RankStarted,
    RunStarted,
    SignalReceived,
    WaitsAsSpare,
)
from ddp_run.values.signals import STOP_SIGNALS

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class AttemptEvents:
    """The events of one attempt, and those of the run that concern it."""

    run: RunStarted | None
    started: AttemptStarted | None
    events: tuple[Event, ...]
    counted_before: MemoryCounted | None
    _by_kind: dict[type[Any], list[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Found once: each of a thousand ranks asks."""

    def of(self, kind: type[_Kind]) -> Sequence[_Kind]:
        """The events of this kind, in order."""
        if not self._by_kind:
            for event in self.events:
                self._by_kind.setdefault(type(event), []).append(event)
        return self._by_kind.get(kind, ())

    def last(self, kind: type[_Kind]) -> _Kind | None:
        """The last event of this kind."""
        return next(iter(self.of(kind)[-1:]), None)

    @property
    def node_rank(self) -> int | None:
        """This node's number in the last start of its ranks; before that, the one that it was given, if any."""
        started = self.last(RankStarted)
        if started is not None and started.group_rank is not None:
            return started.group_rank
        return self.run.node_rank if self.run is not None else None


def of_attempt(events: Sequence[Event], attempt: int) -> AttemptEvents:
    """The events after the end of the attempt before, up to the end of this one."""
    run = next((e for e in events if isinstance(e, RunStarted)), None)
    starts = [(i, e) for i, e in enumerate(events) if isinstance(e, AttemptStarted) and e.attempt == attempt]
    if not starts:
        return AttemptEvents(run, None, (), None)
    here, started = starts[-1]
    first = next((i + 1 for i in range(here, -1, -1) if isinstance(events[i], AttemptEnded)), 0)
    end = next((i for i in range(here, len(events)) if _is_over(events[i], attempt)), len(events))
    before = next((e for e in reversed(events[:first]) if isinstance(e, MemoryCounted)), None)
    return AttemptEvents(run, started, tuple(events[first:end]), before)


def last_restart(events: Sequence[Event]) -> int:
    """How often the agent of the attempt with these events has restarted its ranks."""
    return max((e.restart for e in events if isinstance(e, RankStarted)), default=0)


def before_restart(events: Sequence[Event], restart: int) -> tuple[Event, ...]:
    """An attempt's events before the first rank of this start (counted from 0); all of them if there is none."""
    starts = (i for i, e in enumerate(events) if isinstance(e, RankStarted) and e.restart >= restart)
    return tuple(events[: next(starts, len(events))])


def attempts_made(events: Sequence[Event]) -> list[int]:
    """The numbers of the attempts whose agent started; of all attempts if no agent did."""
    begun: list[int] = []
    made: list[int] = []
    for event in events:
        if isinstance(event, AttemptStarted):
            begun.append(event.attempt)
        elif isinstance(event, AgentStarted):
            made += begun[-1:]
    return made or begun


def ended_before_retry(events: Sequence[Event]) -> SignalReceived | PeerFailed | None:
    """What ended the run instead of another attempt: a signal to stop, or another node. None if nothing did."""
    begun = _last(events, lambda event: isinstance(event, AttemptStarted))
    decided = _last(events, _decides_retry)
    if not 0 <= begun < decided:
        return None
    for index, event in enumerate(events[begun:], begun):
        if isinstance(event, SignalReceived) and event.signum in STOP_SIGNALS:
            return event
        if isinstance(event, PeerFailed) and index > decided:
            return event
    return None


def after_retry_was_decided(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events after the last decision to retry."""
    return tuple(events[_last(events, _decides_retry) + 1 :])


def since_waiting(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events since this node waits for a part in the job (--spare-nodes); empty if it doesn't, or has one."""
    begun = _last(events, lambda event: isinstance(event, AttemptStarted | WaitsAsSpare))
    return tuple(events[begun:]) if begun >= 0 and isinstance(events[begun], WaitsAsSpare) else ()


def _decides_retry(event: Event) -> bool:
    return isinstance(event, AttemptEnded) and event.decision == Next.RETRY


def _last(events: Sequence[Event], is_one: Callable[[Event], bool]) -> int:
    """The index of the last one; -1 if there is none."""
    return next((i for i in range(len(events) - 1, -1, -1) if is_one(events[i])), -1)


def _is_over(event: Event, attempt: int) -> bool:
    return isinstance(event, AttemptEnded) or (isinstance(event, AttemptStarted) and event.attempt != attempt)
