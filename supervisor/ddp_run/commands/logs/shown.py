"""The logs of a run that are wanted, shown through a launch's console: as they are, or while they grow.

Following goes on with new attempts and restarts, until the run has ended.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ddp_run.record import file_names
from ddp_run.record.events import RunStarted
from ddp_run.record.rank_logs import AGENT, RankLog, agent_logs, attempts, rank_logs
from ddp_run.record.recorded_runs import RecordedRun, recorded_run
from ddp_run.tell.console import Console
from ddp_run.tell.tail import Tailer
from ddp_run.values import terminal
from ddp_run.values.lines import Stream, neutral
from ddp_run.values.words import duration_in_words, named_ranks, rank_list

_STDOUT = 1
_PIECE = 1 << 18
_BLOCK = 1 << 16
_LOOK_S = 0.25
"""How often to look for new files, and whether the run has ended."""
_LISTEN_S = 5.0
"""How often to look whether anything is still written, if that is all this host can see of a run."""
SILENT_S = 150.0
"""While ranks run, the journal gets a line a minute, and a file server may show it a minute later."""
_CLOCKS_APART_S = 900.0
"""A file's date may differ this much from this host's clock without a meaning."""


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
        """The offset of the first line to show; 0 if it can't be read."""
        try:
            with log.open() as file:
                return 0 if self.lines is None else _last_lines(file, self.lines)
        except OSError:
            return 0


def why_none(shown: Shown) -> str:
    """Why there are no such logs: for people."""
    known = attempts(shown.run)
    if shown.attempt is not None and shown.attempt not in known:
        return f"it has no attempt {shown.attempt}" + (f", only {rank_list(known)}" if known else "")
    ranks = {log.rank for number in known[-1:] for log in rank_logs(shown.run, shown.attempt or number)}
    if shown.agent or not ranks:
        return "nothing has been written there"
    return f"it has logs of {named_ranks(ranks)}"


def show_run(shown: Shown) -> bool:
    """Print the logs one after the other; False if there are none. Ends early if the reader has gone.

    Raises OSError if not all could be written.
    """
    logs = shown.logs()
    filled = [log for log in logs if _written(log.path)[0]]
    console = _console_for(shown)
    for log in filled:
        if len(filled) > 1:
            console.say(f"==> {neutral(str(log.path.relative_to(shown.run)))} <==", time.monotonic())
        with Tailer(polling=True) as tailer:
            tailer.add(log.rank, log.rank, log.stream, log.path, start=shown.start(log), links=log.links)
            tailer.stop_at_ends()
            console.show_rest(partial(tailer.read, _PIECE), _no_limit)
            for note in tailer.take_notes():
                console.say(f"ddp-run: {neutral(note)}", time.monotonic())
        if console.outlets.err.gone:
            break
    console.finish(_no_limit)
    _checked(console)
    return bool(logs)


def _console_for(shown: Shown) -> Console:
    """A launch's console, with both streams on standard output, so that a pipe has all of it."""
    return Console(
        _STDOUT,
        _STDOUT,
        prefix=(lambda _rank, _local_rank: "") if shown.agent else None,
        colour=not os.environ.get("NO_COLOR"),
        force_colour=terminal.colour_forced(),
    )


def _checked(console: Console) -> None:
    """Raise OSError if lines were lost, as on a full disk; not if the reader has gone."""
    error = console.outlets.err.error
    if error is not None and error.errno != errno.EPIPE:
        raise error


def _no_limit() -> float:
    """Seconds to wait for the reader: however long it takes."""
    return math.inf


def _written(path: Path) -> tuple[int, int]:
    """Bytes, and nanoseconds since the epoch at the last write; zeros if the file is gone."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


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
        if not data.strip(b"\0"):  # a hole
            return place
        ends = data.count(b"\n")
        if ends >= count:
            return block + len(data) - len(data.split(b"\n", ends - count + 1)[-1])
        count, place = count - ends, block
    return 0


# --------------------------------------------------------------------------------------------------- following


def follow_run(shown: Shown) -> bool:
    """Print the logs as they grow, until the run has ended or the reader has gone; False if there were none.

    Raises OSError if not all could be written.
    """
    console = _console_for(shown)
    with Tailer() as tailer:
        following = _Following(shown, tailer, console)
        try:
            while following.goes_on():
                console.feed(tailer.read(streams=console.outlets.taking), time.monotonic())
                if console.outlets.err.gone or not _wait(tailer, console):
                    _checked(console)
                    return True
            tailer.stop_at_ends()
            console.show_rest(lambda _streams: tailer.read(), _no_limit)
            is_read = not console.outlets.err.gone
            console.finish(_no_limit)
        finally:
            console.suspend()
    if is_read and not following.has_verdict():
        sys.stderr.write(f"ddp-run: the run has ended without a verdict: {neutral(str(shown.run))}\n")
    _checked(console)
    return bool(following.known)


def _wait(tailer: Tailer, console: Console) -> bool:
    """Wait until something is due; False if the reader of standard output has gone."""
    poll = select.poll()
    poll.register(_STDOUT, 0)  # errors are reported unasked
    for fd in console.outlets.writable_fds:
        poll.register(fd, select.POLLOUT)
    waits = [_LOOK_S]
    if console.outlets.taking:
        tail, pause_s = tailer.fileno(), tailer.wait_s()
        if tail is not None:
            poll.register(tail, select.POLLIN)
        waits += [] if pause_s is None else [pause_s]
    if console.deadline is not None:
        waits.append(max(0.0, console.deadline - time.monotonic()))
    ready = poll.poll(min(waits) * 1000)
    return not any(fd == _STDOUT and events & (select.POLLERR | select.POLLHUP) for fd, events in ready)


@dataclass
class Silence:
    """How long nothing has been written by a run that may be still running, or not: this host can't tell.

    Its ddp-run, on another host or in another container, may have been killed with its host, or wait for hours: only
    people can know, so following goes on. `now` is in seconds of a monotonic clock.
    """

    _written_ns: int | None = None
    _since: float = 0.0
    _said: bool = False

    def to_tell_s(self, written_ns: int, wall_ns: int, now: float) -> float | None:
        """Seconds without a write, the first time that they are many; else None.

        `written_ns`: the last write, `wall_ns`: this host's date; nanoseconds since the epoch.
        """
        if written_ns != self._written_ns:
            age_s = (wall_ns - written_ns) / 1e9
            old = self._written_ns is None and age_s > _CLOCKS_APART_S
            self._written_ns, self._since, self._said = written_ns, now - age_s if old else now, False
        silent_s = now - self._since
        if self._said or silent_s < SILENT_S:
            return None
        self._said = True
        return silent_s


def said(run: RecordedRun, silent_s: float, here: str) -> str:
    """The line about a silence, without a newline; `here` is this host's name."""
    return (
        f"ddp-run: nothing has been written for {duration_in_words(silent_s)}; {_of(run.started, here)}, and this host "
        "cannot tell whether it is still running; still following, press Ctrl-C to stop"
    )


def _of(started: RunStarted | None, here: str) -> str:
    """Why this host cannot tell."""
    if started is not None and started.host != here:
        return f"the run belongs to host {neutral(started.host)}"
    if started is None or started.process is None:
        return "the journal does not name the process that writes it"
    return f"the run belongs to another container or an earlier boot of {neutral(here)}"


@dataclass
class _Following:
    shown: Shown
    tailer: Tailer
    console: Console
    known: set[Path] = field(default_factory=set)
    """The logs that were found so far."""
    _starts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By rank: the attempt and the restart that is followed."""
    _look_at: float = 0.0
    _silence: Silence = field(default_factory=Silence)
    _listen_at: float = 0.0

    def goes_on(self) -> bool:
        """Whether the run goes on; looks for that, and for new files, every now and then."""
        now = time.monotonic()
        if now < self._look_at:
            return True
        self._look_at = now + _LOOK_S
        run = recorded_run(self.shown.run)
        over = self.has_verdict() or run is None or run.alive is False or run.exit_code is not None
        if run is not None and run.alive is None and not over and now >= self._listen_at:
            self._listen_at = now + _LISTEN_S
            self._listen(run, now)
        for log in self.shown.logs():
            if log.path not in self.known:
                self.known.add(log.path)
                self._take_up(log)
        return not over

    def has_verdict(self) -> bool:
        return (self.shown.run / file_names.VERDICT).exists()

    def _take_up(self, log: RankLog) -> None:
        """Follow a new log; a rank that starts again has other files."""
        start = (log.attempt, log.restart)
        if log.rank in self._starts and self._starts[log.rank] != start:
            self.tailer.retire(log.rank)
        if self._starts and start not in self._starts.values():
            folder = log.path.parent.parent if log.rank != AGENT else log.path.parent
            self.console.say(f"==> {neutral(str(folder.relative_to(self.shown.run)))} <==", time.monotonic())
        self._starts[log.rank] = start
        begun_before = start == min(self._starts.values())  # else all of it is new
        offset = self.shown.start(log) if begun_before else 0
        self.tailer.add(log.rank, log.rank, log.stream, log.path, start=offset, links=log.links)

    def _listen(self, run: RecordedRun, now: float) -> None:
        """Say once when nothing is written any more."""
        logs = [log for number in attempts(run.folder)[-1:] for log in rank_logs(run.folder, number)]
        written_ns = max(run.written_ns, *(_written(log.path)[1] for log in logs), 0)
        silent_s = self._silence.to_tell_s(written_ns, time.time_ns(), now)
        if silent_s is not None:
            self.console.suspend()
            sys.stderr.write(said(run, silent_s, socket.gethostname()) + "\n")
