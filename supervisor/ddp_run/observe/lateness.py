"""The rank, or the node, that comes last to collectives while the others wait for it. Pure.

Ranks of one job make equally many steps however slow one of them is, so steps don't show a straggler. The times at
which each rank entered a collective do. All are on one clock: those of other nodes are corrected before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from ddp_run.observe.collectives import Entered
from ddp_run.record.events import MonotonicNs, Rank, StragglerSeen
from ddp_run.values.typed_fields import frozen

_AT_LEAST = 20
"""How many collectives it takes to compare ranks."""
_WAITS_AT_LEAST = 8
"""In how many of them a rank must have been waited for: one per step, if the others follow at once."""
_MOSTLY = 0.8
_WORTH = 0.2
"""Waits shorter than this share of a step aren't worth a word."""
_WORTH_S = 0.02
_SECOND = 1_000_000_000
_Who = TypeVar("_Who", bound=int)


@dataclass(frozen=True, slots=True)
class Late:
    """Who came last to `times` of the `compared` collectives in which the others waited for one.

    `who`: a rank, or a node. `waited_s`: how long the others typically waited.
    """

    who: int
    times: int
    compared: int
    waited_s: float

    def matters(self, step_s: float) -> bool:
        """Whether it costs the job time. `step_s`: the usual time of a step, 0 if unknown."""
        mostly = self.compared >= _WAITS_AT_LEAST and self.times >= _MOSTLY * self.compared
        return mostly and step_s > 0 and self.waited_s >= max(_WORTH_S, _WORTH * step_s)

    def seen(self, at: MonotonicNs, step_s: float) -> StragglerSeen:
        """The event about a rank."""
        seconds = round(self.waited_s, 3), round(step_s, 3)
        return StragglerSeen(at, Rank(self.who), self.times, self.compared, *seconds)


@dataclass
class LateWatch:
    """Compares again and again, and names one once: when it was late twice in a row."""

    _late: int | None = None
    _told: int | None = None

    def compare(self, entered: Mapping[_Who, Entered], step_s: float) -> Late | None:
        """Who should be named now, usually nobody."""
        late = latest(entered)
        if late is None or not late.matters(step_s):
            self._late = None
            return None
        again, self._late = late.who == self._late, late.who
        if not again or late.who == self._told:
            return None
        self._told = late.who
        return late


def latest(entered: Mapping[_Who, Entered]) -> Late | None:
    """Who is last most often when one is waited for; None if nobody is, or too little can be compared.

    Collectives that all enter together say nothing: who is last there is chance.
    """
    common = set.intersection(*(set(each) for each in entered.values())) if len(entered) > 1 else set()
    if len(common) < _AT_LEAST:
        return None
    waited: dict[int, list[float]] = {}
    for collective in common:
        times = {who: each[collective] for who, each in entered.items()}
        last = max(times, key=lambda who: (times[who], who))
        others = median(time for who, time in times.items() if who != last)
        waited_s = (times[last] - others) / _SECOND
        if waited_s >= _WORTH_S:
            waited.setdefault(last, []).append(waited_s)
    if not waited:
        return None
    who = max(waited, key=lambda each: (len(waited[each]), -each))
    return Late(who, len(waited[who]), sum(map(len, waited.values())), median(waited[who]))


# ------------------------------------------------------------------------------------------- several nodes


@frozen
class Arrivals:
    """When one node's ranks came to collectives: for each, its group and number, who came last, and when.

    `peers`: when its other ranks typically came; the same as `at` if there are none. Times in nanoseconds of the node's
    wall clock (torch 2.13, c10/util/ApproximateClock.h). `step_s`: the usual time of a step.
    """

    ranks: tuple[Rank, ...]
    step_s: float
    groups: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    last: tuple[Rank, ...] = ()
    at: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()

    def entered(self, ahead_ns: int) -> Entered:
        """When the node as a whole entered each: its last rank did. `ahead_ns`: its clock minus ours."""
        keys = zip(self.groups, self.numbers, strict=True)
        return {key: at - ahead_ns for key, at in zip(keys, self.at, strict=True)}

    def seen(self, at: MonotonicNs, late: Late, node: str) -> StragglerSeen:
        """The event about this node, called `node`; about one rank of it if its peers come well before that one."""
        apart = Counter(
            rank
            for rank, came, peers in zip(self.last, self.at, self.peers, strict=True)
            if (came - peers) / _SECOND >= late.waited_s / 2
        )
        alone = [rank for rank, times in apart.items() if times >= _MOSTLY * late.times] or self.ranks
        event = replace(late, who=min(alone)).seen(at, self.step_s)
        return replace(event, node=node, ranks=self.ranks if len(alone) > 1 else ())


def arrivals(entered: Mapping[Rank, Entered], step_s: float) -> Arrivals:
    """What a node's ranks show. A collective counts if all of them that use its group have entered it."""
    users: dict[str, set[Rank]] = {}
    times: dict[tuple[str, int], dict[Rank, int]] = {}
    for rank, each in entered.items():
        for key, at in each.items():
            users.setdefault(key[0], set()).add(rank)
            times.setdefault(key, {})[rank] = at
    rows = []
    for (group, number), came in sorted(times.items()):
        if came.keys() == users[group]:
            last = max(came, key=lambda rank: (came[rank], rank))
            peers = [at for rank, at in came.items() if rank != last] or [came[last]]
            rows.append((group, number, last, came[last], round(median(peers))))
    ranks = tuple(sorted(entered))
    return Arrivals(ranks, step_s, *zip(*rows, strict=True)) if rows else Arrivals(ranks, step_s)
