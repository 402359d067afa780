"""What all events have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NewType

from ddp_run.values.typed_fields import frozen

Rank = NewType("Rank", int)
"""Global rank: unique in the whole job."""
LocalRank = NewType("LocalRank", int)
"""Rank within one node."""
MonotonicNs = NewType("MonotonicNs", int)
"""Nanoseconds of CLOCK_MONOTONIC."""

KINDS: dict[str, type[Event]] = {}
"""All kinds of events, by name."""


@frozen
class Event:
    """`at` is when it *happened*. All processes of a host share that clock, so stamps of ranks and ours compare."""

    at: MonotonicNs

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls


EventSink = Callable[[Event], None]
"""Receives each event: the journal first, then the console."""
