"""A line for each time that torch's agent starts the ranks again within an attempt (--max-restarts), and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from ddp_run.judge import judging
from ddp_run.record.events import AttemptStarted, Event, RankStarted
from ddp_run.tell.output import Output


@final
class Restarts:
    """A sink of events, behind the journal, which has `events`. The ranks' logs, which may be long, are not read."""

    def __init__(self, folder: Path, events: Sequence[Event], output: Output) -> None:
        self._folder = folder
        self._events = events
        self._output = output
        self._attempt = self._restart = 0

    def tell(self, event: Event) -> None:
        """The first rank of a new start says hello: how the one before ended is known."""
        match event:
            case AttemptStarted():
                self._attempt, self._restart = event.attempt, 0
            case RankStarted() if event.restart > self._restart:
                self._restart = event.restart
                try:
                    line = judging.restarted(self._folder, self._events, self._attempt, event.restart, rank_files=False)
                except Exception as error:  # a broken rule must not end a job that goes on
                    line = f"torch's agent restarted all ranks ({type(error).__name__} while looking for the reason)"
                self._output.say(line, level="warning")
            case _:
                pass
