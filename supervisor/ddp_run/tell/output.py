"""ddp-run's two streams: what the ranks wrote, by `ddp_run.tell.console`; its own messages, by structlog between.

With `--log-format json` each message of ddp-run's own is one JSON object a line on stderr.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast, final

from ddp_run.record.events import (
    Event,
    NativeFramesSeen,
    NotEnded,
    Rank,
    RankFailed,
    StallEnded,
    StallSeen,
    StragglerSeen,
)
from ddp_run.tell.console import Console
from ddp_run.tell.outlet import Outlet
from ddp_run.tell.selection import Mode, prefix_of, shown_by
from ddp_run.tell.tail import POLL_S, Chunk, Tailer
from ddp_run.values import terminal
from ddp_run.values.lines import STREAMS, Stream, neutral
from ddp_run.values.redaction import redact
from ddp_run.values.words import named_ranks, size_in_words

if TYPE_CHECKING:
    from ddp_run.judge.verdict import Verdict

STDOUT, STDERR = 1, 2
AT_THE_END_S = 60.0
"""How long the end of a job waits for whoever reads its console, all in all."""
BETWEEN_ATTEMPTS_S = 10.0
"""And another attempt: of it, only what ranks' lines get."""
LEAST_S = 2.0
"""However little time there is."""
_LAST_WORDS_S = 1.0
"""What is left of that when a signal to stop comes meanwhile; none after another one."""
_COUNT_S = 1.0
"""How long lines that are not shown are counted."""
_TAIL_BUDGET = 1 << 20


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """What people asked to see. `redirects` and `tee`: the streams of all local ranks (1: stdout, 2: stderr, 3: both),
    or of each that is named; `local_ranks`: those to be shown, empty for all.
    """

    mode: Mode
    json: bool
    ranks: int
    """How many run here."""
    redirects: int | Mapping[int, int]
    tee: int | Mapping[int, int]
    local_ranks: Collection[int]
    prefix_template: str | None
    role: str


@final
class Patience:
    """How long the readers of the console are waited for: ranks' lines get half of the time, ddp-run's own all of it.

    `stopped`: whether a signal to stop has come since it was asked last. `clock` is in seconds.
    """

    def __init__(
        self, seconds: float, stopped: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._stopped = stopped
        self._until = clock() + seconds
        self._ranks_until = clock() + seconds / 2

    def for_ranks(self) -> float:
        """Seconds left for what ranks wrote; at most 0: none."""
        self._hear()
        return self._ranks_until - self._clock()

    def for_own(self) -> float:
        """Seconds left for ddp-run's own lines."""
        self._hear()
        return self._until - self._clock()

    def add(self, seconds: float) -> None:
        """So long nobody waited for the console."""
        self._until += seconds
        self._ranks_until += seconds

    def _hear(self) -> None:
        if self._stopped():
            now = self._clock()
            hurried = self._ranks_until <= now
            self._ranks_until = now
            self._until = now if hurried else min(self._until, now + _LAST_WORDS_S)


class Descriptors(Protocol):
    """Who waits for descriptors: `ddp_run.supervise.loop.Loop`."""

    def watch(self, fd: int, handler: Callable[[], None], *, write: bool = False) -> None:
        """Call that when it can be read, or written."""

    def unwatch(self, fd: int) -> None:
        """Tell no more."""


@final
class Output:
    """Owns the console; `pump` moves what ranks wrote, and asks the loop for what it waits for."""

    def __init__(self, settings: ConsoleSettings, environ: Mapping[str, str], loop: Descriptors) -> None:
        self._loop = loop
        self._json = settings.json
        self._failed_only = settings.mode == "failed"
        self._logger: Any = None
        self.colour = terminal.colour(sys.stderr)
        self.console = Console(
            STDOUT,
            STDERR,
            ranks=1 if settings.mode == "rank0" else settings.ranks,
            shown=shown_by(settings.mode, settings.redirects, settings.tee, settings.local_ranks),
            prefix=prefix_of(settings.prefix_template, settings.role),
            colour=not environ.get("NO_COLOR"),
            force_colour=terminal.colour_forced(),
            raw=settings.mode == "raw",
        )

    # ------------------------------------------------------------------- ranks' output

    def pump(self, tailer: Tailer) -> None:
        """Show what ranks have written, as far as the console takes it; the rest stays in the files."""
        self.console.feed(tailer.read(_TAIL_BUDGET, self.console.outlets.taking), time.monotonic())
        self._listen(tailer)

    def _listen(self, tailer: Tailer) -> None:
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
        """Seconds after which `pump` has something to do though nothing happened; null: never."""
        waits = []
        if self.console.deadline is not None:
            waits.append(max(0.0, self.console.deadline - time.monotonic()))
        taking = self.console.outlets.taking
        pause_s = tailer.wait_s(taking)
        if pause_s is not None:
            waits.append(pause_s)
        if taking and taking != STREAMS:  # the files tell nothing then: they would of both
            waits.append(POLL_S)
        return min(waits, default=None)

    def show_rest(self, tailer: Tailer, folder: Path, patience: Patience, *, before_own: bool = False) -> None:
        """An attempt's ranks have ended: show what is left of their output, as far as there is time; say what is not.

        `before_own`: only what belongs before ddp-run's own lines; of a stdout elsewhere, what it takes meanwhile.
        """
        tailer.stop_at_ends()
        streams = self.console.outlets.with_own if before_own else STREAMS

        def read(wanted: Collection[Stream]) -> list[Chunk]:
            return tailer.read(_TAIL_BUDGET, wanted)

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
        """Nothing more of it is shown."""
        self.console.end_attempt(time.monotonic())
        for fd in (tailer.fileno(), STDOUT, STDERR):
            if fd is not None:
                self._loop.unwatch(fd)
        tailer.close()

    def show_failed(self, verdict: Verdict, events: Sequence[Event], folder: Path) -> None:
        """`--console failed`: the last lines of the ranks that failed, now that it is known which."""
        if self._failed_only and verdict.outcome != "succeeded":
            from ddp_run.tell.selection import failed_lines

            self.console.replay(failed_lines(verdict, events, folder), time.monotonic())

    # ------------------------------------------------------------------ own messages

    def load(self) -> None:
        """Load what messages need, ahead of the first."""
        import structlog

        processors: list[Any]
        if self._json:
            processors = [
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ]
        else:
            processors = [structlog.processors.add_log_level, _render_plain]
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(cast(TextIO, _Lines(self.console))), processors=processors
        )

    def say(self, message: str, *, level: str = "info", **fields: Any) -> None:
        """One message of ddp-run's own; `fields` are shown in JSON only."""
        if self._logger is None:
            self.load()
        getattr(self._logger, level)(redact(message), **fields)

    def tell(self, event: Event) -> None:
        """What of an event people are to hear at once; mostly nothing."""
        match event:
            case StallSeen():
                self.say(event.told, level="warning" if event.hung else "info")
                for quote in event.quotes if not self._json else ():
                    self.say(f"  {quote}")
            case StragglerSeen():
                self.say(
                    f"rank {event.rank} is slow: in {event.times} of {event.compared} collectives the other ranks "
                    f"waited for it, {event.waited_s:.2f} s each time (a step takes {event.step_s:.2f} s)"
                )
            case NativeFramesSeen():
                for quote in event.quotes:
                    self.say(f"  {quote}")
            case StallEnded():
                self.say(f"progress resumed after {event.after_s:.0f} s")
            case NotEnded():
                self.say(event.said, level="warning")
            case _:
                pass

    def tell_failed(self, failed: RankFailed) -> None:
        """A rank's program failed, and its process exited with 0."""
        then = "its process has exited with code 0, which counts as success, so the other ranks keep running"
        self.say(f"{_failed(failed)}; {then}", level="warning")

    def tell_unfinished(
        self, why: str | RankFailed, ranks: Collection[Rank], kill_in_s: float, stop_signal: int | None
    ) -> None:
        """Ranks were to end a while ago, and have not: for a reason, or a rank whose own program failed."""
        if isinstance(why, str):
            name = "" if stop_signal is None else signal.Signals(stop_signal).name
            key = "Ctrl-C again" if stop_signal == signal.SIGINT else f"another {name}"
            kills = f"; {key} kills them" if name else ""
            self.say(neutral(f"{why}: waiting up to {kill_in_s:.0f} s for {named_ranks(ranks)} to end{kills}"))
            return
        left = f"its process has not exited yet and will be killed in {kill_in_s:.0f} s"
        self.say(f"{_failed(why)}; {left}", level="warning")

    def show(self, text: str) -> None:
        """Text as it stands, to stderr: the verdict and the last line."""
        self.console.say(text.rstrip("\n"), time.monotonic())

    def flush(self, patience: Patience) -> None:
        """Write what waits, while there is time: another program writes to stderr next."""
        self.console.flush(patience.for_own)

    def finish(self, patience: Patience) -> None:
        """Write what waits, while there is time; nothing comes after."""
        self.console.finish(patience.for_own)

    @property
    def json(self) -> bool:
        """Whether ddp-run's own messages are JSON."""
        return self._json


def last_words(text: str) -> None:
    """To stderr, whatever has become of it and of the console: written without waiting for long, and never an error."""
    outlet = Outlet(STDERR)
    outlet.put(text.encode("utf-8", "backslashreplace"))
    outlet.widen()
    until = time.monotonic() + LEAST_S
    while outlet.pending and time.monotonic() < until:
        if not outlet.pump():
            time.sleep(0.05)


def _failed(failed: RankFailed) -> str:
    raised = failed.exception
    why = f"exit code {failed.code}" if raised is None else f"{raised.type}: {raised.message}"
    where = "" if raised is None else raised.where
    return neutral(f"rank {failed.rank} failed with {why[:200]}{where}")


def _wake() -> None:
    """Nothing more: the ranks' files and the console are served after every turn of the loop."""


def _render_plain(_logger: Any, _method: str, fields: Mapping[str, Any]) -> str:
    mark = "" if fields["level"] == "info" else f"{fields['level']}: "
    return f"ddp-run: {mark}{fields['event']}"


class _Lines:
    """A text file for structlog whose lines go to the console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        if text.strip("\n"):
            self._console.say(text.rstrip("\n"), time.monotonic())
        return len(text)

    def flush(self) -> None:
        """The console writes when it can."""
