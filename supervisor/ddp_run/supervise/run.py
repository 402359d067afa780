"""A run: what its attempts, its nodes and its end share, and the one place where ddp-run waits (`Run.serve`)."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast, final

from ddp_run import __version__
from ddp_run.plan.launch_plan import LaunchPlan
from ddp_run.record.events import Event, EventSink, RunStarted, SignalReceived, SignalSent, Target
from ddp_run.record.journal import Journal, now
from ddp_run.record.own_process import this_process
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.options import Options
from ddp_run.supervise.children import BroughtAlong, Keeper
from ddp_run.supervise.inbox import Inbox
from ddp_run.supervise.loop import Loop, reap
from ddp_run.tell.console import Console
from ddp_run.tell.output import LEAST_S, STDERR, STDOUT, Output, Patience
from ddp_run.tell.selection import Mode, prefix_of, shown_by
from ddp_run.values import terminal
from ddp_run.values.helper_process import HelperProcesses
from ddp_run.values.process_table import below, living, send
from ddp_run.values.redaction import redact_words
from ddp_run.values.signals import NOTICE_SIGNALS, STOP_SIGNALS

if TYPE_CHECKING:
    from ddp_run.supervise.nodes.agreement import Side
    from ddp_run.tell.tail import Tailer

HANDLED_SIGNALS = STOP_SIGNALS | NOTICE_SIGNALS | {signal.SIGTSTP, signal.SIGCHLD}


@final
@dataclass(eq=False)
class Run:
    """One launch on this node, from its plan to its exit code."""

    plan: LaunchPlan
    environ: Mapping[str, str]
    folder: RunFolder
    journal: Journal
    loop: Loop
    inbox: Inbox
    brought_along: BroughtAlong
    stack: ExitStack
    """Closes what the run opens."""
    output: Output = field(init=False)
    helpers: HelperProcesses = field(default_factory=HelperProcesses)
    keeper: Keeper = field(init=False)
    sinks: list[EventSink] = field(init=False)
    """They get each event, the journal first."""
    nodes: Side | None = None
    """This node's side, if it agrees with other nodes of the job."""
    stops: int = 0
    """Stop signals received."""
    known_status: int | None = None
    """The exit code by the last verdict; None before the first."""
    not_ended: Mapping[int, int] = field(default_factory=dict)
    """Processes of earlier attempts that even SIGKILL didn't end, and when each began."""
    tailer: Tailer | None = None
    """The last attempt's output, as long as the console may not have shown all of it."""
    on_signal: Callable[[int], None] | None = None
    """The running attempt's handler of signals."""
    on_child_end: Callable[[int, int], None] | None = None
    """Gets pid and exit code of each child that isn't a helper: the running attempt's, or the commands' at the end."""

    def __post_init__(self) -> None:
        options = self.plan.options
        self.output = Output(_console(options, self.environ), self.loop, json=options.log_format == "json")
        self.keeper = Keeper(self.folder.run_id, self.inbox.board_folders, self.helpers, self.brought_along)
        self.stack.callback(self.keeper.dismiss)
        self.sinks = [self.journal.record, self.output.tell]

    def started(self, argv: Sequence[str]) -> RunStarted:
        """The first event of its journal. `argv`: ddp-run's own words."""
        options = self.plan.options
        return RunStarted(
            at=now(),
            wall_ns=time.time_ns(),
            run_id=self.folder.run_id,
            host=socket.gethostname(),
            node_rank=options.own_node_rank,
            nodes=options.max_nodes,
            argv=redact_words(argv),
            max_retries=options.max_retries,
            retry=options.retry,
            grace_s=options.grace_s,
            restarts=options.restarts,
            version=__version__,
            process=this_process(),
            boards=tuple(map(str, self.inbox.board_folders)),
        )

    def emit(self, event: Event) -> None:
        """Tell all sinks."""
        for sink in self.sinks:
            sink(event)

    def serve(self, at_most_s: float | None) -> bool:
        """Wait until something happens, `at_most_s` seconds at most (None: forever), and handle it.

        Returns whether a stop signal came.
        """
        stops, suspended = self.stops, False
        shown = self.tailer if self.on_signal is not None else None
        waits = (at_most_s, self.output.wait_s(shown) if shown is not None else None)
        for wakeup in self.loop.wait(min((each for each in waits if each is not None), default=None)):
            if not isinstance(wakeup, int):
                wakeup()
            elif wakeup == signal.SIGCHLD:
                self._reap()
            elif wakeup == signal.SIGTSTP:
                suspended = True
            else:
                self._hear(wakeup)
        if suspended:
            self._suspend()
        if shown is not None:
            self.output.pump(shown)
        return self.stops > stops

    def _reap(self) -> None:
        for pid, code in reap():
            if not self.helpers.reaped(pid) and self.on_child_end is not None:
                self.on_child_end(pid, code)

    def _hear(self, signum: int) -> None:
        if signum in STOP_SIGNALS:
            self.keeper.stopping()  # before anything is written, which may block forever
            self.stops += 1
        if self.on_signal is not None:
            self.on_signal(signum)
        else:
            self.emit(SignalReceived(now(), signum))

    def _suspend(self) -> None:
        """Ctrl-Z: stop the job, then ddp-run itself; when ddp-run is continued, continue the job."""
        self.emit(SignalReceived(now(), signal.SIGTSTP))
        self._signal_job(signal.SIGSTOP, "ddp-run was stopped")
        self.output.console.suspend()
        self.loop.stop_process()
        self._signal_job(signal.SIGCONT, "ddp-run was continued")

    def _signal_job(self, signum: int, reason: str) -> None:
        reached = send(self.job_processes(), signum) if self.on_signal is not None else ()
        self.emit(SignalSent(now(), Target.JOB, signum, reached, reason))

    def job_processes(self, but: Set[int] = frozenset()) -> dict[int, int]:
        """The running attempt's processes and when each began, without `but` and what is below those.

        Empty if /proc can't be read.
        """
        others = {*living(self.not_ended), *self.helpers.pids, *self.brought_along.pids}
        return below(os.getpid(), others | but) or {}

    def patience(self, seconds: float) -> Patience:
        """How long to wait for the console's readers. After a stop signal, no longer than the grace period lasts."""
        received = (event for event in self.journal.events if isinstance(event, SignalReceived))
        stopped_at = next((event.at for event in received if event.signum in STOP_SIGNALS), None)
        if stopped_at is not None:
            left_s = self.plan.options.grace_s - (now() - stopped_at) / 1e9
            seconds = min(seconds, max(left_s, LEAST_S))
        return Patience(seconds, lambda: self.serve(0))


def _console(options: Options, environ: Mapping[str, str]) -> Console:
    mode = cast(Mode, options.console)
    return Console(
        STDOUT,
        STDERR,
        ranks=1 if mode == "rank0" else options.nproc_count or 0,
        shown=shown_by(mode, options.redirects, options.tee, options.local_ranks_filter),
        prefix=prefix_of(options.prefix_template, options.role),
        colour=not environ.get("NO_COLOR"),
        force_colour=terminal.colour_forced(),
        raw=mode == "raw",
    )
