"""What people are told about an event while a job runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ddp_run.record.events import (
    Event,
    NativeFramesSeen,
    NotEnded,
    RankFailed,
    StallEnded,
    StallSeen,
    StragglerSeen,
)
from ddp_run.values.lines import neutral

Line = tuple[Literal["info", "warning"], str]


def told(event: Event, *, quotes: bool = True) -> Iterator[Line]:
    """The lines about an event, each with its level. Most events have none. `quotes`: with what each rank does."""
    match event:
        case StallSeen():
            yield "warning" if event.hung else "info", event.told
            yield from (("info", f"  {quote}") for quote in event.quotes if quotes)
        case StragglerSeen():
            yield (
                "info",
                f"rank {event.rank} is slow: in {event.times} of {event.compared} collectives the other ranks "
                f"waited for it, {event.waited_s:.2f} s each time (a step takes {event.step_s:.2f} s)",
            )
        case NativeFramesSeen():
            yield from (("info", f"  {quote}") for quote in event.quotes)
        case StallEnded():
            yield "info", f"progress resumed after {event.after_s:.0f} s"
        case NotEnded():
            yield "warning", event.said
        case _:
            pass


def failed_words(failed: RankFailed) -> str:
    """How a rank's program failed: `rank 3 failed with ValueError: bad (train.py:88)`."""
    raised = failed.exception
    why = f"exit code {failed.code}" if raised is None else f"{raised.type}: {raised.message}"
    where = "" if raised is None else raised.where
    return neutral(f"rank {failed.rank} failed with {why[:200]}{where}")
