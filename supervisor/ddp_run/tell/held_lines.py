"""Lines that wait a moment before the console shows them: other ranks may write equal ones.

Values only: no files, no clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import final

from ddp_run.values.lines import Stream


@final
@dataclass(slots=True, eq=False)
class Group:
    """One line, and the ranks that wrote it. `at`: when its window began, in seconds."""

    stream: Stream
    text: bytes
    ranks: list[int]
    at: float


@final
class Collapser:
    """Joins equal lines of several ranks that come within a short window.

    The groups are in the order in which they will be shown. A line joins the earliest equal group after the last one
    that its rank shares with others. If lines that only this rank wrote come after that group, they're moved before it.
    So each rank's lines keep their order, none is lost, and a line that only one rank writes doesn't part the lines
    after it.
    """

    __slots__ = ("_groups", "_texts", "window_s")

    def __init__(self, window_s: float = 0.05) -> None:
        self.window_s = window_s
        self._groups: list[Group] = []
        self._texts: Counter[bytes] = Counter()
        """How many groups have this text: most lines are like no other, and need no search."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def deadline(self) -> float | None:
        """When the oldest group has waited long enough, on the clock of `add`; None while none waits."""
        return self._groups[0].at + self.window_s if self._groups else None

    def add(self, rank: int, stream: Stream, text: bytes, now: float) -> None:
        """Take one line, without its newline, that came at `now` seconds."""
        place = self._equal(rank, stream, text) if self._texts[text] else None
        if place is None:
            self._groups.append(Group(stream, text, [rank], now))
            self._texts[text] += 1
            return
        group, behind = self._groups[place], self._groups[place + 1 :]
        group.ranks.append(rank)
        own = [other for other in behind if other.ranks == [rank]]
        for other in own:
            other.at = min(other.at, group.at)  # nothing waits longer because of what was moved before it
        if own:
            self._groups[place:] = [*own, group, *(other for other in behind if other.ranks != [rank])]

    def due(self, now: float, ranks: int) -> list[Group]:
        """Groups to show now, oldest first: those of all `ranks` ranks, and those whose window is over."""
        count = 0
        for group in self._groups:
            if len(group.ranks) < ranks and now < group.at + self.window_s:
                break
            count += 1
        return self._take(count)

    def all(self) -> list[Group]:
        """Every waiting group, oldest first."""
        return self._take(len(self._groups))

    def _equal(self, rank: int, stream: Stream, text: bytes) -> int | None:
        """Where the earliest equal group is, after the last one that the rank shares."""
        found = None
        for behind, group in enumerate(reversed(self._groups), 1):
            if rank in group.ranks:
                if len(group.ranks) > 1:
                    break
            elif group.text == text and group.stream == stream:
                found = len(self._groups) - behind
        return found

    def _take(self, count: int) -> list[Group]:
        taken, self._groups = self._groups[:count], self._groups[count:]
        self._texts.subtract(group.text for group in taken)
        if not self._groups:
            self._texts.clear()
        return taken
