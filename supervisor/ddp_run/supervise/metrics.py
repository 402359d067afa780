"""`--metrics FILE`: a process beside the run writes it, `ddp_run/commands/watch/metrics.py`, as its disk may be dead.

It looks at the run's files and boards like `ddp-run watch`, so nothing is counted here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import final

from ddp_run.record.events import Event, Noted, RunEnded
from ddp_run.record.journal import now
from ddp_run.supervise.run import Run
from ddp_run.values.helper_process import reap, spawn

_PROGRAM = Path(__file__).parents[1] / "commands" / "watch" / "metrics.py"
_LAST_S = 2.0
"""How long the end of the run waits for the last write; it usually takes some milliseconds."""


@final
class Metrics:
    """The process that writes the file, as the run sees it."""

    def __init__(self, run: Run, path: Path) -> None:
        """Start it. Raises OSError."""
        self._run = run
        argv = [sys.executable, "-P", str(_PROGRAM), str(run.folder.path.absolute()), str(path.absolute())]
        self._process = spawn(argv, outlives_us=True)
        run.helpers.add(self._process)
        run.brought_along.add(self._process.pid)  # if ddp-run is killed, it must live to write that
        run.loop.watch(self._process.fd, self._hear)
        run.sinks.append(self._take)
        run.stack.callback(self._close)

    def _take(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._process.close_input()

    def _hear(self) -> None:
        lines, over = self._process.lines()
        for line in lines:
            self._tell(line.decode("utf-8", "replace"))
        if over:
            self._run.loop.unwatch(self._process.fd)
            if self._process.stdin is not None:
                self._tell("--metrics is written no longer: its process has ended")

    def _tell(self, said: str) -> None:
        self._run.output.say(said, level="warning")
        self._run.emit(Noted(now(), said))

    def _close(self) -> None:
        """Let it write how the run ended. If it can't yet, it goes on alone, and ends when it has."""
        process = self._process
        self._run.loop.unwatch(process.fd)
        process.close_input()
        if not process.reaped:
            reap(process.pid, _LAST_S)
        process.close()
