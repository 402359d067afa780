"""One attempt: the agent and its ranks as sources of events; the machine that decides; and what it orders, done.

Events wait in one queue and are taken one by one: each is written down and told, then asked of the machine
(`ddp_run.supervise.machine`), and its orders are carried out. What that brings comes to the queue's end.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never, final

from ddp_run.observe import processes
from ddp_run.record import file_names
from ddp_run.record.events import (
    AgentExited,
    AgentReported,
    AgentStarted,
    Event,
    EventSink,
    Noted,
    RankExited,
    RankFailed,
    RanksEnded,
    RankStarted,
    SignalReceived,
    Timer,
    TimerFired,
)
from ddp_run.record.journal import now
from ddp_run.supervise import children
from ddp_run.supervise.actions import (
    Action,
    AwaitReport,
    FinishAttempt,
    SendSignal,
    SetTimer,
    SuspendSelf,
    TellFailed,
    TellRanksEnded,
    TellUnfinished,
)
from ddp_run.supervise.agent import Agent
from ddp_run.supervise.inbox import Heard, Inbox
from ddp_run.supervise.job_signals import JobSignals
from ddp_run.supervise.loop import Call, Caught, Loop, reap
from ddp_run.supervise.machine import AttemptMachine
from ddp_run.supervise.rank_watch import RankWatch
from ddp_run.supervise.ranks import RankProcess, Ranks
from ddp_run.tell.output import Output
from ddp_run.tell.tail import Tailer
from ddp_run.values.helper_process import HelperProcesses
from ddp_run.values.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from ddp_run.observe.close_look import GpuUse
    from ddp_run.observe.observer import Observer
    from ddp_run.supervise.surroundings import Surroundings

_LOOK_FOR_RANKS_S = 2.0
"""How often to look for ranks among the agent's children, for those that cannot say hello."""
_LOOK_FOR_REPORT_S = 0.02
_LOAD_CATALOGUE_S = 3.0
"""When the rules begin to be loaded: CPU that the ranks' start should not have to share, and that a host which runs out
of memory or files may not be able to give any more. One a turn: the loop must not be away when ranks die."""
_NEXT_RULE_S = 0.02


@final
@dataclass(eq=False)
class Attempt:
    """Starts an agent and stays with it to its end."""

    number: int
    folder: Path
    run_folder: Path
    machine: AttemptMachine
    agent: Agent
    loop: Loop
    to_sinks: EventSink
    """Journal and console. Events go there through `_put`, which asks the machine what follows from each."""
    inbox: Inbox
    output: Output
    tailer: Tailer
    keeper: children.Keeper
    brought_along: children.BroughtAlong
    helpers: HelperProcesses
    places: tuple[str, ...] = ()
    """Paths whose free space is of interest after a death."""
    earlier_pids: frozenset[int] = frozenset()
    """What could not be ended of attempts before this one."""
    hang_timeout_s: float | None = None
    """End the job after so long without progress, where a closer look has shown who waits or stands still."""
    stops: int = 0
    """Stop signals received."""
    not_ended: Mapping[int, int] = field(default_factory=dict)
    """Pids that were still there when the attempt was over, and when each process began."""
    _queue: deque[Event] = field(default_factory=deque)
    _serving: bool = False
    """An event of the queue is being served."""
    _to_suspend: bool = False
    """The job and ddp-run itself are to be stopped (Ctrl-Z) when this turn's events are served."""
    _rules: Iterator[str] | None = None
    """Loads one rule a step."""
    _environ: Mapping[str, str] = field(default_factory=dict)
    """The agent's, and so the ranks' but for what the agent adds."""
    _finished: bool = False
    _strangers: bool = False
    """Messages came that were not the ranks' own."""
    _first_end: float | None = None
    _looked_around: int | None = None
    """The last restart at whose first death the system was looked at; -1: the agent's death."""
    _ranks: Ranks = field(init=False)
    _signals: JobSignals = field(init=False)
    _watch: RankWatch = field(init=False)
    _surroundings: Surroundings = field(init=False)

    def __post_init__(self) -> None:
        self._ranks = Ranks(self.number, self.loop, self._read_inbox, self._on_rank_end)
        self._signals = JobSignals(self._ranks, lambda: self.agent.pid, self._not_the_jobs)
        self._watch = RankWatch(
            self.loop,
            self._put,
            self._ranks,
            hang_timeout_s=self.hang_timeout_s,
            running=lambda: not self._finished and self.machine.is_running,
            gpu_use=self._gpu_use,
            observer=self._make_observer,
        )

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the agent. Raises OSError."""
        pid = self.agent.start(argv, environ)
        self._environ = environ
        self._put(AgentStarted(now(), pid))
        from ddp_run.supervise.surroundings import Surroundings

        self._surroundings = Surroundings(
            self.loop,
            self._put,
            environ=environ,
            places=self.places,
            started=lambda: self._ranks.started,
            living=lambda: self._ranks.living,
            helpers=self.helpers,
        )
        self.loop.watch(self.inbox.fileno(), self._read_inbox)
        self.loop.set_timer(_LOOK_FOR_RANKS_S, self._look_for_ranks)
        self.loop.set_timer(_LOAD_CATALOGUE_S, self._load_a_rule)

    def run(self) -> None:
        """Serve the loop until the attempt is over and nothing of it is left."""
        while not self._finished:
            self._serve_once(None)
        self.loop.clear_timers()
        self._watch.close()
        self._end_leftovers()
        self._read_inbox()  # what is left there would be read as the next attempt's
        while (remaining := self._surroundings.awaited_s()) > 0:
            self._serve_once(remaining)
        self._surroundings.close()
        self.loop.unwatch(self.inbox.fileno())
        self._ranks.close()

    # ------------------------------------------------------------------------------- events

    def hear(self, event: Event) -> None:
        """What was learnt elsewhere: another node fails."""
        if not self._finished:
            self._put(event)

    def _serve_once(self, at_most_s: float | None) -> None:
        waits = [each for each in (at_most_s, self.output.wait_s(self.tailer)) if each is not None]
        for wakeup in self.loop.wait(min(waits, default=None)):
            match wakeup:
                case Call(handler):
                    handler()
                case Caught(signal.SIGCHLD):
                    self._reap()
                case Caught(signum):
                    self._on_signal(signum)
                case _:
                    assert_never(wakeup)
        if self._to_suspend:
            self._suspend()
        self.output.pump(self.tailer)

    def _put(self, event: Event) -> None:
        """To the queue's end; served at once, but where another one is being served."""
        self._queue.append(event)
        if self._serving:
            return
        self._serving = True
        try:
            while self._queue:
                self._serve(self._queue.popleft())
        finally:
            self._serving = False

    def _serve(self, event: Event) -> None:
        self.to_sinks(event)
        for action in self.machine.on(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case SendSignal():
                for event in self._signals.send(action):
                    self._put(event)
            case SetTimer(timer, after_s):
                key = timer.kind, timer.rank, timer.restart
                self.loop.set_timer(after_s, partial(self._fire, timer), key=key)
            case AwaitReport():
                self._look_for_report()
            case TellRanksEnded():
                self._put(RanksEnded(now()))
            case TellFailed(failed):
                self.output.tell_failed(failed)
            case TellUnfinished(why, ranks, kill_in_s, stop_signal):
                self.output.tell_unfinished(why, ranks, kill_in_s, stop_signal)
            case SuspendSelf():
                self._to_suspend = True
            case FinishAttempt():
                self._finished = True
                self._surroundings.rest()
            case _:
                assert_never(action)

    def _fire(self, timer: Timer) -> None:
        self._put(TimerFired(now(), timer.kind, timer.rank, timer.restart))

    def _suspend(self) -> None:
        self._to_suspend = False
        self._put(self._signals.to_job(signal.SIGSTOP, "ddp-run was stopped"))
        self.output.console.suspend()
        self.loop.stop_process()
        self._put(self._signals.to_job(signal.SIGCONT, "ddp-run was continued"))

    # --------------------------------------------------------------------- sources of events

    def _on_signal(self, signum: int) -> None:
        if signum in STOP_SIGNALS:
            self.keeper.stopping()  # before anything is written: that may wait for ever
        self._read_inbox()  # a rank that has said hello by now is to have it too
        if signum in STOP_SIGNALS:
            self.stops += 1
            self._watch.note_progress()
        self._put(SignalReceived(now(), signum))

    def _read_inbox(self) -> None:
        for heard in self.inbox.read():
            if not self._ranks.is_own_word(heard):
                self._note_stranger(heard)
            elif isinstance(heard.said, RankStarted):
                self._on_rank_start(heard.said)
            else:
                self._put(heard.said)
                if isinstance(heard.said, RankFailed):
                    self._look_around(heard.restart)

    def _note_stranger(self, heard: Heard) -> None:
        """Once is enough: whoever sends one such message may send many."""
        if not self._strangers:
            whose = f"rank {heard.rank} of attempt {heard.attempt} (start {heard.restart})"
            self._put(Noted(now(), f"ignored: process {heard.sender} sent a message as {whose}, which it is not"))
        self._strangers = True

    def _on_rank_start(self, event: RankStarted) -> None:
        known = self._ranks.of(event.rank)
        if known is not None:
            if known.event.pid == event.pid:
                if event.watched and not known.event.watched:  # found among the agent's children before its hello
                    known.event = event
                    self._put(event)
                    self._watch.rank_starts(event)
                return
            self._ranks.forget(known)
            self.tailer.retire(event.rank)
        there = self._ranks.add(event)
        for stream, name in file_names.OF_A_STREAM.items():
            path = self.run_folder / event.folder / name
            self.tailer.add(event.rank, event.local_rank, stream, path, links=event.links)
        self._put(event)
        self._surroundings.ranks_start()
        self._watch.rank_starts(event)
        process = self._ranks.of(event.rank)
        if not there and process is not None:
            self._on_rank_end(process)

    def _on_rank_end(self, process: RankProcess, code: int | None = None) -> None:
        if not process.alive:
            return
        process.alive = False
        dumped = None
        if code is None:
            status = processes.read_exit_status(process.event.pid, process.pidfd)
            if status is not None:
                code, dumped = os.waitstatus_to_exitcode(status), os.WCOREDUMP(status)
        self._ranks.forget(process)
        process.exited_clean = code == 0
        if process.exited_clean:
            self._watch.rank_leaves(process.event.rank)
        if self._first_end is None and code != 0:
            self._first_end = time.monotonic()
        self._put(RankExited(now(), process.event.rank, process.event.restart, code, dumped))
        if dumped:
            from ddp_run.observe import core_dump

            self._put(core_dump.find(now(), process.event))
        if code != 0:
            self._look_around(process.event.restart)

    def _reap(self) -> None:
        for pid, code in reap():
            if self.agent.reaped(pid):
                self._on_agent_end(code)
                continue
            if self.helpers.reaped(pid):
                continue
            for process in self._ranks.of_pid(pid):
                self._on_rank_end(process, code)

    def _on_agent_end(self, code: int) -> None:
        self._read_inbox()
        for process in self._ranks:
            if process.alive and not processes.is_alive(process.event.pid):
                self._on_rank_end(process)
        self._put(AgentExited(now(), code))
        if code != 0 and self._looked_around is None and not self._signals.agent_killed:
            self._look_around(-1)

    def _look_for_ranks(self) -> None:
        if self.agent.pid is None or self._finished:
            return
        self.loop.set_timer(_LOOK_FOR_RANKS_S, self._look_for_ranks)
        if not self._ranks.complete:
            for event in self._ranks.unheard(self.agent.pid):
                self._on_rank_start(event)

    def _load_a_rule(self) -> None:
        from ddp_run.judge.catalogue import rule_modules

        if self._rules is None:
            self._rules = rule_modules()
        if next(self._rules, None) is not None:
            self.loop.set_timer(_NEXT_RULE_S, self._load_a_rule)

    def _look_for_report(self) -> None:
        if self.agent.pid is None:
            return
        if self.agent.has_reported():
            self._put(AgentReported(now()))
        else:
            self.loop.set_timer(_LOOK_FOR_REPORT_S, self._look_for_report)

    # ---------------------------------------------------------------------- what is looked at

    def _make_observer(self) -> Observer:
        from ddp_run.observe.observer import Observer

        return Observer(self.inbox.board_folders, self.run_folder, self.folder, self._environ, self.helpers)

    def _gpu_use(self, alive: Sequence[RankStarted]) -> Sequence[GpuUse]:
        return self._surroundings.gpu_use({event.rank: event.local_rank for event in alive})

    def _look_around(self, restart: int) -> None:
        """At the first failure of each start of the ranks: later ones follow from it, and so may what they leave."""
        if self._looked_around == restart:
            return
        self._looked_around = restart
        self._watch.note_progress()
        self._surroundings.ranks_fail()

    def _not_the_jobs(self) -> Set[int]:
        """Pids below us that are not the job's."""
        return {*self.earlier_pids, *self.helpers.pids, *self.brought_along.pids} - set(self._ranks.living.values())

    # ------------------------------------------------------------------------------- the end

    def _end_leftovers(self) -> None:
        """End what ranks left behind, and name what does not end."""
        from ddp_run.supervise.leftovers import Leftovers, not_ended

        leftovers = Leftovers(self._put, self._served_stop, self._not_the_jobs)
        leftovers.end(self._remaining_grace_s(), self._signals.killed)
        ranks = {each.event.pid: each.event for each in self._ranks if each.alive}
        self.not_ended = leftovers.pids()
        for event in not_ended(self.not_ended, ranks, self._watch.paths):
            self._put(event)

    def _remaining_grace_s(self) -> float:
        if self._first_end is None:
            return self.machine.grace_s
        return max(0.0, self._first_end + self.machine.grace_s - time.monotonic())

    def _served_stop(self, at_most_s: float) -> bool:
        """Whether a stop signal came meanwhile."""
        stops = self.stops
        self._serve_once(at_most_s)
        return self.stops > stops
