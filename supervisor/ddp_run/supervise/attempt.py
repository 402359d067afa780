"""One attempt: the agent and its ranks as sources of events, the machine that decides, and its orders carried out.

Events wait in one queue. Each is recorded and shown, then given to the machine (`ddp_run.supervise.machine`), and the
orders that it returns are carried out. Events that come of that go to the end of the queue.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never, final

from ddp_run.plan.launch_plan import agent_argv, agent_needed, local_restarts
from ddp_run.record import file_names
from ddp_run.record.events import (
    AgentExited,
    AgentReported,
    AgentStarted,
    AttemptStarted,
    Event,
    Noted,
    RankExited,
    RankFailed,
    RanksEnded,
    RankStarted,
    SignalReceived,
    TimerFired,
)
from ddp_run.record.journal import now
from ddp_run.supervise.actions import (
    Action,
    AwaitReport,
    FinishAttempt,
    SendSignal,
    SetTimer,
    TellFailed,
    TellRanksEnded,
    TellUnfinished,
)
from ddp_run.supervise.agent import Agent, Start, agent_environ
from ddp_run.supervise.children import end_leftovers, not_ended
from ddp_run.supervise.inbox import Heard
from ddp_run.supervise.machine import AttemptMachine
from ddp_run.supervise.ranks import RankProcess, Ranks, read_exit_status
from ddp_run.supervise.retries import Retries
from ddp_run.supervise.run import Run
from ddp_run.tell.tail import Tailer
from ddp_run.values.process_table import is_alive, living
from ddp_run.values.redaction import redact_words
from ddp_run.values.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from ddp_run.supervise.last_page import PageMaker

_LOOK_FOR_RANKS_S = 2.0
"""How often to look for ranks among the agent's children, for those that can't say hello."""
_LOOK_FOR_REPORT_S = 0.02
_LOAD_CATALOGUE_S = 3.0
"""When to begin to load the rules, after a rank's start, which needs the CPU: before a host may have run out of memory
or files, and not for a job that is over by then. One per turn, so that the loop isn't away when ranks die."""
_NEXT_RULE_S = 0.02
_NEXT_WANTED_RULE_S = 0.005
"""The same once the attempt has failed."""
_PREPARE_PAGE_S = 0.02
"""After the first failure: a fork takes some milliseconds, and the order in which ranks end is looked at first."""


@final
class Attempt:
    """Starts an agent and stays with it to its end."""

    def __init__(self, run: Run, retries: Retries, start: Start) -> None:
        """`start`: starts the agent. Raises OSError if there's no port, or if the attempt's folder can't be made."""
        plan, options = run.plan, run.plan.options
        instead = retries.choose_port()
        self.number = number = retries.started
        self._run = run
        self._folder = run.folder.attempt_folder(number)
        self._port = retries.port
        self._argv = agent_argv(plan, folder=self._folder, port=instead)
        self._environ = agent_environ(plan, run.environ, run.folder, run.inbox, number, retries.backend)
        self._agent = Agent(self._folder, start)
        self._machine = AttemptMachine(options.grace_s, local_restarts(options), plan.agent_signals, agent_needed(plan))
        self._ranks = Ranks(number, run.loop, self._read_inbox, self._on_rank_end)
        self._tailer = run.stack.enter_context(Tailer())
        self._queue: deque[Event] = deque()
        self._serving = False
        """An event of the queue is being served."""
        self._finished = False
        self._strangers = False
        """Messages came that weren't the ranks' own."""
        self._first_end: float | None = None
        """When a rank first ended with another code than 0, on time.monotonic()."""
        self.page: PageMaker | None = None
        """Makes the page of a run that ends with this attempt."""
        self._rules: Iterator[str] | None = None
        """Loads one rule per step."""

    def start(self) -> None:
        """Start the agent. Raises OSError."""
        run = self._run
        run.emit(AttemptStarted(now(), self.number, redact_words(self._argv), self._port))
        self._put(AgentStarted(now(), self._agent.start(self._argv, self._environ)))
        from ddp_run.supervise.attempt_watch import AttemptWatch

        self._watch = AttemptWatch(
            run, self._put, self._ranks, self._folder, self._environ, lambda: self._machine.is_running
        )
        run.loop.watch(run.inbox.fileno(), self._read_inbox)
        run.loop.set_timer(_LOOK_FOR_RANKS_S, self._look_for_ranks)

    def wait(self) -> None:
        """Serve the loop until the attempt is over and nothing is left of it."""
        run = self._run
        run.tailer, run.on_signal, run.on_child_end = self._tailer, self._on_signal, self._on_child_end
        while not self._finished:
            run.serve(None)
        run.loop.clear_timers()
        self._watch.rest()
        self._end_leftovers()
        self._read_inbox()  # the next attempt would read what is left
        while (remaining := self._watch.awaited_s()) > 0:
            run.serve(remaining)
        self._watch.close()
        run.loop.unwatch(run.inbox.fileno())
        self._ranks.close()
        run.on_signal = run.on_child_end = None

    @property
    def has_failed(self) -> bool:
        """Whether a rank or the agent has, or the job was told to stop."""
        return self._watch.has_failed or self._run.stops > 0

    def prepare_page(self) -> None:
        """The attempt has failed, so a page may be wanted soon."""
        from ddp_run.supervise import last_page

        if self.page is None:
            self.page = last_page.begin(self._run)

    def hear(self, event: Event) -> None:
        """Take an event from elsewhere: another node fails."""
        if not self._finished:
            self._put(event)

    # ------------------------------------------------------------------------------- the queue

    def _put(self, event: Event) -> None:
        """Append to the queue and serve it, unless it's being served."""
        self._queue.append(event)
        if self._serving:
            return
        self._serving = True
        try:
            while self._queue:
                event = self._queue.popleft()
                self._run.emit(event)
                was_running = self._machine.is_running
                for action in self._machine.on(event):
                    self._do(action)
                if was_running and not self._machine.is_running:
                    self._run.loop.set_timer(_PREPARE_PAGE_S, self.prepare_page)
                    self._run.loop.set_timer(_NEXT_WANTED_RULE_S, self._load_a_rule)
        finally:
            self._serving = False

    def _do(self, action: Action) -> None:
        match action:
            case SendSignal():
                for event in self._ranks.send(action, self._agent.pid, self._run.job_processes):
                    self._put(event)
            case SetTimer(timer, after_s):
                key = timer.kind, timer.rank, timer.restart
                self._run.loop.set_timer(after_s, lambda: self._put(TimerFired(now(), timer)), key=key)
            case AwaitReport():
                self._look_for_report()
            case TellRanksEnded():
                self._put(RanksEnded(now()))
            case TellFailed(failed):
                self._run.output.tell_failed(failed)
            case TellUnfinished(why, ranks, kill_in_s, stop_signal):
                self._run.output.tell_unfinished(why, ranks, kill_in_s, stop_signal)
            case FinishAttempt():
                self._finished = True
            case _:
                assert_never(action)

    # ----------------------------------------------------------------------- sources of events

    def _on_signal(self, signum: int) -> None:
        self._read_inbox()  # ranks that have said hello by now must get it too
        if signum in STOP_SIGNALS:
            self._watch.stops()
        self._put(SignalReceived(now(), signum))

    def _read_inbox(self) -> None:
        for heard in self._run.inbox.read():
            if not self._ranks.is_own_word(heard):
                self._note_stranger(heard)
            elif isinstance(heard.said, RankStarted):
                self._on_rank_start(heard.said)
            else:
                self._put(heard.said)
                if isinstance(heard.said, RankFailed):
                    self._watch.fails(heard.restart)

    def _note_stranger(self, heard: Heard) -> None:
        """Note it once: a process that sends one such message may send many."""
        if not self._strangers:
            whose = f"rank {heard.rank} of attempt {heard.attempt} (start {heard.restart})"
            self._put(Noted(now(), f"ignored a message from process {heard.sender}, which claims to be {whose}"))
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
            self._tailer.retire(event.rank)
        there = self._ranks.add(event)
        for stream, name in file_names.OF_A_STREAM.items():
            path = self._run.folder.path / event.folder / name
            self._tailer.add(event.rank, event.local_rank, stream, path, links=event.links)
        self._put(event)
        self._watch.rank_starts(event)
        if self._rules is None:
            self._run.loop.set_timer(_LOAD_CATALOGUE_S, self._load_a_rule)
        process = self._ranks.of(event.rank)
        if not there and process is not None:
            self._on_rank_end(process)

    def _on_rank_end(self, process: RankProcess, code: int | None = None) -> None:
        if not process.alive:
            return
        process.alive = False
        dumped = None
        if code is None:
            status = read_exit_status(process.event.pid, process.pidfd)
            if status is not None:
                code, dumped = os.waitstatus_to_exitcode(status), os.WCOREDUMP(status)
        self._ranks.forget(process)
        process.exited_clean = code == 0
        if process.exited_clean:
            self._watch.rank_leaves(process.event.rank)
        elif self._first_end is None:
            self._first_end = time.monotonic()
        self._put(RankExited(now(), process.event.rank, process.event.restart, code, dumped))
        if dumped:
            from ddp_run.observe import core_dump

            self._put(core_dump.find(now(), process.event))
        if code != 0:
            self._watch.fails(process.event.restart)

    def _on_child_end(self, pid: int, code: int) -> None:
        if pid == self._agent.pid:
            self._agent.pid = None
            self._on_agent_end(code, was_killed=pid in self._ranks.killed)
            return
        for process in self._ranks.of_pid(pid):  # adopted after the agent's death
            self._on_rank_end(process, code)

    def _on_agent_end(self, code: int, *, was_killed: bool) -> None:
        self._read_inbox()
        for process in self._ranks:
            if process.alive and not is_alive(process.event.pid):
                self._on_rank_end(process)
        self._put(AgentExited(now(), code))
        if code != 0 and not self._watch.has_failed and not was_killed:
            self._watch.fails(-1)

    def _look_for_ranks(self) -> None:
        if self._agent.pid is None:
            return
        self._run.loop.set_timer(_LOOK_FOR_RANKS_S, self._look_for_ranks)
        if not self._ranks.complete:
            for event in self._ranks.unheard(self._agent.pid):
                self._on_rank_start(event)

    def _look_for_report(self) -> None:
        if self._agent.pid is None:
            return
        if self._agent.has_reported():
            self._put(AgentReported(now()))
        else:
            self._run.loop.set_timer(_LOOK_FOR_REPORT_S, self._look_for_report)

    def _load_a_rule(self) -> None:
        from ddp_run.judge.catalogue import rule_modules

        self._rules = self._rules or rule_modules()
        if next(self._rules, None) is not None:
            pause_s = _NEXT_RULE_S if self._machine.is_running else _NEXT_WANTED_RULE_S
            self._run.loop.set_timer(pause_s, self._load_a_rule)

    # --------------------------------------------------------------------------------- the end

    def _end_leftovers(self) -> None:
        """End what ranks left behind, and name what doesn't end."""
        run = self._run
        grace_s = self._machine.grace_s
        if self._first_end is not None:
            grace_s = max(0.0, self._first_end + grace_s - time.monotonic())
        end_leftovers(run.job_processes, run.serve, self._put, grace_s=grace_s, killed=self._ranks.killed)
        left = run.job_processes()
        for event in not_ended(left, [each.event for each in self._ranks if each.alive], self._watch.paths):
            self._put(event)
        run.not_ended = living({**run.not_ended, **left})  # it has SIGKILL already, so the next attempt doesn't end it
