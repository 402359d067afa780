"""ddp-run's two streams: the ranks' lines, shown by the console, and ddp-run's own messages in between.

With `--log-format json`, each of ddp-run's own messages is one JSON object a line on stderr, by structlog. Plain ones
have no structure; loading structlog for them would take 0.08 s of CPU in every launch.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast, final

from ddp_run.record.events import Event, Rank, RankFailed
from ddp_run.tell.console import Console
from ddp_run.tell.outlet import Outlet
from ddp_run.tell.tail import POLL_S, Tailer
from ddp_run.tell.told import failed_words, told
from ddp_run.values import terminal
from ddp_run.values.lines import STREAMS, neutral
from ddp_run.values.redaction import redact
from ddp_run.values.words import named_ranks, size_in_words

STDOUT, STDERR = 1, 2
AT_THE_END_S = 60.0
"""How long the end of a job waits for the console's readers, in total."""
BETWEEN_ATTEMPTS_S = 10.0
"""The same before another attempt."""
LEAST_S = 2.0
"""The shortest such time, however little is left."""
_LAST_WORDS_S = 1.0
"""How much of that time is left after a signal to stop; after a second one, none."""
_COUNT_S = 1.0
"""How long to count the lines that aren't shown."""
_TAIL_BUDGET = 1 << 20


@final
class Patience:
    """How long to wait for the console's readers: half of the time for ranks' lines, all of it for ddp-run's own.

    `stopped` says whether a signal to stop has come since its last call. `clock` is in seconds.
    """

    def __init__(
        self, seconds: float, stopped: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._stopped = stopped
        self._until = clock() + seconds
        self._ranks_until = clock() + seconds / 2

    def for_ranks(self) -> float:
        """Seconds left for the ranks' lines; 0 or less: none."""
        self._hear()
        return self._ranks_until - self._clock()

    def for_own(self) -> float:
        """Seconds left for ddp-run's own lines."""
        self._hear()
        return self._until - self._clock()

    def add(self, seconds: float) -> None:
        """Don't count these seconds: they weren't spent waiting for the console."""
        self._until += seconds
        self._ranks_until += seconds

    def _hear(self) -> None:
        if self._stopped():
            now = self._clock()
            hurried = self._ranks_until <= now
            self._ranks_until = now
            self._until = now if hurried else min(self._until, now + _LAST_WORDS_S)


class Descriptors(Protocol):
    """What waits for descriptors: `ddp_run.supervise.loop.Loop`."""

    def watch(self, fd: int, handler: Callable[[], None], *, write: bool = False) -> None:
        """Call `handler` when `fd` can be read, or written."""

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`."""


@final
class Output:
    """Moves the ranks' lines to the console, and writes ddp-run's own."""

    def __init__(self, console: Console, loop: Descriptors, *, json: bool) -> None:
        """`json`: whether ddp-run's own messages are JSON."""
        self.console = console
        self.json = json
        self.colour = terminal.colour(sys.stderr)
        self._loop = loop

    # ------------------------------------------------------------------- the ranks' lines

    def pump(self, tailer: Tailer) -> None:
        """Show what the ranks have written, as much as the console takes; the rest stays in the files."""
        self.console.feed(tailer.read(_TAIL_BUDGET, self.console.outlets.taking), time.monotonic())
        tail = tailer.fileno()
        if tail is not None:
            if self.console.outlets.taking == STREAMS:
                self._loop.watch(tail, _wake)
            else:
                self._loop.unwatch(tail)
        waiting = self.console.outlets.writable_fds
        for fd in (STDOUT, STDERR):
            if fd in waiting:
                self._loop.watch(fd, _wake, write=True)
            else:
                self._loop.unwatch(fd)

    def wait_s(self, tailer: Tailer) -> float | None:
        """Seconds until `pump` is due even if nothing happens; None: never."""
        waits = []
        if self.console.deadline is not None:
            waits.append(max(0.0, self.console.deadline - time.monotonic()))
        taking = self.console.outlets.taking
        pause_s = tailer.wait_s(taking)
        if pause_s is not None:
            waits.append(pause_s)
        if taking and taking != STREAMS:  # file events are off: they would be for both streams
            waits.append(POLL_S)
        return min(waits, default=None)

    def show_rest(self, tailer: Tailer, folder: Path, patience: Patience, *, before_own: bool = False) -> None:
        """Show the rest of the output of an attempt that has ended, while there is time; say how much isn't shown.

        `before_own`: only what belongs before ddp-run's own lines, and as much for a separate stdout as it takes.
        """
        tailer.stop_at_ends()
        streams = self.console.outlets.with_own if before_own else STREAMS
        read = partial(tailer.read, _TAIL_BUDGET)
        if self.console.show_rest(read, patience.for_ranks, streams):
            return
        (lines, size), least = self.console.drop(streams), ""
        until = time.monotonic() + _COUNT_S
        while chunks := read(streams):
            more, bytes_more = self.console.unshown(chunks)
            lines, size = lines + more, size + bytes_more
            if time.monotonic() >= until:
                least = "at least "
                break
        if size:
            self.say(
                f"{least}{lines} lines of the ranks not shown ({size_in_words(size)}): they were not read in time; "
                f"see {neutral(str(folder))}",
                level="warning",
            )

    def end_attempt(self, tailer: Tailer) -> None:
        """Close the attempt's files; nothing more of it is shown."""
        self.console.end_attempt(time.monotonic())
        for fd in (tailer.fileno(), STDOUT, STDERR):
            if fd is not None:
                self._loop.unwatch(fd)
        tailer.close()

    # ------------------------------------------------------------------ ddp-run's own messages

    @cached_property
    def _log(self) -> Any:
        sys.modules.setdefault("rich", cast(ModuleType, None))  # structlog loads it if it can: 0.1 s for nothing here
        import structlog

        if sys.modules["rich"] is None:
            del sys.modules["rich"]
        return structlog.wrap_logger(
            _ConsoleLogger(self._own_line),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
        )

    def load(self) -> None:
        """Load what the first message needs, ahead of it."""
        if self.json:
            _ = self._log

    def say(self, message: str, *, level: str = "info", **fields: Any) -> None:
        """Say one of ddp-run's own messages; only JSON shows the `fields`."""
        message = redact(message)
        if self.json:
            getattr(self._log, level)(message, **fields)
        else:
            self._own_line(f"ddp-run: {message}" if level == "info" else f"ddp-run: {level}: {message}")

    def _own_line(self, line: str) -> None:
        self.console.say(line.rstrip("\n"), time.monotonic())

    def tell(self, event: Event) -> None:
        """Say at once what people should know about an event. Most events aren't mentioned."""
        for level, line in told(event, quotes=not self.json):
            self.say(line, level=level)

    def tell_failed(self, failed: RankFailed) -> None:
        """Say that a rank's program failed although its process exited with code 0."""
        then = "its process has exited with code 0, which counts as success, so the other ranks keep running"
        self.say(f"{failed_words(failed)}; {then}", level="warning")

    def tell_unfinished(
        self, why: str | RankFailed, ranks: Collection[Rank], kill_in_s: float, stop_signal: int | None
    ) -> None:
        """Say that ranks should have ended by now: for the reason `why`, or since a rank's program failed."""
        if isinstance(why, str):
            name = "" if stop_signal is None else signal.Signals(stop_signal).name
            key = "Ctrl-C again" if stop_signal == signal.SIGINT else f"another {name}"
            kills = f"; {key} kills them" if name else ""
            self.say(neutral(f"{why}: waiting up to {kill_in_s:.0f} s for {named_ranks(ranks)} to end{kills}"))
            return
        left = f"its process has not exited yet and will be killed in {kill_in_s:.0f} s"
        self.say(f"{failed_words(why)}; {left}", level="warning")

    def show(self, text: str) -> None:
        """Write text to stderr unchanged: the verdict and the last line."""
        self.console.say(text.rstrip("\n"), time.monotonic())


def last_words(text: str) -> None:
    """Write to stderr, whatever state it and the console are in: without a long wait, and without raising."""
    outlet = Outlet(STDERR)
    outlet.put(text.encode("utf-8", "backslashreplace"))
    outlet.widen()
    until = time.monotonic() + LEAST_S
    while outlet.pending and time.monotonic() < until:
        if not outlet.pump():
            time.sleep(0.05)


def _wake() -> None:
    """Do nothing: the loop serves the ranks' files and the console after every turn."""


class _ConsoleLogger:
    """What structlog wraps: `write` gets each rendered message."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.info = self.warning = self.error = write
