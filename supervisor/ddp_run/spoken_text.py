"""The lines of several logs in one row, and who wrote each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_run.events import Rank
from ddp_run.speakers import Spoken, assign, unfolded, without_colour
from ddp_run.verdict import LogText


@dataclass(frozen=True, slots=True)
class Log:
    """One text to explain; `rank` where its file's name tells."""

    text: LogText
    rank: Rank | None = None


@dataclass(frozen=True, slots=True)
class SpokenText:
    """All lines of all logs in one row, and who wrote each."""

    lines: tuple[str, ...]
    by: tuple[Spoken, ...]
    sources: tuple[tuple[LogText, int], ...]
    """For each line its log and its index there."""

    def text(self, indexes: Sequence[int]) -> LogText:
        """Some of the lines, numbers kept, under the name of the log that most of them are from."""
        if not indexes:
            return LogText("")
        named = [self.sources[index][0].source for index in indexes]
        source = max(dict.fromkeys(named), key=named.count)
        kept = [index for index in indexes if self.sources[index][0].source == source]
        numbers = tuple(self.sources[index][0].number(self.sources[index][1]) or 0 for index in kept)
        return LogText(source, tuple(self.lines[index] for index in kept), numbers[0], numbers)

    @classmethod
    def of_logs(cls, logs: Sequence[Log]) -> SpokenText:
        """The logs one after the other; a line that several processes wrote is several lines."""
        lines: list[str] = []
        by: list[Spoken] = []
        sources: list[tuple[LogText, int]] = []
        for log in logs:
            pieces = [(index, piece) for index, line in enumerate(log.text.lines) for piece in unfolded(line)]
            assigned = assign([without_colour(piece) for _index, piece in pieces])
            for (index, _piece), each in zip(pieces, assigned, strict=True):
                lines.append(each.text)
                own = log.rank is not None and not each.ranks and not each.agent
                by.append(each._replace(ranks=(log.rank,)) if own and log.rank is not None else each)
                sources.append((log.text, index))
        return cls(tuple(lines), tuple(by), tuple(sources))

    def given_to_launchers(self, lines: set[int]) -> SpokenText:
        """The same with these lines said to be launchers': they are no last words of a rank."""
        by = (each._replace(agent=True, ranks=()) if index in lines else each for index, each in enumerate(self.by))
        return replace(self, by=tuple(by)) if lines else self

    def of(self, rank: Rank | None) -> list[int]:
        """The lines that a rank wrote or may have written."""
        return [
            index
            for index, each in enumerate(self.by)
            if not each.agent and (not each.ranks or (rank is not None and rank in each.ranks))
        ]
