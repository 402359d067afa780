"""A run from its plan to its exit code: attempts, what follows each, and the files that tell of it.

The first agent is started before anything is loaded that it does not need: the agent then imports torch for a second
or more, time enough for the rest of ddp-run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, final

from ddp_run.plan.launch_plan import (
    RANK_PROGRAM,
    LaunchPlan,
    agent_argv,
    agent_needed,
    local_restarts,
    log_dir,
)
from ddp_run.record.attempt_events import ended_before_retry
from ddp_run.record.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    EventSink,
    MemoryCounted,
    Next,
    Noted,
    PeerFailed,
    RunEnded,
    SignalReceived,
)
from ddp_run.record.journal import Journal, now
from ddp_run.record.run_folder import RunFolder
from ddp_run.supervise import children
from ddp_run.supervise.agent import Agent
from ddp_run.supervise.agent_start import agent_environ, console_settings, places, run_started
from ddp_run.supervise.attempt import Attempt
from ddp_run.supervise.inbox import Inbox, clear_stale
from ddp_run.supervise.interlude import Interlude
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.machine import HANDLED_SIGNALS, AttemptMachine
from ddp_run.supervise.retries import Outcome, Retries
from ddp_run.tell.output import AT_THE_END_S, BETWEEN_ATTEMPTS_S, LEAST_S, Output, Patience, last_words
from ddp_run.tell.tail import Tailer
from ddp_run.values.helper_process import HelperProcesses
from ddp_run.values.process_table import living
from ddp_run.values.redaction import redact_words
from ddp_run.values.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from pathlib import Path

    from ddp_run.judge.retry import Decision
    from ddp_run.judge.verdict import Verdict
    from ddp_run.supervise.end_hooks import EndHooks
    from ddp_run.supervise.nodes.join import JobSide
    from ddp_run.tell.teller import Teller

_NEEDED_WHEN_RANKS_START_OR_DIE = (
    "ddp_run.observe.observer",
    "ddp_run.observe.core_dump",
    "ddp_run.judge.judging",
    "ddp_run.judge.retry",
    "ddp_run.supervise.backoff",
    "ddp_run.supervise.leftovers",
    "ddp_run.tell.teller",
)
"""Loaded while the agent imports torch: the loop must not be away later."""
_INTERNAL_ERROR = 70
"""sysexits.h EX_SOFTWARE: ddp-run itself failed."""


def supervise(
    plan: LaunchPlan,
    argv: Sequence[str],
    environ: Mapping[str, str],
    warnings: Sequence[str],
    begun: Callable[[Path], None] | None = None,
) -> int:
    """Run the job; returns the exit code for ddp-run. Raises OSError where its folder or sockets cannot be made.

    `begun` gets the run's folder as soon as there is one.
    """
    brought_along = children.BroughtAlong()
    children.become_subreaper()
    with ExitStack() as stack:
        trusted = "log_dir" in plan.options.given
        folder = RunFolder.create(log_dir(plan.options), datetime.now(), trusted=trusted)
        if begun is not None:
            begun(folder.path)
        journal = Journal(folder.events)
        stack.callback(journal.close)
        loop = stack.enter_context(Loop(HANDLED_SIGNALS))
        inbox = stack.enter_context(Inbox())
        job = _Job(plan, tuple(argv), environ, tuple(warnings), folder, journal, loop, inbox, stack, brought_along)
        try:
            return job.run()
        except Exception:
            children.kill_everything_below(brought_along)
            with suppress(Exception):
                import traceback

                from ddp_run.values.redaction import redact

                said = f"ddp-run: internal error; the job was killed; its files: {folder.path}\n"
                last_words(said + redact(traceback.format_exc()))
            return _INTERNAL_ERROR if job.known_status is None else job.known_status


@final
@dataclass
class _Job:
    plan: LaunchPlan
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    warnings: tuple[str, ...]
    folder: RunFolder
    journal: Journal
    loop: Loop
    inbox: Inbox
    stack: ExitStack
    brought_along: children.BroughtAlong
    output: Output = field(init=False)
    _sinks: tuple[EventSink, ...] = ()
    known_status: int | None = None
    """The exit code that is called for by what was judged last; null before the first attempt was."""
    _interlude: Interlude = field(init=False)
    _retries: Retries = field(init=False)
    keeper: children.Keeper = field(init=False)
    _helpers: HelperProcesses = field(default_factory=HelperProcesses)
    _not_ended: Mapping[int, int] = field(default_factory=dict)
    """What could not be ended of attempts, and when it began."""
    _waiting: Attempt | None = None
    _running: Attempt | None = None
    _nodes: JobSide | None = None
    """With the other nodes of the job, where there are any."""
    _ended_by: PeerFailed | None = None
    """Another node, which ended the job between two attempts."""
    _hooks: EndHooks | None = None
    """The user's commands at the end, when they run."""
    _last: Outcome | None = None
    """Of the attempt before."""
    _shown_until: Attempt | None = None
    """An attempt whose output may not have been shown to its end."""

    def run(self) -> int:
        self._retries = Retries(self.plan, lambda: self._nodes is not None)
        self.output = Output(console_settings(self.plan.options), self.environ, self.loop)
        self.keeper = children.Keeper(self.folder.run_id, self.inbox.board_folders, self._helpers, self.brought_along)
        self.stack.callback(self.keeper.dismiss)
        self._sinks = (self.journal.record, self.output.tell)
        self._interlude = Interlude(self.loop, self._emit, self._reaped, self.output.console.suspend)
        self._emit(run_started(self.plan, self.folder.run_id, self.argv))
        self._waiting = self._start_attempt()
        self._start_keeper()
        self._join_nodes()
        self._after_spawn()
        from ddp_run.supervise import backoff

        retrying = backoff.attempts(
            again=lambda outcome: outcome.decision.retry and not self._is_ending,
            sleep=self._pause,
            before_sleep=self._announce_retry,
        )
        outcome: Outcome = retrying(self._attempt)
        return self._end(outcome)

    # ------------------------------------------------------------------ attempts

    def _attempt(self) -> Outcome:
        """One attempt that counts; those that only lost their port, or their backend, do not."""
        while True:
            if self._last is not None:
                self._interlude.serve(0)  # not before the first attempt: its agent runs already, and signals are for it
                if self._is_ending:
                    return self._last
            try:
                attempt = self._waiting or self._start_attempt()
            except OSError as error:
                if self._last is None:
                    raise
                return self._not_started(self._last, error)
            self._waiting, self._running = None, attempt
            attempt.run()
            self._running = None
            self._interlude.stops += attempt.stops
            # what could not be ended has SIGKILL already, and is no leftover of the next attempt
            self._not_ended = living({**self._not_ended, **attempt.not_ended})
            outcome = self._last = self._conclude(attempt)
            self._shown_until = attempt
            self._show_failed(outcome.verdict)
            if not outcome.decision.free:
                return outcome
            self._catch_up(self._patience(BETWEEN_ATTEMPTS_S))
            if outcome.decision.backend is not None or not self.plan.may_change_port:
                self._teller().repeated(outcome.verdict, outcome.decision)

    def _start_attempt(self) -> Attempt:
        number = self._retries.started
        folder = self.folder.attempt_folder(number)
        override = self._retries.choose_port()
        argv = agent_argv(self.plan, folder=folder, rank_program=RANK_PROGRAM, port=override)
        self._emit(AttemptStarted(now(), number, redact_words(argv), self._retries.port))
        options = self.plan.options
        tailer = self.stack.enter_context(Tailer())
        attempt = Attempt(
            number=number,
            folder=folder,
            run_folder=self.folder.path,
            machine=AttemptMachine(
                options.grace_s, local_restarts(options), self.plan.agent_signals, agent_needed(options)
            ),
            agent=Agent(folder),
            loop=self.loop,
            to_sinks=self._emit,
            inbox=self.inbox,
            output=self.output,
            tailer=tailer,
            places=places(self.environ, self.folder),
            earlier_pids=frozenset(self._not_ended),
            keeper=self.keeper,
            brought_along=self.brought_along,
            helpers=self._helpers,
            hang_timeout_s=options.hang_timeout_s,
        )
        backend = self._retries.backend
        attempt.start(argv, agent_environ(self.plan, self.environ, self.folder, self.inbox, number, backend))
        self._retries.started += 1
        self._count_memory()
        return attempt

    def _not_started(self, last: Outcome, error: OSError) -> Outcome:
        """The run ends as its last attempt did: there is no other."""
        from ddp_run.judge import retry

        number = self._retries.started
        decision = retry.not_started(number + 1, error)
        self._record_end(number, last.verdict, decision)
        return Outcome(last.verdict, decision)

    def _conclude(self, attempt: Attempt) -> Outcome:
        from ddp_run.judge import judging, retry

        self._count_memory()
        run = self.folder.path, self.journal.events, attempt.number
        if self._retries.are_used_up:
            seen = judging.judged_by_events(*run)
            if seen.outcome != "succeeded":  # there is an answer, should nobody let us read the logs
                self._teller().write(seen, retry.UNDECIDED)
        verdict = judging.judged(*run, limit_s=judging.LIMIT_S)
        if self._nodes is not None:
            verdict, decision = self._nodes.agree(verdict, attempt.number, self._retries.decide)
        else:
            if self.plan.options.max_nodes > 1:
                from ddp_run.judge.of_nodes import alone

                verdict = alone(verdict)
            decision = self._retries.decide(verdict)
        self.known_status = verdict.status
        self._retries.count(verdict, decision)
        self._record_end(attempt.number, verdict, decision)
        return Outcome(verdict, decision)

    def _record_end(self, number: int, verdict: Verdict, decision: Decision) -> None:
        outcome, follows = verdict.outcome or "failed", Next.RETRY if decision.retry else Next.STOP
        self._emit(AttemptEnded(now(), number, outcome, verdict.cause, verdict.status, follows, decision.reason))

    # ------------------------------------------------------------ between attempts

    def _show_failed(self, verdict: Verdict) -> None:
        try:
            self.output.show_failed(verdict, self.journal.events, self.folder.path)
        except Exception as error:  # the files hold these lines
            self.output.say(f"cannot show the last lines of the failed ranks ({type(error).__name__})")

    def _catch_up(self, patience: Patience) -> None:
        """Let the console show what is left of the last attempt's output, as far as there is time."""
        attempt, self._shown_until = self._shown_until, None
        if attempt is not None:
            self.output.show_rest(attempt.tailer, self.folder.path, patience)
            self._note_files(attempt)
            self.output.end_attempt(attempt.tailer)

    def _note_files(self, attempt: Attempt) -> None:
        for note in attempt.tailer.take_notes():
            self._emit(Noted(now(), note))

    def _announce_retry(self, outcome: Outcome, delay_s: float) -> None:
        self._catch_up(self._patience(BETWEEN_ATTEMPTS_S))
        if not self._is_ending:
            counted = self._retries.counted
            attempt, most = counted + 1, max(counted, self.plan.options.max_retries) + 1
            self._teller().retrying(outcome.verdict, outcome.decision.reason, delay_s=delay_s, attempt=attempt, of=most)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0 and not self._is_ending:
            self._interlude.serve(remaining)

    @property
    def _is_ending(self) -> bool:
        """Nothing more is to be started."""
        return self._interlude.stops > 0 or self._ended_by is not None

    def _hear_of_end(self, attempt: int, event: Event) -> None:
        """Another node ends an attempt: the one that runs, or the next one before it begins."""
        if self._running is not None and self._running.number == attempt:
            self._running.hear(event)
        elif attempt == self._retries.started and isinstance(event, PeerFailed):
            self._ended_by = event

    def _emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)

    # ------------------------------------------------------------------ beginning and end

    def _start_keeper(self) -> None:
        try:
            self.keeper.start()
        except OSError as error:
            self._emit(Noted(now(), f"cannot start the keeper: {error}"))

    def _after_spawn(self) -> None:
        """What may wait until the agent runs: the plan's file, and what the user should know."""
        from ddp_run.plan import plan_file

        node = None
        if self.plan.options.has_fixed_nodes:
            from ddp_run.plan import node_facts

            node = node_facts.of_plan(self.plan, self.environ)
        plan_file.write(self.folder.plan, self.plan, self.argv, self.folder.run_id, node)
        for warning in self.warnings:
            self.output.say(warning, level="warning")
        if self.folder.note is not None:
            self._emit(Noted(now(), self.folder.note))
        self.output.load()
        clear_stale()
        for name in _NEEDED_WHEN_RANKS_START_OR_DIE:
            import_module(name)
        from ddp_run.tell.teller import Restarts

        self._sinks = (*self._sinks, Restarts(self.folder.path, self.journal.events, self.output).tell)

    def _join_nodes(self) -> None:
        """Meet the other nodes of the job, where there are any: while the agent loads torch."""
        if self.plan.options.max_nodes == 1:
            return
        from ddp_run.supervise.nodes.agreement import Ears
        from ddp_run.supervise.nodes.join import JobSide

        ears = Ears(
            loop=self.loop,
            emit=self._emit,
            say=partial(self.output.say, level="warning"),
            end_ranks=self._hear_of_end,
            serve=self._interlude.serve,
            stops=lambda: self._interlude.stops,
            helpers=self._helpers,
        )
        self._nodes = JobSide.join(self.plan, self.environ, self.folder, self.journal, ears)
        if self._nodes is not None:
            self.stack.callback(self._nodes.close)
            self._sinks = (*self._sinks, self._nodes.hear)

    def _count_memory(self) -> None:
        from ddp_run.observe.memory import count_oom_kills

        self._emit(MemoryCounted(now(), *count_oom_kills()))

    def _end(self, outcome: Outcome) -> int:
        """The answer first, in verdict.json; then the console catches up and shows it."""
        from ddp_run.judge import judging, retry

        if self._ended_by is not None:
            self._emit(self._ended_by)
        verdict = judging.final(outcome.verdict, self.journal.events)
        by = ended_before_retry(self.journal.events)
        if self._nodes is not None and by is not None:
            verdict, _stop = self._nodes.agree(verdict, self._retries.started, lambda _verdict: retry.ended(by))
        reason = judging.final_reason(outcome.decision.reason, self.journal.events)
        self.known_status = verdict.status
        teller = self._teller()
        document = teller.write(verdict, reason)
        patience = self._patience(AT_THE_END_S)
        if self._shown_until is not None:
            self.output.show_rest(self._shown_until.tailer, self.folder.path, patience, before_own=True)
            self._note_files(self._shown_until)
        self._emit(RunEnded(now(), verdict.status))
        if self.journal.broken is not None:
            self.output.say(f"{self.folder.events} is incomplete: {self.journal.broken.strerror}", level="warning")
        teller.show(verdict, reason, document)
        self._run_hooks(verdict, patience)
        self._catch_up(patience)
        teller.show_line(verdict)
        self.output.finish(patience)
        self._keep_against_host(verdict)
        return verdict.status

    def _patience(self, seconds: float) -> Patience:
        """With the console's readers; less where the job was told to stop and its grace is nearly over."""
        received = (event for event in self.journal.events if isinstance(event, SignalReceived))
        stopped_at = next((event.at for event in received if event.signum in STOP_SIGNALS), None)
        if stopped_at is not None:
            left_s = self.plan.options.grace_s - (now() - stopped_at) / 1e9
            seconds = min(seconds, max(left_s, LEAST_S))
        return Patience(seconds, self._interlude.served_stop)

    def _keep_against_host(self, verdict: Verdict) -> None:
        """Node 0 tells of all hosts: it has the verdict of all nodes."""
        if verdict.cause is None:
            return
        from ddp_run.supervise import host_record

        if self.journal.events and (self._nodes is None or self._nodes.where() is None):
            host_record.keep(verdict, self.folder.run_id, self.environ)

    def _run_hooks(self, verdict: Verdict, patience: Patience) -> None:
        """The user's commands, where there are any: what waits for the console goes there first."""
        options = self.plan.options
        if not options.has_hooks:
            return
        self.keeper.dismiss()  # what they leave in the background is the user's
        from ddp_run.supervise.end_hooks import EndHooks, hook_environ, hooks

        self.output.flush(patience)
        began = time.monotonic()
        environ = hook_environ(self.environ, options, verdict, self.folder, self._retries.started)
        warn = partial(self.output.say, level="warning")
        self._hooks = EndHooks(environ, self._interlude.serve, lambda: self._interlude.stops, warn)
        self._hooks.run(hooks(options, verdict.outcome, self.environ))
        patience.add(time.monotonic() - began)

    def _reaped(self, pid: int, code: int) -> None:
        self._helpers.reaped(pid)
        if self._hooks is not None:
            self._hooks.reaped(pid, code)

    def _teller(self) -> Teller:
        from ddp_run.tell.teller import Teller

        line = self.environ.get("DDP_RUN_VERDICT_LINE") == "1"
        where = self._nodes.where() if self._nodes is not None else None
        made = self._retries.started
        return Teller(self.folder, self.journal.events, self.output, made, line_always=line, whole=where)
