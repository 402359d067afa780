"""Puts the lines of several logs in one sequence, with the writer of each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted import labels, only_shown
from ddp_run.evidence.pasted.json_lines import key_of, unfolded
from ddp_run.evidence.pasted.line_prefixes import OF_PROCESS, Writer, assign, without_colour
from ddp_run.evidence.went_on import WentOn
from ddp_run.record.events import Rank

_Of = TypeVar("_Of")
LINES_OF_ALL = 1_000_000
"""The most lines kept for all ranks together: an unnamed line may be any rank's, so each gets it."""
LINES_OF_ONE = 2_000
NAMED_BY_ALL = 128 << 10
"""The most rank mentions in total: five lines of `[rank0-4095]: …` name 20,480."""


@dataclass(frozen=True, slots=True)
class Log:
    """One text to explain; `rank` if its file name shows one."""

    text: LogText
    rank: Rank | None = None


@dataclass(frozen=True, slots=True)
class SpokenText:
    """All lines of all logs in one sequence, and the writer of each."""

    lines: tuple[str, ...]
    by: tuple[Writer, ...]
    sources: tuple[str, ...]
    """The name of each line's log."""
    numbers: tuple[int, ...]
    """The number of each line there, from 1; 0 if unknown."""
    raw: tuple[str, ...]
    """Each line as it stands in its log, with the prefix of every line: that may be a stamp."""
    ranks: int = 0
    """The number of ranks that launchers mention."""
    index: _Index = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", _Index(self.by))

    def text(self, indexes: Sequence[int]) -> LogText:
        """Return some of the lines with their numbers, under the name of the log that most of them are from."""
        if not indexes:
            return LogText("")
        (source, count), *_ = Counter(map(self.sources.__getitem__, indexes)).most_common(1)
        kept = indexes if count == len(indexes) else [index for index in indexes if self.sources[index] == source]
        numbers = tuple(map(self.numbers.__getitem__, kept))
        return LogText(source, tuple(map(self.lines.__getitem__, kept)), numbers[0], numbers)

    @classmethod
    def of_logs(cls, logs: Sequence[Log]) -> SpokenText:
        """Concatenate the logs; a line that several processes wrote becomes several lines."""
        lines: list[str] = []
        by: list[Writer] = []
        sources: list[str] = []
        numbers: list[int] = []
        raw: list[str] = []
        room = NAMED_BY_ALL
        for log in logs:
            key, pieces = key_of(log.text.lines), list[str]()
            for index, line in enumerate(log.text.lines):
                more = unfolded(line, key)
                pieces += map(without_colour, more)
                numbers += [log.text.number(index) or 0] * len(more)
                raw += [line] * len(more)
            texts, writers = assign(pieces, room)
            writers = labels.of_the_job(texts, labels.continued(texts, labels.ranked(texts, writers)))
            room -= sum(len(each.ranks) for each in writers if len(each.ranks) > 1)
            if log.rank is not None:
                own = (log.rank,)
                writers = [each if each.ranks or each.agent else each._replace(ranks=own) for each in writers]
            lines += texts
            by += writers
            sources += [log.text.source] * len(texts)
        for index in only_shown.indexes(lines, [each.start for each in by]):
            lines[index] = ""
            by[index] = by[index]._replace(start=0)
        return cls(tuple(lines), tuple(by), tuple(sources), tuple(numbers), tuple(raw))

    def given_to_launchers(self, lines: set[int], ranks: int = 0) -> SpokenText:
        """Return a copy with these lines marked as launchers', which mention `ranks`: no rank's last words."""
        if not lines and not ranks:
            return self
        by = list(self.by)
        for index in lines:
            by[index] = by[index]._replace(agent=True, ranks=())
        return replace(self, by=tuple(by), ranks=ranks)

    def given_to(self, ranks: tuple[Rank, ...], index: int) -> SpokenText:
        """Return a copy in which this line is theirs."""
        by = list(self.by)
        by[index] = by[index]._replace(ranks=ranks)
        return replace(self, by=tuple(by))

    def ending(self, count: int) -> SpokenText:
        """Return the last `count` lines of each log."""
        left = Counter[str]()
        kept: list[int] = []
        for index in range(len(self.lines) - 1, -1, -1):
            left[self.sources[index]] += 1
            if left[self.sources[index]] <= count:
                kept.append(index)
        if len(kept) == len(self.lines):
            return self
        kept.reverse()

        def part(of: Sequence[_Of]) -> tuple[_Of, ...]:
            return tuple(map(of.__getitem__, kept))

        return SpokenText(part(self.lines), part(self.by), part(self.sources), part(self.numbers), part(self.raw))

    def without_names(self) -> list[str]:
        """Return the lines without the names of their writers."""
        return [line[each.start :] for line, each in zip(self.lines, self.by, strict=True)]

    def running_at(self) -> int:
        """Return an index: after each launcher's line before it, programs went on. -1: after none."""
        if self.index.running is None:
            others = [index for index, each in enumerate(self.by) if not each.agent]
            running = WentOn([self.lines[index] for index in others]).running
            self.index.running = others[running] if running >= 0 else -1
        return self.index.running

    def said_by(self, rank: Rank | None) -> LogText:
        """Return the text of these lines; shared by all ranks that are never named, or always together."""
        groups = self.index.by_rank.get(rank, ()) if rank is not None else ()
        if groups not in self.index.texts:
            self.index.texts[groups] = self.text(self.of(rank))
        return self.index.texts[groups]

    def of(self, rank: Rank | None) -> list[int]:
        """Return the lines that a rank wrote or may have written; only the last ones if ranks and lines are many."""
        most = max(LINES_OF_ONE, LINES_OF_ALL // max(1, self.ranks, len(self.index.by_rank)))
        own = self.index.own(rank)[-most:]
        return sorted([*own, *self.index.nobodys[-most:]])[-most:] if own else self.index.nobodys[-most:]


class _Index:
    """Lines by writer. Ranks that are always named together share one list."""

    def __init__(self, by: Sequence[Writer]) -> None:
        self.nobodys: list[int] = []
        self.by_place: dict[str | None, list[int]] = {}
        """The lines from each place. Those of a server's processes are together, with those of no place."""
        by_ranks: dict[tuple[Rank, ...], list[int]] = {}
        for index, each in enumerate(by):
            if each.ranks:
                by_ranks.setdefault(each.ranks, []).append(index)
            elif not each.agent:
                self.nobodys.append(index)
                server = each.place is None or each.place.startswith(OF_PROCESS)
                self.by_place.setdefault(None if server else each.place, []).append(index)
        places = [each.place for each in by if each.place is not None]
        self.one_by_one = 1 < len(set(places)) == 1 + sum(one != other for one, other in pairwise(places))
        """Whether the lines from each place follow those from another: what stands below isn't later."""
        self.texts: dict[tuple[int, ...], LogText] = {}
        self.running: int | None = None
        self.groups = list(by_ranks.values())
        named: dict[Rank, list[int]] = {}
        for group, ranks in enumerate(by_ranks):
            for rank in ranks:
                named.setdefault(rank, []).append(group)
        self.by_rank = {rank: tuple(groups) for rank, groups in named.items()}
        """For each rank, the groups in which it is named."""

    def own(self, rank: Rank | None) -> list[int]:
        """Return the lines that name the rank."""
        groups = self.by_rank.get(rank, ()) if rank is not None else ()
        return sorted(index for group in groups for index in self.groups[group])

    def own_lists(self) -> list[list[int]]:
        """Return the same for every rank, lowest first; once for ranks that are always named together."""
        first = {groups: rank for rank, groups in sorted(self.by_rank.items(), reverse=True)}
        return [self.own(rank) for rank in sorted(first.values())]
