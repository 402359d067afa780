"""The loop while no attempt has it: between two attempts, while nodes agree, and after the last one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never, final

from ddp_run.record.events import EventSink, SignalReceived, SignalSent, Target
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Call, Caught, Loop, reap
from ddp_run.values.signals import STOP_SIGNALS


@final
@dataclass(slots=True)
class Interlude:
    """`reaped` gets each child that has ended, with its exit code; `suspend_console` comes before ddp-run stops."""

    loop: Loop
    emit: EventSink
    reaped: Callable[[int, int], object]
    suspend_console: Callable[[], None]
    stops: int = 0
    """Signals to stop that have come; whoever has the loop meanwhile adds his."""

    def serve(self, at_most_s: float) -> None:
        """What comes within so many seconds, or comes first."""
        for wakeup in self.loop.wait(at_most_s):
            match wakeup:
                case Caught(signal.SIGTSTP):
                    self._suspend()
                case Caught(signal.SIGCHLD):
                    for pid, code in reap():
                        self.reaped(pid, code)
                case Caught(signum):
                    self.emit(SignalReceived(now(), signum))
                    self.stops += signum in STOP_SIGNALS
                case Call(handler):
                    handler()
                case _:
                    assert_never(wakeup)

    def served_stop(self) -> bool:
        """Whether a signal to stop has come just now."""
        stops = self.stops
        self.serve(0)
        return self.stops > stops

    def _suspend(self) -> None:
        """Ctrl-Z; other nodes are to know."""
        self.emit(SignalSent(now(), Target.JOB, signal.SIGSTOP, (), "ddp-run was stopped"))
        self.suspend_console()
        self.loop.stop_process()
        self.emit(SignalSent(now(), Target.JOB, signal.SIGCONT, (), "ddp-run was continued"))
