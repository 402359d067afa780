"""Which logs of a run are wanted; shows them as they are, through the console that a launch shows them with."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ddp_run.record.rank_logs import RankLog, agent_logs, attempts, rank_logs
from ddp_run.tell.console import Console
from ddp_run.tell.tail import Chunk
from ddp_run.values import terminal
from ddp_run.values.lines import Stream, neutral
from ddp_run.values.words import named_ranks, rank_list

STDOUT = 1
_PIECE = 1 << 18
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Shown:
    """Whose logs are wanted, and how much of each; None: all, and of `attempt` the last."""

    run: Path
    ranks: tuple[tuple[int, int], ...] | None
    """First and last of each range."""
    stream: Stream | None
    attempt: int | None
    lines: int | None
    """The last lines of each file."""
    agent: bool

    def logs(self) -> list[RankLog]:
        """The logs that there are now."""
        numbers = attempts(self.run)[-1:] if self.attempt is None else [self.attempt]
        found = agent_logs if self.agent else rank_logs
        return [log for number in numbers for log in found(self.run, number) if self._wants(log)]

    def _wants(self, log: RankLog) -> bool:
        if self.stream not in (None, log.stream):
            return False
        return self.ranks is None or any(first <= log.rank <= last for first, last in self.ranks)

    def start(self, log: RankLog) -> int:
        """The offset of the first line to show. Raises OSError."""
        if self.lines is None:
            return 0
        with log.open() as file:
            return _last_lines(file, self.lines)


def why_none(shown: Shown) -> str:
    """Why there are no such logs: for people."""
    known = attempts(shown.run)
    if shown.attempt is not None and shown.attempt not in known:
        return f"it has no attempt {shown.attempt}" + (f", but {rank_list(known)}" if known else "")
    ranks = {log.rank for number in known[-1:] for log in rank_logs(shown.run, shown.attempt or number)}
    if shown.agent or not ranks:
        return "nothing has been written there"
    return f"it has logs of {named_ranks(ranks)}"


def show_run(shown: Shown) -> bool:
    """Print the logs one after the other; False if there are none. Ends early if nobody reads them any more.

    Raises OSError if not all could be written.
    """
    logs = shown.logs()
    filled = [log for log in logs if _size(log.path)]
    console = console_for(shown)
    for log in filled:
        if len(filled) > 1:
            console.say(f"==> {neutral(str(log.path.relative_to(shown.run)))} <==", time.monotonic())
        try:
            pieces = _pieces(log, shown.start(log))
            console.show_rest(partial(_next, pieces), no_limit)
        except OSError as error:
            console.say(f"ddp-run: cannot read {neutral(str(log.path))}: {error.strerror}", time.monotonic())
        if console.outlets.gone:
            break
    console.finish(no_limit)
    checked(console)
    return bool(logs)


def console_for(shown: Shown) -> Console:
    """A launch's console, with both streams on standard output, so that a pipe has all of it."""
    return Console(
        STDOUT,
        STDOUT,
        prefix=(lambda _rank, _local_rank: "") if shown.agent else None,
        colour=not os.environ.get("NO_COLOR"),
        force_colour=terminal.colour_forced(),
    )


def checked(console: Console) -> None:
    """Raise OSError if lines were lost (a full disk), unless because nobody reads them any more."""
    if console.outlets.error is not None and console.outlets.error.errno != errno.EPIPE:
        raise console.outlets.error


def no_limit() -> float:
    """Seconds to wait for the reader: however long it takes."""
    return math.inf


def _pieces(log: RankLog, start: int) -> Iterator[Iterable[Chunk]]:
    """The file from byte `start` on. Raises OSError."""
    with log.open() as file:
        file.seek(start)
        while data := file.read(_PIECE):
            yield (Chunk(log.rank, log.rank, log.stream, data),)


def _next(pieces: Iterator[Iterable[Chunk]], _streams: Collection[Stream]) -> Iterable[Chunk]:
    return next(pieces, ())


def _size(path: Path) -> int:
    """Bytes; 0 if the file is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_lines(file: BinaryIO, count: int) -> int:
    """The offset of the last `count` lines; an unfinished line counts."""
    end = file.seek(0, os.SEEK_END)
    if not count or not end:
        return end
    place = end - 1  # the line feed that ends the last line begins none
    while place > 0:
        block = max(0, place - _BLOCK)
        file.seek(block)
        data = file.read(place - block)
        ends = data.count(b"\n")
        if ends >= count:
            return block + len(data) - len(data.split(b"\n", ends - count + 1)[-1])
        count, place = count - ends, block
    return 0
