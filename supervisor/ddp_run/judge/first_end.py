"""Which of several ends came first where the kernel's report alone cannot tell. Pure.

A stamp taken inside a rank (`Death.failed_at`) is exact. The kernel reports a death once the process' memory is taken
down, 8 to 16 ms after the end itself on an idle host: such an end may have come before one that seems earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddp_run.evidence.model import Death
from ddp_run.values.words import named_ranks

_LATE_NS = 50_000_000
"""By so much the kernel's report may be late, on a busy host."""


def first_end(deaths: Sequence[Death]) -> tuple[int, tuple[int, ...]]:
    """Which of them came first, and which others may have, as indices; `deaths` by `Death.order`, not empty.

    Among those that may have, the kind of end decides: a signal that nobody here sent, before an exception, before a
    code without a word. What a signal ends had no part in it; a code may be the answer to another rank's end.
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
    """A note on deaths whose order is not certain."""
    ranks = sorted(death.rank for death in deaths if death.rank is not None)
    apart = (max(death.order for death in deaths) - min(death.order for death in deaths)) / 1e6
    return f"{named_ranks(ranks)} exited within {apart:.0f} ms according to the kernel: which came first is uncertain"


def _weight(death: Death) -> int:
    if death.killed_without_exception and -(death.code or 0) not in death.signals_sent:
        return 0
    return 1 if death.exception is not None else 2
