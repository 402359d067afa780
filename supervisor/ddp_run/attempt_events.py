"""One attempt's part of the journal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_run.events import AttemptEnded, AttemptStarted, Event, MemoryCounted, RunStarted


@dataclass(frozen=True, slots=True)
class AttemptEvents:
    """The events of one attempt, and those of the run that concern it."""

    run: RunStarted | None
    started: AttemptStarted | None
    events: tuple[Event, ...]
    counted_before: MemoryCounted | None


def of_attempt(events: Sequence[Event], attempt: int) -> AttemptEvents:
    """The events after the end of the attempt before, up to the end of this one."""
    run = next((e for e in events if isinstance(e, RunStarted)), None)
    starts = [i for i, e in enumerate(events) if isinstance(e, AttemptStarted) and e.attempt == attempt]
    if not starts:
        return AttemptEvents(run, None, (), None)
    here = starts[-1]
    first = next((i + 1 for i in range(here, -1, -1) if isinstance(events[i], AttemptEnded)), 0)
    end = next((i for i in range(here, len(events)) if _is_over(events[i], attempt)), len(events))
    before = next((e for e in reversed(events[:first]) if isinstance(e, MemoryCounted)), None)
    start = events[here]
    return AttemptEvents(run, start if isinstance(start, AttemptStarted) else None, tuple(events[first:end]), before)


def _is_over(event: Event, attempt: int) -> bool:
    match event:
        case AttemptEnded():
            return True
        case AttemptStarted(attempt=number):
            return number != attempt
        case _:
            return False
