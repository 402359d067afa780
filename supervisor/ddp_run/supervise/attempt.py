"""One attempt: the agent and its ranks as sources of events, and actions done to them. A map, no policy.

What happens is decided by `ddp_run.supervise.machine`; this file only turns descriptors, signals and timers into events
for it, and carries out what it orders.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, assert_never, final

from ddp_run.observe import processes
from ddp_run.record.events import (
    Action,
    AgentExited,
    AgentReported,
    AgentStarted,
    AwaitReport,
    Event,
    FinishAttempt,
    HangTimedOut,
    LocalRank,
    Noted,
    Rank,
    RankExited,
    RankFailed,
    RankStarted,
    SendSignal,
    SetTimer,
    SignalReceived,
    SignalSent,
    SuspendSelf,
    Target,
    TellUnfinished,
    TimerFired,
)
from ddp_run.record.journal import Journal, now
from ddp_run.supervise import children
from ddp_run.supervise.inbox import Inbox
from ddp_run.supervise.loop import Caught, Loop, RanOut, Ready, reap
from ddp_run.supervise.machine import AttemptMachine
from ddp_run.tell.output import Output
from ddp_run.tell.tail import Tailer
from ddp_run.values.aside import Asides
from ddp_run.values.stop_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from ddp_run.evidence.log_tail import GrowingLog
    from ddp_run.observe.close_look import GpuUse
    from ddp_run.observe.observer import Observer
    from ddp_run.supervise.surroundings import Surroundings

_LOOK_FOR_RANKS_S = 2.0
"""How often to look for ranks among the agent's children, for those that cannot say hello."""
_LOOK_FOR_DEATHS_S = 0.05
"""How often to look at ranks whose death nothing reports. A zombie shows its exit code until the agent reaps it."""
_LOOK_FOR_REPORT_S = 0.02
_LOAD_CATALOGUE_S = 3.0
"""When the rules begin to be loaded: CPU that the ranks' start should not have to share, and that a host which runs out
of memory or files may not be able to give any more. One a turn: the loop must not be away when ranks die."""
_NEXT_RULE_S = 0.02


@dataclass(slots=True)
class _RankProcess:
    event: RankStarted
    pidfd: int | None
    alive: bool = True
    left: bool = False
    """It ended with 0."""


@final
@dataclass
class Attempt:
    """Starts an agent and stays with it to its end. `keep` are pids below us that are not the job's."""

    number: int
    folder: Path
    run_folder: Path
    run: AttemptMachine
    loop: Loop
    journal: Journal
    inbox: Inbox
    output: Output
    tailer: Tailer
    keeper: children.Keeper
    places: tuple[str, ...] = ()
    """Paths whose free space is of interest after a death."""
    keep: frozenset[int] = frozenset()
    hang_timeout_s: float | None = None
    """End the job after so long without progress, where a closer look has shown who waits or stands still."""
    _rules: Iterator[str] | None = None
    """Loads one rule a step."""
    _observer: Observer | None = None
    _environ: Mapping[str, str] = field(default_factory=dict)
    """The agent's, and so the ranks' but for what the agent adds."""
    _agent: int | None = None
    _ranks: dict[Rank, _RankProcess] = field(default_factory=dict)
    _finished: bool = False
    _first_end: float | None = None
    stops: int = 0
    """Stop signals received."""
    _agent_killed: bool = False
    """By us."""
    _surroundings: Surroundings = field(init=False)
    _asides: Asides = field(default_factory=Asides)
    _killed: set[int] = field(default_factory=set)
    """Pids that have had SIGKILL from us."""
    not_ended: frozenset[int] = frozenset()
    """Pids that were still there when the attempt was over."""
    _agent_log: GrowingLog | None = None
    _looked_around: int | None = None
    """The last restart at whose first death the system was looked at; -1: the agent's death."""

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the agent. Raises OSError."""
        # The process object is dropped: reap() waits for the pid, whoever it belongs to.
        agent = children.start_agent(argv, environ, self.folder / "agent.log")
        agent.returncode = 0
        self._agent, self._environ = agent.pid, environ
        self._emit(AgentStarted(now(), agent.pid))
        from ddp_run.supervise.surroundings import Surroundings

        self._surroundings = Surroundings(
            self.loop,
            self._emit,
            environ=environ,
            places=self.places,
            started=self._started,
            living=self._living,
            asides=self._asides,
        )
        self.loop.watch(self.inbox.fileno(), "inbox")
        self.loop.set_timer("look-for-ranks", _LOOK_FOR_RANKS_S)
        self.loop.set_timer("load-catalogue", _LOAD_CATALOGUE_S)

    def stay(self) -> None:
        """Serve the loop until the attempt is over and nothing of it is left."""
        while not self._finished:
            self._turn(None)
        self.loop.clear_timers()
        if self._observer is not None:
            self._observer.close()
        self._end_leftovers()
        while (remaining := self._surroundings.awaited_s()) > 0:
            self._turn(remaining)
        self._surroundings.close()
        self.loop.unwatch(self.inbox.fileno())
        for process in self._ranks.values():
            self._forget(process)

    # ---------------------------------------------------------------- sources of events

    def _turn(self, at_most_s: float | None) -> None:
        waits = [each for each in (at_most_s, self.output.wait_s(self.tailer)) if each is not None]
        for wakeup in self.loop.wait(min(waits, default=None)):
            if self._surroundings.take(wakeup):
                continue
            match wakeup:
                case Ready(key):
                    self._on_ready(key)
                case Caught(signal.SIGCHLD):
                    self._reap()
                case Caught(signum):
                    if signum in STOP_SIGNALS:
                        self.keeper.stopping()  # before anything is written: that may wait for ever
                    self._read_inbox()  # a rank that has said hello by now is to have it too
                    if signum in STOP_SIGNALS:
                        self.stops += 1
                        self._note_progress()
                    self._emit(SignalReceived(now(), signum))
                case RanOut("look-for-ranks"):
                    self._look_for_ranks()
                case RanOut("look-for-deaths"):
                    self._look_for_deaths()
                case RanOut("load-catalogue"):
                    self._load_a_rule()
                case RanOut("look-for-report"):
                    self._look_for_report()
                case RanOut("look-at-ranks"):
                    self._look_at_ranks()
                case RanOut(name):
                    self._emit(TimerFired(now(), name))
                case _:
                    assert_never(wakeup)
        self.output.pump(self.tailer)

    def _on_ready(self, key: object) -> None:
        match key:
            case "inbox":
                self._read_inbox()
            case ("rank", _RankProcess() as process):
                # What a rank said before it died is on the socket already, and belongs before its death.
                self._read_inbox()
                self._on_rank_end(process)
            case _:  # the console and the ranks' files: served after every turn
                pass

    def _read_inbox(self) -> None:
        for event in self.inbox.read():
            if isinstance(event, RankStarted):
                self._on_rank_start(event)
            else:
                self._emit(event)
                if isinstance(event, RankFailed):
                    self._look_around(event.restart)

    def _on_rank_start(self, event: RankStarted) -> None:
        known = self._ranks.get(event.rank)
        if known is not None:
            if known.event.pid == event.pid:
                if event.watched and not known.event.watched:  # found among the agent's children before its hello
                    known.event = event
                    self._emit(event)
                    self._watch_rank(event)
                return
            self._forget(known)
            self.tailer.retire(event.rank)
        pidfd, gone = None, False
        try:
            pidfd = os.pidfd_open(event.pid)
        except ProcessLookupError:  # it said hello, ended and was reaped before we came to read
            gone = True
        except OSError:  # the kernel is older than 5.3, or there are no descriptors left
            self.loop.set_timer("look-for-deaths", _LOOK_FOR_DEATHS_S)
        process = self._ranks[event.rank] = _RankProcess(event, pidfd)
        if pidfd is not None:
            self.loop.watch(pidfd, ("rank", process))
        folder = self.run_folder / event.folder
        self.tailer.add(event.rank, event.local_rank, "stdout", folder / "stdout.log")
        self.tailer.add(event.rank, event.local_rank, "stderr", folder / "stderr.log")
        self._emit(event)
        self._surroundings.ranks_start()
        self._watch_rank(event)
        if gone:
            self._on_rank_end(process)

    def _on_rank_end(self, process: _RankProcess, code: int | None = None) -> None:
        if not process.alive:
            return
        process.alive = False
        dumped = None
        if code is None:
            status = processes.read_exit_status(process.event.pid, process.pidfd)
            if status is not None:
                code, dumped = os.waitstatus_to_exitcode(status), os.WCOREDUMP(status)
        self._forget(process)
        process.left = code == 0
        if self._observer is not None and process.left:
            self._observer.forget(process.event.rank)
        if self._first_end is None and code != 0:
            self._first_end = time.monotonic()
        self._emit(RankExited(now(), process.event.rank, process.event.restart, code, dumped))
        if dumped:
            from ddp_run.observe import core_dump

            self._emit(core_dump.find(now(), process.event))
        if code != 0:
            self._look_around(process.event.restart)

    def _forget(self, process: _RankProcess) -> None:
        if process.pidfd is not None:
            self.loop.unwatch(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None

    def _reap(self) -> None:
        for pid, code in reap():
            if pid == self._agent:
                self._on_agent_end(code)
                continue
            if self._asides.reaped(pid) or self.keeper.reaped(pid):
                continue
            self._surroundings.reaped(pid)
            for process in self._ranks.values():
                if process.event.pid == pid:
                    self._on_rank_end(process, code)

    def _on_agent_end(self, code: int) -> None:
        self._agent = None
        self._read_inbox()
        for process in self._ranks.values():
            if process.alive and not processes.is_alive(process.event.pid):
                self._on_rank_end(process)
        self._emit(AgentExited(now(), code))
        if code != 0 and self._looked_around is None and not self._agent_killed:
            self._look_around(-1)

    def _look_for_ranks(self) -> None:
        if self._agent is None or self._finished:
            return
        self.loop.set_timer("look-for-ranks", _LOOK_FOR_RANKS_S)
        if self._complete():
            return
        found = processes.find_ranks(self._agent)
        self._read_inbox()  # whoever has said hello by now has said more than can be found
        for pid, environ in found:
            if all(process.event.pid != pid for process in self._ranks.values()):
                self._on_rank_start(_silent_rank(pid, environ, self.number))

    def _look_for_deaths(self) -> None:
        self._read_inbox()
        silent = [process for process in self._ranks.values() if process.alive and process.pidfd is None]
        for process in silent:
            if not processes.is_alive(process.event.pid):
                self._on_rank_end(process)
        if any(process.alive for process in silent):
            self.loop.set_timer("look-for-deaths", _LOOK_FOR_DEATHS_S)

    def _complete(self) -> bool:
        """Whether all ranks of the latest start are known."""
        known = self._latest()
        return bool(known) and len(known) >= known[0].event.local_world_size

    def _latest(self) -> list[_RankProcess]:
        """The ranks of the latest start."""
        latest = max((process.event.restart for process in self._ranks.values()), default=0)
        return [process for process in self._ranks.values() if process.event.restart == latest]

    def _load_a_rule(self) -> None:
        from ddp_run.judge.catalogue import rule_modules

        if self._rules is None:
            self._rules = rule_modules()
        if next(self._rules, None) is not None:
            self.loop.set_timer("load-catalogue", _NEXT_RULE_S)

    def _look_for_report(self) -> None:
        if self._agent is None:
            return
        from ddp_run.evidence import childfailed
        from ddp_run.evidence.log_tail import GrowingLog

        if self._agent_log is None:
            self._agent_log = GrowingLog(self.folder / "agent.log", "agent.log")
        log = self._agent_log.more()
        if log is not None and childfailed.is_complete(log.lines):
            self._emit(AgentReported(now()))
        else:
            self.loop.set_timer("look-for-report", _LOOK_FOR_REPORT_S)

    # ------------------------------------------------------------- what the ranks show

    def _watch_rank(self, event: RankStarted) -> None:
        if not event.watched:
            return
        if self._observer is None:
            from ddp_run.observe.observer import Observer

            self._observer = Observer(
                self.inbox.board_folders, self.run_folder, self.folder, self._environ, self._asides
            )
            self.loop.set_timer("look-at-ranks", 1.0)
        self._observer.forget(event.rank)

    def _look_at_ranks(self) -> None:
        try:
            self._observe()
        except Exception as error:  # looking is optional: what goes wrong there is no concern of the job
            if self._observer is not None:
                self._observer.close()
            self._observer = None
            self._emit(Noted(now(), f"ranks are not observed any more: {type(error).__name__}: {error}"))

    def _observe(self) -> None:
        if self._observer is None or self._finished or not self.run.is_running:
            return
        alive = [process.event for process in self._ranks.values() if process.alive and process.event.watched]
        left = sorted(process.event.rank for process in self._latest() if process.left)
        events, after_s = self._observer.look(now(), alive, left, self._gpu_use(alive))
        for event in events:
            self._emit(event)
        stalled_s = self._observer.stalled_s(now())
        stall = self._observer.stall  # ranks that all work, if only without a step, are let be, and so is a debugger
        standing = stall is not None and not stall.patient
        if self.hang_timeout_s is not None and standing and stalled_s >= self.hang_timeout_s:
            self._emit(HangTimedOut(now(), stalled_s))
        self.loop.set_timer("look-at-ranks", after_s)

    def _gpu_use(self, alive: Sequence[RankStarted]) -> Sequence[GpuUse]:
        """How busy the GPUs are, while a closer look is under way."""
        if self._observer is None or not self._observer.looks_closer:
            return ()
        return self._surroundings.gpu_use({event.rank: event.local_rank for event in alive})

    def _note_progress(self) -> None:
        try:
            progress = self._observer.progress(now()) if self._observer is not None else None
        except (OSError, ValueError):
            return
        if progress is not None:
            self._emit(progress)

    def _look_around(self, restart: int) -> None:
        """At the first failure of each start of the ranks: later ones follow from it, and so may what they leave."""
        if self._looked_around == restart:
            return
        self._looked_around = restart
        self._note_progress()
        self._surroundings.ranks_fail()

    # ---------------------------------------------------------------- who is below us

    def _started(self) -> dict[Rank, int]:
        return {rank: process.event.pid for rank, process in self._ranks.items()}

    def _living(self) -> dict[Rank, int]:
        return {rank: process.event.pid for rank, process in sorted(self._ranks.items()) if process.alive}

    def _not_the_jobs(self) -> Set[int]:
        """Pids below us that are not the job's."""
        keeper = set() if self.keeper.pid is None else {self.keeper.pid}
        return {*self.keep, *keeper, *self._asides.pids, *self._surroundings.pids} - set(self._living().values())

    # ------------------------------------------------------------------- actions

    def _emit(self, event: Event) -> None:
        self.journal.record(event)
        self.output.tell(event)
        for action in self.run.on(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case SendSignal():
                self._send(action)
            case SetTimer(name, after_s):
                self.loop.set_timer(name, after_s)
            case AwaitReport():
                self._agent_log = None
                self._look_for_report()
            case TellUnfinished(failed, kill_in_s):
                self.output.tell_unfinished(failed, kill_in_s)
            case SuspendSelf():
                self._suspend()
            case FinishAttempt():
                self._finished = True
                self._surroundings.rest()
            case _:
                assert_never(action)

    def _send(self, order: SendSignal) -> None:
        pids = self._pids(order)
        if order.only_if_handled:
            deaf = [pid for pid in pids if not processes.outlives(pid, order.signum)]
            pids = [pid for pid in pids if pid not in deaf]
            if deaf:
                name = signal.Signals(order.signum).name
                self._emit(Noted(now(), f"{name} not forwarded to {deaf}: it would end them, they do not handle it"))
        reached = processes.send_signal(pids, order.signum)
        if order.signum == signal.SIGKILL:
            self._killed.update(reached)
            self._agent_killed |= self._agent in reached
        self._emit(SignalSent(now(), order.target, order.signum, reached, order.reason))

    def _pids(self, order: SendSignal) -> list[int]:
        match order.target:
            case Target.AGENT:
                return [] if self._agent is None else [self._agent]
            case Target.RANKS:
                return [
                    process.event.pid
                    for rank, process in self._ranks.items()
                    if process.alive and (not order.ranks or rank in order.ranks)
                ]
            case Target.JOB:
                return processes.descendants(but=self._not_the_jobs())
            case _:
                assert_never(order.target)

    def _suspend(self) -> None:
        pids = processes.descendants(but=self._not_the_jobs())
        processes.send_signal(pids, signal.SIGSTOP)
        self._emit(SignalSent(now(), Target.JOB, signal.SIGSTOP, tuple(pids), "ddp-run was stopped"))
        self.output.console.suspend()
        stopped_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.loop.postpone_timers(time.monotonic() - stopped_at)
        processes.send_signal(pids, signal.SIGCONT)
        self._emit(SignalSent(now(), Target.JOB, signal.SIGCONT, tuple(pids), "ddp-run was continued"))

    # ---------------------------------------------------------------------- the end

    def _end_leftovers(self) -> None:
        """End what ranks left behind, and name what does not end."""
        from ddp_run.supervise.leftovers import Leftovers, not_ended

        leftovers = Leftovers(self._emit, self._serve, self._not_the_jobs)
        leftovers.end(self._remaining_grace_s(), self._killed)
        ranks = {each.event.pid: each.event for each in self._ranks.values() if each.alive}
        # a rank whose main thread has ended and another one not is listed as a zombie
        left = {*leftovers.pids(), *ranks}
        self.not_ended = frozenset({*left, *self._asides.pids, *self._surroundings.pids})
        for event in not_ended(left, ranks, self._observer.paths if self._observer is not None else {}):
            self._emit(event)

    def _remaining_grace_s(self) -> float:
        if self._first_end is None:
            return self.run.grace_s
        return max(0.0, self._first_end + self.run.grace_s - time.monotonic())

    def _serve(self, at_most_s: float) -> bool:
        """Whether a stop signal came meanwhile."""
        stops = self.stops
        self._turn(at_most_s)
        return self.stops > stops


def _silent_rank(pid: int, environ: Mapping[str, str], attempt: int) -> RankStarted:
    rank, restart = Rank(int(environ["RANK"])), int(environ["TORCHELASTIC_RESTART_COUNT"])
    within = f"attempt_{attempt}/restart_{restart}" if restart else f"attempt_{attempt}"
    return RankStarted(
        at=now(),
        rank=rank,
        local_rank=LocalRank(int(environ.get("LOCAL_RANK", "0"))),
        restart=restart,
        pid=pid,
        world_size=int(environ.get("WORLD_SIZE", "0")),
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE", "0")),
        folder=f"{within}/rank_{rank}",
    )
