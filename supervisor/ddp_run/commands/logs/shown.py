"""Logs of a run through the console that a launch shows them with: the files as they are, or as they grow."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ddp_run.commands.logs.silence import Silence, said
from ddp_run.record import file_names
from ddp_run.record.rank_logs import AGENT, RankLog, agent_logs, attempts, rank_logs
from ddp_run.record.recorded_runs import RecordedRun, recorded_run
from ddp_run.tell.console import Console
from ddp_run.tell.tail import Chunk, Tailer
from ddp_run.values import terminal
from ddp_run.values.lines import Stream, neutral
from ddp_run.values.words import named_ranks, rank_list

_STDOUT = 1
_PIECE = 1 << 18
_BLOCK = 1 << 16
_LOOK_S = 0.25
"""How often it is looked for new files, and whether the run has ended."""
_LISTEN_S = 5.0
"""How often it is looked whether anything is written still, where that is all that can be seen of a run."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Whose logs are wanted, and how much of each."""

    run: Path
    ranks: tuple[tuple[int, int], ...] | None
    """First and last of each range; null: all."""
    stream: Stream | None
    attempt: int | None
    """Null: the last."""
    lines: int | None
    """The last so many of each file; null: all."""
    agent: bool

    def logs(self) -> list[RankLog]:
        """What of it there is now."""
        numbers = attempts(self.run)[-1:] if self.attempt is None else [self.attempt]
        found = agent_logs if self.agent else rank_logs
        return [log for number in numbers for log in found(self.run, number) if self._wants(log)]

    def _wants(self, log: RankLog) -> bool:
        if self.stream not in (None, log.stream):
            return False
        return self.ranks is None or any(first <= log.rank <= last for first, last in self.ranks)

    def start(self, log: RankLog) -> int:
        """Where in the file the first line begins that is to be shown. Raises OSError."""
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
    return f"it has those of {named_ranks(ranks)}"


def show_run(shown: Shown) -> bool:
    """Print the logs one after the other; False where there are none. Ends early when nobody reads it any more.

    Raises OSError where not all could be written.
    """
    logs = shown.logs()
    filled = [log for log in logs if _size(log.path)]
    console = _console(shown)
    for log in filled:
        if len(filled) > 1:
            console.say(f"==> {neutral(str(log.path.relative_to(shown.run)))} <==", time.monotonic())
        try:
            pieces = _pieces(log, shown.start(log))
            console.show_rest(partial(_next, pieces), _as_long_as_it_takes)
        except OSError as error:
            console.say(f"ddp-run: cannot read {neutral(str(log.path))}: {error.strerror}", time.monotonic())
        if console.outlets.gone:
            break
    console.finish(_as_long_as_it_takes)
    _check(console)
    return bool(logs)


def follow_run(shown: Shown) -> bool:
    """Print the logs as they grow, until the run has ended or nobody reads it any more; False where none have come.

    Raises OSError where not all could be written.
    """
    console = _console(shown)
    with Tailer() as tailer:
        following = _Following(shown, tailer, console)
        try:
            while following.goes_on():
                _move(tailer, console)
                if console.outlets.gone or not _wait(tailer, console):
                    _check(console)
                    return True
            tailer.stop_at_ends()
            console.show_rest(lambda _streams: tailer.read(), _as_long_as_it_takes)
            is_read = not console.outlets.gone
            console.finish(_as_long_as_it_takes)
        finally:
            console.suspend()
    if is_read and not following.has_verdict():
        sys.stderr.write(f"ddp-run: the run has ended without a verdict: {neutral(str(shown.run))}\n")
    _check(console)
    return following.has_found


def _check(console: Console) -> None:
    """A full disk loses what was to be shown; that nobody reads on is no error."""
    if console.outlets.error is not None and console.outlets.error.errno != errno.EPIPE:
        raise console.outlets.error


@dataclass
class _Following:
    shown: Shown
    tailer: Tailer
    console: Console
    _known: set[Path] = field(default_factory=set)
    _starts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By rank: the attempt and the restart that is followed."""
    _look_at: float = 0.0
    _silence: Silence = field(default_factory=Silence)
    _listen_at: float = 0.0

    def goes_on(self) -> bool:
        """Whether the run has not ended; now and then it is looked for that, and then for new files."""
        if time.monotonic() < self._look_at:
            return True
        run = recorded_run(self.shown.run)
        over = self.has_verdict() or run is None or run.alive is False or run.exit_code is not None
        if run is not None and run.alive is None and not over:
            self._listen(run)
        self._take_up_new()
        self._look_at = time.monotonic() + _LOOK_S
        return not over

    @property
    def has_found(self) -> bool:
        """Whether there was something to follow."""
        return bool(self._known)

    def has_verdict(self) -> bool:
        return (self.shown.run / file_names.VERDICT).exists()

    def _take_up_new(self) -> None:
        for log in self.shown.logs():
            if log.path in self._known:
                continue
            self._known.add(log.path)
            self._announce(log)
            try:
                first = not self._is_later(log)
                start = self.shown.start(log) if first else 0
                self.tailer.add(log.rank, log.rank, log.stream, log.path, start=start, links=log.links)
            except OSError:
                continue

    def _announce(self, log: RankLog) -> None:
        """A rank that starts again has other files."""
        start = (log.attempt, log.restart)
        before = self._starts.get(log.rank)
        if before == start:
            return
        if before is not None:
            self.tailer.retire(log.rank)
        if self._starts and start not in self._starts.values():
            folder = log.path.parent.parent if log.rank != AGENT else log.path.parent
            self.console.say(f"==> {neutral(str(folder.relative_to(self.shown.run)))} <==", time.monotonic())
        self._starts[log.rank] = start

    def _is_later(self, log: RankLog) -> bool:
        """Whether it was begun while it was followed: then all of it is new."""
        return (log.attempt, log.restart) != min(self._starts.values())

    def _listen(self, run: RecordedRun) -> None:
        """Say once when nothing is written any more."""
        now = time.monotonic()
        if now < self._listen_at:
            return
        self._listen_at = now + _LISTEN_S
        silent_s = self._silence.to_tell_s(_last_write_ns(run), time.time_ns(), now)
        if silent_s is not None:
            self.console.suspend()
            sys.stderr.write(said(run, silent_s, socket.gethostname()) + "\n")


def _last_write_ns(run: RecordedRun) -> int:
    """When its journal or a log of its last attempt was last written to; nanoseconds since the epoch."""
    logs = [log for number in attempts(run.folder)[-1:] for log in rank_logs(run.folder, number)]
    return max(run.written_ns, *(_modified_ns(log.path) for log in logs), 0)


def _modified_ns(path: Path) -> int:
    """0 where somebody has removed it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _console(shown: Shown) -> Console:
    """As a launch makes it; both streams go to standard output, so that a pipe has all of it."""
    return Console(
        _STDOUT,
        _STDOUT,
        prefix=(lambda _rank, _local_rank: "") if shown.agent else None,
        colour=not os.environ.get("NO_COLOR"),
        force_colour=terminal.colour_forced(),
    )


def _move(tailer: Tailer, console: Console) -> None:
    console.feed(tailer.read(streams=console.outlets.taking), time.monotonic())


def _wait(tailer: Tailer, console: Console) -> bool:
    """Until there is something to do, or it is time for a look; False where nobody reads standard output any more."""
    poll = select.poll()
    poll.register(_STDOUT, 0)  # errors are told without being asked for
    for fd in console.outlets.writable_fds:
        poll.register(fd, select.POLLOUT)
    waits = [_LOOK_S]
    if console.outlets.taking:
        tail = tailer.fileno()
        if tail is not None:
            poll.register(tail, select.POLLIN)
        pause_s = tailer.wait_s()
        if pause_s is not None:
            waits.append(pause_s)
    if console.deadline is not None:
        waits.append(max(0.0, console.deadline - time.monotonic()))
    ready = poll.poll(min(waits) * 1000)
    return not any(fd == _STDOUT and events & (select.POLLERR | select.POLLHUP) for fd, events in ready)


def _next(pieces: Iterator[Iterable[Chunk]], _streams: Collection[Stream]) -> Iterable[Chunk]:
    return next(pieces, ())


def _as_long_as_it_takes() -> float:
    return math.inf


def _pieces(log: RankLog, start: int) -> Iterator[Iterable[Chunk]]:
    """The file from a byte on. Raises OSError."""
    with log.open() as file:
        file.seek(start)
        while data := file.read(_PIECE):
            yield (Chunk(log.rank, log.rank, log.stream, data),)


def _size(path: Path) -> int:
    """Bytes; 0 where somebody has removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_lines(file: BinaryIO, count: int) -> int:
    """Where the last `count` lines begin; a line without its end counts."""
    end = file.seek(0, os.SEEK_END)
    if not count or not end:
        return end
    place = end - 1  # the line feed that ends the last line begins none
    while place > 0:
        block = max(0, place - _BLOCK)
        file.seek(block)
        data = file.read(place - block)
        found = _nth_last(data, count)
        if found is not None:
            return block + found + 1
        count -= data.count(b"\n")
        place = block
    return 0


def _nth_last(data: bytes, count: int) -> int | None:
    """The place of the line feed that is the `count`th from the end."""
    place = len(data)
    for _ in range(count):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return None
    return place
