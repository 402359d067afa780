"""Decides which end came first if the kernel's report alone cannot tell. Pure.

A stamp taken inside a rank (`Death.failed_at`) is exact. The kernel reports a death only after freeing the process'
memory, 8 to 16 ms after the actual end on an idle host. So such an end may have come before one that seems earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddp_run.evidence.model import Death
from ddp_run.values.words import named_ranks

_LATE_NS = 50_000_000
"""The longest delay of the kernel's report, on a busy host."""


def first_end(deaths: Sequence[Death]) -> tuple[int, tuple[int, ...]]:
    """Return the index of the first end, and of the others that may have been first. `deaths` must be sorted by
    `Death.order` and not empty.

    Among the candidates, the kind of end decides: a signal from outside, then an exception, then an exit code without a
    message. A process killed by a signal did not react to anything; an exit code may be a reaction to another rank's
    end.
    """
    earliest = deaths[0]
    if earliest.failed_at is None and earliest.died_at is None:
        return 0, ()
    close = [0]
    close += [
        index
        for index, death in enumerate(deaths[1:], 1)
        if death.failed_at is None and death.order - earliest.order <= _LATE_NS
    ]
    first = min(close, key=lambda index: (_weight(deaths[index]), index))
    return first, tuple(index for index in close if index != first)


def how_close(deaths: Sequence[Death]) -> str:
    """Return a note about deaths whose order is uncertain."""
    ranks = sorted(death.rank for death in deaths if death.rank is not None)
    apart = (max(death.order for death in deaths) - min(death.order for death in deaths)) / 1e6
    return f"{named_ranks(ranks)} exited within {apart:.0f} ms according to the kernel: which came first is uncertain"


def _weight(death: Death) -> int:
    if death.killed_without_exception and -(death.code or 0) not in death.signals_sent:
        return 0
    return 1 if death.exception is not None else 2
