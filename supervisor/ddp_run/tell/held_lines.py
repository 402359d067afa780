"""Lines that wait a moment before the console shows them: for equal lines of other ranks, or for their ends.

Values only: no files, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import Final, final

from ddp_run.values.lines import MAX_HELD, Stream

_SILENCE_S: Final = 0.2
"""A line without an end (a prompt) is shown after this many seconds."""


@final
class Group:
    """One line, and the ranks that wrote it."""

    __slots__ = ("at", "ranks", "stream", "text")

    def __init__(self, stream: Stream, text: bytes, rank: int, at: float) -> None:
        self.stream: Stream = stream
        self.text = text
        self.ranks = [rank]
        self.at = at
        """Seconds; its window runs from here."""


@final
class Collapser:
    """Joins equal lines of several ranks that come within a short window.

    The groups that wait stand in the order in which they are going to be shown. A line joins the earliest equal group
    after the last one that its rank shares with others; the lines that this rank alone wrote since are moved before
    it where they stand behind. So no rank's own order changes, nothing is lost, and a line of one rank between does
    not part the lines that follow.
    """

    __slots__ = ("_groups", "_shared", "_single", "_texts", "window_s")

    def __init__(self, window_s: float = 0.05) -> None:
        self.window_s = window_s
        self._groups: list[Group] = []
        self._texts: Counter[bytes] = Counter()
        self._shared: dict[int, Group] = {}
        self._single: dict[int, list[Group]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def deadline(self) -> float | None:
        """When the oldest group has waited long enough, on the clock of `add`; None while none waits."""
        return self._groups[0].at + self.window_s if self._groups else None

    def add(self, rank: int, stream: Stream, text: bytes, now: float) -> None:
        """Take one line, without its newline, that came at `now` seconds."""
        group = self._equal(rank, stream, text)
        if group is not None:
            self._join(rank, group)
            return
        group = Group(stream, text, rank, now)
        self._groups.append(group)
        self._texts[text] += 1
        self._single.setdefault(rank, []).append(group)

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

    def _equal(self, rank: int, stream: Stream, text: bytes) -> Group | None:
        if not self._texts[text]:
            return None
        shared = self._shared.get(rank)
        start = self._groups.index(shared) + 1 if shared else 0
        for group in islice(self._groups, start, None):
            if group.text == text and group.stream == stream and rank not in group.ranks:
                return group
        return None

    def _join(self, rank: int, group: Group) -> None:
        if len(group.ranks) == 1:
            owner = group.ranks[0]
            own = self._single.get(owner, [])
            if group in own:
                self._shared[owner] = group
                self._single[owner] = own[own.index(group) + 1 :]
        group.ranks.append(rank)
        self._shared[rank] = group
        self._move_before(group, self._single.pop(rank, []))

    def _move_before(self, group: Group, others: list[Group]) -> None:
        """Put those of `others` that stand behind `group` before it; its window is theirs then."""
        place = self._groups.index(group)
        behind = [other for other in others if self._groups.index(other) > place]
        for other in behind:
            self._groups.remove(other)
            other.at = min(other.at, group.at)
        self._groups[place:place] = behind

    def _take(self, count: int) -> list[Group]:
        taken, self._groups = self._groups[:count], self._groups[count:]
        if not self._groups:
            self._texts.clear()
            self._shared.clear()
            self._single.clear()
            return taken
        gone = set(taken)
        for group in taken:
            self._texts[group.text] -= 1
        self._shared = {rank: group for rank, group in self._shared.items() if group not in gone}
        for rank, own in self._single.items():
            self._single[rank] = [group for group in own if group not in gone]
        return taken


@final
class RawLines:
    """Holds the unfinished line of each rank's stream. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, Stream], tuple[bytes, float]] = {}

    def take(self, rank: int, stream: Stream, data: bytes, now: float) -> bytes:
        """The part of the stream that can be shown, once `data` follows the held bytes."""
        held, _since = self._held.pop((rank, stream), (b"", now))
        data = held + data
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - whole > MAX_HELD:
            whole = len(data)
        if whole < len(data):
            self._held[rank, stream] = (data[whole:], now)
        return data[:whole]

    @property
    def deadline(self) -> float | None:
        """When `due` has something; None if nothing is held."""
        return min((since + _SILENCE_S for _data, since in self._held.values()), default=None)

    def due(self, now: float) -> list[tuple[Stream, bytes]]:
        """What has waited long enough."""
        ready = [key for key, (_data, since) in self._held.items() if since + _SILENCE_S <= now]
        return [(key[1], self._held.pop(key)[0]) for key in ready]

    def rest(self, streams: Collection[Stream]) -> list[tuple[Stream, bytes]]:
        """Everything held of these streams, which have ended."""
        return [(key[1], self._held.pop(key)[0]) for key in list(self._held) if key[1] in streams]
