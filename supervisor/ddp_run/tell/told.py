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
from ddp_run.values.words import rank_list

Line = tuple[Literal["info", "warning"], str]


def told(event: Event, *, quotes: bool = True) -> Iterator[Line]:
    """The lines about an event, each with its level. Most events have none. `quotes`: with what each rank does."""
    match event:
        case StallSeen():
            yield "warning" if event.hung else "info", event.told
            yield from (("info", f"  {quote}") for quote in event.quotes if quotes)
        case StragglerSeen():
            yield "info", slow_words(event)
        case NativeFramesSeen():
            yield from (("info", f"  {quote}") for quote in event.quotes)
        case StallEnded():
            yield "info", f"progress resumed after {event.after_s:.0f} s"
        case NotEnded():
            yield "warning", event.said
        case _:
            pass


def slow_words(event: StragglerSeen) -> str:
    """Who is slow: `rank 3 on node 1 (gpu-07) is slow: in 58 of 60 collectives the other nodes waited for it, …`."""
    node = neutral(event.node)
    if event.ranks:
        who, others, for_whom = node, "nodes", f"its ranks {rank_list(event.ranks)}"
    else:
        who, others, for_whom = f"rank {event.rank}" + (f" on {node}" if node else ""), "ranks", "it"
    return (
        f"{who} is slow: in {event.times} of {event.compared} collectives the other {others} waited for {for_whom}, "
        f"{event.waited_s:.2f} s each time (a step takes {event.step_s:.2f} s)"
    )


def failed_words(failed: RankFailed) -> str:
    """How a rank's program failed: `rank 3 failed with ValueError: bad (train.py:88)`."""
    raised = failed.exception
    why = f"exit code {failed.code}" if raised is None else f"{raised.type}: {raised.message}"
    where = "" if raised is None else raised.where
    return neutral(f"rank {failed.rank} failed with {why[:200]}{where}")
