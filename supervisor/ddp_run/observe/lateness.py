"""Which rank the others of this node wait for in their collectives, again and again. Pure.

Ranks of one job make as many steps as each other however slow one of them is: steps do not show it. When each of them
entered a collective does, and torch's flight recorder keeps that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ddp_run.record.events import Rank

Entered = Mapping[tuple[str, int], int]
"""When a rank entered a collective, in nanoseconds of the host's clock, by process group and number."""

_AT_LEAST = 20
"""Collectives that must be there to compare."""
_WAITS_AT_LEAST = 8
"""Those among them in which somebody was waited for: one of a step's, where the others follow at once."""
_MOSTLY = 0.8
_WORTH = 0.2
"""Of a step's time: less is not worth a word."""
_WORTH_S = 0.02


@dataclass(frozen=True, slots=True)
class Late:
    """The rank that came last to so many `times` of the `compared` collectives in which somebody was waited for.

    `waited_s`: how long the others waited for it, typically.
    """

    rank: Rank
    times: int
    compared: int
    waited_s: float

    def matters(self, step_s: float) -> bool:
        """Whether it costs the job time; `step_s` is the usual time of a step, 0 where it is not known."""
        mostly = self.compared >= _WAITS_AT_LEAST and self.times >= _MOSTLY * self.compared
        return mostly and step_s > 0 and self.waited_s >= max(_WORTH_S, _WORTH * step_s)


@dataclass
class LateWatch:
    """Compares again and again, and tells of a rank once: when it was late twice in a row."""

    _late: Rank | None = None
    _told: Rank | None = None

    def compare(self, entered: Mapping[Rank, Entered], step_s: float) -> Late | None:
        """The rank to tell of now; null as a rule."""
        late = latest(entered)
        if late is None or not late.matters(step_s):
            self._late = None
            return None
        again, self._late = late.rank == self._late, late.rank
        if not again or late.rank == self._told:
            return None
        self._told = late.rank
        return late


def latest(entered: Mapping[Rank, Entered]) -> Late | None:
    """Who is last most often where somebody was waited for; null where nobody was, or too few can be compared.

    A collective that all enter together says nothing: who is last there is chance.
    """
    if len(entered) < 2:
        return None
    common = set.intersection(*(set(each) for each in entered.values()))
    if len(common) < _AT_LEAST:
        return None
    waited: dict[Rank, list[float]] = {}
    for collective in common:
        times = {rank: each[collective] for rank, each in entered.items()}
        last = max(times, key=lambda rank: (times[rank], rank))
        others = median(time for rank, time in times.items() if rank != last)
        waited_s = (times[last] - others) / 1e9
        if waited_s >= _WORTH_S:
            waited.setdefault(last, []).append(waited_s)
    if not waited:
        return None
    rank = max(waited, key=lambda each: (len(waited[each]), -each))
    return Late(rank, len(waited[rank]), sum(map(len, waited.values())), median(waited[rank]))
