"""Shows the logs of a run while they grow, with new attempts and restarts, until the run has ended."""

from __future__ import annotations

import select
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ddp_run.commands.logs.shown import STDOUT, Shown, checked, console_for, no_limit
from ddp_run.record import file_names
from ddp_run.record.events import RunStarted
from ddp_run.record.rank_logs import AGENT, RankLog, attempts, rank_logs
from ddp_run.record.recorded_runs import RecordedRun, recorded_run
from ddp_run.tell.console import Console
from ddp_run.tell.tail import Tailer
from ddp_run.values.lines import neutral
from ddp_run.values.words import duration_in_words

_LOOK_S = 0.25
"""How often to look for new files, and whether the run has ended."""
_LISTEN_S = 5.0
"""How often to look whether anything is still written, if that is all this host can see of a run."""
SILENT_S = 150.0
"""While ranks run, the journal gets a line a minute, and a file server may show it a minute later."""
_CLOCKS_APART_S = 900.0
"""A file's date may differ this much from this host's clock without a meaning."""


def follow_run(shown: Shown) -> bool:
    """Print the logs as they grow, until the run has ended or nobody reads them any more; False if there were none.

    Raises OSError if not all could be written.
    """
    console = console_for(shown)
    with Tailer() as tailer:
        following = _Following(shown, tailer, console)
        try:
            while following.goes_on():
                console.feed(tailer.read(streams=console.outlets.taking), time.monotonic())
                if console.outlets.gone or not _wait(tailer, console):
                    checked(console)
                    return True
            tailer.stop_at_ends()
            console.show_rest(lambda _streams: tailer.read(), no_limit)
            is_read = not console.outlets.gone
            console.finish(no_limit)
        finally:
            console.suspend()
    if is_read and not following.has_verdict():
        sys.stderr.write(f"ddp-run: the run has ended without a verdict: {neutral(str(shown.run))}\n")
    checked(console)
    return bool(following.known)


def _wait(tailer: Tailer, console: Console) -> bool:
    """Wait until something is due; False if nobody reads standard output any more."""
    poll = select.poll()
    poll.register(STDOUT, 0)  # errors are reported unasked
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
    return not any(fd == STDOUT and events & (select.POLLERR | select.POLLHUP) for fd, events in ready)


@dataclass
class Silence:
    """How long a run has written nothing of which this host cannot tell whether it is still running.

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
        try:
            offset = self.shown.start(log) if begun_before else 0
            self.tailer.add(log.rank, log.rank, log.stream, log.path, start=offset, links=log.links)
        except OSError:
            pass

    def _listen(self, run: RecordedRun, now: float) -> None:
        """Say once when nothing is written any more."""
        logs = [log for number in attempts(run.folder)[-1:] for log in rank_logs(run.folder, number)]
        written_ns = max(run.written_ns, *(_modified_ns(log.path) for log in logs), 0)
        silent_s = self._silence.to_tell_s(written_ns, time.time_ns(), now)
        if silent_s is not None:
            self.console.suspend()
            sys.stderr.write(said(run, silent_s, socket.gethostname()) + "\n")


def _modified_ns(path: Path) -> int:
    """Nanoseconds since the epoch; 0 if the file is gone."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
