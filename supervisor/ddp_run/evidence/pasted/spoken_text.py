"""Puts the lines of several logs in one sequence, with the writer of each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted.json_lines import key_of, unfolded
from ddp_run.evidence.pasted.line_prefixes import Spoken, assign, without_colour
from ddp_run.record.events import Rank

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
    by: tuple[Spoken, ...]
    sources: tuple[tuple[LogText, int], ...]
    """For each line, its log and its index there."""
    ranks: int = 0
    """The number of ranks that launchers mention."""
    index: _Index = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", _Index(self.by))

    def text(self, indexes: Sequence[int]) -> LogText:
        """Return some of the lines with their numbers, under the name of the log that most of them are from."""
        if not indexes:
            return LogText("")
        source = Counter(self.sources[index][0].source for index in indexes).most_common(1)[0][0]
        kept = [index for index in indexes if self.sources[index][0].source == source]
        numbers = tuple(self.sources[index][0].number(self.sources[index][1]) or 0 for index in kept)
        return LogText(source, tuple(self.lines[index] for index in kept), numbers[0], numbers)

    @classmethod
    def of_logs(cls, logs: Sequence[Log]) -> SpokenText:
        """Concatenate the logs; a line that several processes wrote becomes several lines."""
        lines: list[str] = []
        by: list[Spoken] = []
        sources: list[tuple[LogText, int]] = []
        room = NAMED_BY_ALL
        for log in logs:
            key = key_of(log.text.lines)
            pieces = [(index, piece) for index, line in enumerate(log.text.lines) for piece in unfolded(line, key)]
            assigned = assign([without_colour(piece) for _index, piece in pieces], room)
            for (index, _piece), each in zip(pieces, assigned, strict=True):
                room -= len(each.ranks) if len(each.ranks) > 1 else 0
                lines.append(each.text)
                own = log.rank is not None and not each.ranks and not each.agent
                by.append(each._replace(ranks=(log.rank,)) if own and log.rank is not None else each)
                sources.append((log.text, index))
        return cls(tuple(lines), tuple(by), tuple(sources))

    def given_to_launchers(self, lines: set[int]) -> SpokenText:
        """Return a copy with these lines marked as launchers': they are not a rank's last words."""
        by = (each._replace(agent=True, ranks=()) if index in lines else each for index, each in enumerate(self.by))
        return replace(self, by=tuple(by)) if lines else self

    def ending(self, count: int) -> SpokenText:
        """Return the last `count` lines of each log."""
        kept = [k for k, (text, index) in enumerate(self.sources) if index >= len(text.lines) - count]
        if len(kept) == len(self.lines):
            return self
        each = ((self.lines[k], self.by[k], self.sources[k]) for k in kept)
        lines, by, sources = zip(*each, strict=True)
        return SpokenText(lines, by, sources)

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

    def __init__(self, by: Sequence[Spoken]) -> None:
        self.nobodys: list[int] = []
        self.by_place: dict[str | None, list[int]] = {}
        """Return the lines from one place, if they are not mixed with others' lines."""
        by_ranks: dict[tuple[Rank, ...], list[int]] = {}
        for index, each in enumerate(by):
            if each.ranks:
                by_ranks.setdefault(each.ranks, []).append(index)
            elif not each.agent:
                self.nobodys.append(index)
                self.by_place.setdefault(each.place, []).append(index)
        self.texts: dict[tuple[int, ...], LogText] = {}
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
