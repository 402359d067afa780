"""Processes beside a run for what could wait for a dead disk: `--metrics`, `--log-size-cap` and `--status`.

Each is a program that looks at the run's files, and ends when its standard input does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from ddp_run.record.events import Event, LogCut, Noted, Rank, RunEnded
from ddp_run.record.journal import now
from ddp_run.supervise.run import Run
from ddp_run.values.helper_process import reap, spawn

_PACKAGE = Path(__file__).parents[1]
_BESIDE = "commands/watch/beside.py"
_LAST_WRITE_S, _CLOSING_UP_S = 2.0, 5.0
"""How long the end of the run waits for them."""
_LAST_LOOK_S = 2.0
"""How long the end of an attempt waits until its logs no longer change."""


@final
class Companion:
    """One of them, as the run sees it. `hear` gets what it says, line by line; by default the user is told."""

    def __init__(
        self,
        run: Run,
        option: str,
        program: str,
        *words: str,
        last_s: float,
        outlives_us: bool = False,
        hear: Callable[[str], None] | None = None,
    ) -> None:
        """Start the program with these words. Raises OSError."""
        self._run, self._option, self._last_s, self._hear = run, option, last_s, hear or self.tell_user
        self._told = False
        argv = [sys.executable, "-P", str(_PACKAGE / program), *words]
        self.process = spawn(argv, outlives_us=outlives_us)
        self.over = False
        run.helpers.add(self.process)
        run.brought_along.add(self.process.pid)  # the keeper leaves it alone: it ends by itself
        run.loop.watch(self.process.fd, self._read)
        run.stack.callback(self._close)

    def tell_user(self, said: str) -> None:
        """Say it on the console and in the journal."""
        self._told = True
        self._run.output.say(said, level="warning")
        self._run.emit(Noted(now(), said))

    def _read(self) -> None:
        lines, self.over = self.process.lines()
        for line in lines:
            self._hear(line.decode("utf-8", "replace"))
        if self.over:
            self._run.loop.unwatch(self.process.fd)
            if self.process.stdin is not None and not self._told:
                self.tell_user(f"{self._option} has no effect any longer: its process has ended")

    def _close(self) -> None:
        self._run.loop.unwatch(self.process.fd)
        self.process.close_input()
        if not self.process.reaped:
            reap(self.process.pid, self._last_s)
        self.process.close()


def _folder_of(run: Run) -> str:
    return str(run.folder.path.absolute())


def write_metrics(run: Run, path: Path) -> None:
    """Start what writes `--metrics FILE`. Raises OSError.

    It looks like `ddp-run watch`, so nothing is counted here. If it can't write at the end, or ddp-run is killed, it
    goes on alone, and ends when it has.
    """
    words = "metrics", _folder_of(run), str(path.absolute())
    companion = Companion(run, "--metrics", _BESIDE, *words, last_s=_LAST_WRITE_S, outlives_us=True)

    def at_the_end(event: Event) -> None:
        if isinstance(event, RunEnded):
            companion.process.close_input()

    run.sinks.append(at_the_end)


def show_status(run: Run) -> None:
    """Start what says how the job gets on (`--status`), and show that below the ranks' lines. Raises OSError."""

    def show(said: str) -> None:
        if run.tailer is not None:
            run.output.console.status(f"ddp-run: {said}", time.monotonic())

    Companion(run, "--status", _BESIDE, "status", _folder_of(run), last_s=_LAST_WRITE_S, hear=show)


@final
class LogCap:
    """What keeps the ranks' logs within `--log-size-cap`."""

    def __init__(self, run: Run, cap: int) -> None:
        """Start it. Raises OSError."""
        self._run = run
        self._settled = False
        words = "supervise/log_cutter.py", _folder_of(run), str(cap)
        self._companion = Companion(run, "--log-size-cap", *words, last_s=_CLOSING_UP_S, hear=self._hear)

    def settle(self) -> None:
        """An attempt is over. Wait until its logs don't change any longer: a replay must see what is judged now."""
        self._settled, deadline = False, time.monotonic() + _LAST_LOOK_S
        if not self._companion.process.tell(b"s"):
            return
        while not (self._settled or self._companion.over) and (left := deadline - time.monotonic()) > 0:
            self._run.serve(left)

    def _hear(self, said: str) -> None:
        match said.split(" "):
            case ["settled"]:
                self._settled = True
            case ["cut", rank, restart, stream, dropped]:
                self._run.emit(LogCut(now(), Rank(int(rank)), int(restart), stream, int(dropped)))
            case _:
                self._companion.tell_user(said)


def start(run: Run) -> LogCap | None:
    """Start those that the options ask for. Returns what limits the logs, if anything does."""
    options, cap = run.plan.options, None
    try:
        if options.status and run.output.console.is_on_terminal:
            show_status(run)
        if options.metrics:
            write_metrics(run, Path(options.metrics))
        if options.log_cap_bytes is not None:
            cap = LogCap(run, options.log_cap_bytes)
    except OSError as error:
        run.output.say(f"--metrics, --log-size-cap or --status has no effect: {error}", level="warning")
    return cap
