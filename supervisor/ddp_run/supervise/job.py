"""A job on this node, attempt by attempt, from its launch plan to its exit code.

The first agent starts before anything is loaded that it doesn't need. It then imports torch for a second or more, which
is time enough to load the rest of ddp-run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, final

from ddp_run.plan.launch_plan import LaunchPlan, log_dir
from ddp_run.record.events import (
    AttemptEnded,
    Event,
    MemoryCounted,
    Next,
    Noted,
    PeerFailed,
)
from ddp_run.record.journal import Journal, now
from ddp_run.record.run_folder import RunFolder
from ddp_run.supervise import companions
from ddp_run.supervise.agent import start
from ddp_run.supervise.attempt import Attempt
from ddp_run.supervise.children import BroughtAlong, become_subreaper, kill_everything_below
from ddp_run.supervise.inbox import Inbox, clear_stale
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.retries import Outcome, Retries, back_off
from ddp_run.supervise.run import HANDLED_SIGNALS, Run
from ddp_run.tell.output import BETWEEN_ATTEMPTS_S, last_words

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from ddp_run.supervise.last_page import PageMaker
    from ddp_run.supervise.warm_agents import WarmAgents

_NEEDED_WHEN_RANKS_START_OR_DIE = (
    "ddp_run.observe.observer",
    "ddp_run.observe.core_dump",
    "ddp_run.judge.judging",
    "ddp_run.judge.retry",
    "ddp_run.supervise.run_end",
    "tenacity",
)
"""Loaded while the agent imports torch; later the loop must not be away."""
_INTERNAL_ERROR = 70
"""sysexits.h EX_SOFTWARE: ddp-run itself failed."""


def supervise(
    plan: LaunchPlan,
    argv: Sequence[str],
    environ: Mapping[str, str],
    warnings: Sequence[str],
    begun: Callable[[Path], None] | None = None,
) -> int:
    """Run the job. Returns the exit code for ddp-run. Raises OSError if its folder or sockets can't be made.

    `begun` gets the run's folder as soon as it exists.
    """
    brought_along = BroughtAlong()
    become_subreaper()
    with ExitStack() as stack:
        trusted = "log_dir" in plan.options.given
        folder = RunFolder.create(log_dir(plan.options), datetime.now(), trusted=trusted)
        if begun is not None:
            begun(folder.path)
        journal = Journal(folder.events)
        stack.callback(journal.close)
        loop = stack.enter_context(Loop(HANDLED_SIGNALS))
        inbox = stack.enter_context(Inbox())
        run = None
        try:
            run = Run(plan, environ, folder, journal, loop, inbox, brought_along, stack)
            return _Job(run, tuple(argv), tuple(warnings)).run()
        except Exception:
            kill_everything_below(brought_along)
            with suppress(Exception):
                import traceback

                from ddp_run.values.redaction import redact

                said = f"ddp-run: internal error; the job was killed; its files: {folder.path}\n"
                last_words(said + redact(traceback.format_exc()))
            return _INTERNAL_ERROR if run is None or run.known_status is None else run.known_status


@final
class _Job:
    """The attempts of a run and what happens between them."""

    def __init__(self, run: Run, argv: tuple[str, ...], warnings: tuple[str, ...]) -> None:
        self._run = run
        self._argv = argv
        self._warnings = warnings
        self._retries = Retries(run.plan, lambda: run.nodes is not None)
        self._waiting: Attempt | None = None
        """The first attempt, started and not served yet."""
        self._warm: WarmAgents | None = None
        """Starts the agents with `--warm`."""
        self._running: Attempt | None = None
        self._last: Outcome | None = None
        """How the attempt before ended."""
        self._ended_by: PeerFailed | None = None
        """Another node, which ended the job between two attempts."""
        self._page: PageMaker | None = None
        self._log_cap: companions.LogCap | None = None

    def run(self) -> int:
        """Make attempts until one settles it; returns the exit code."""
        self._run.emit(self._run.started(self._argv))
        if self._run.plan.options.warm:
            from ddp_run.supervise.warm_agents import WarmAgents

            self._warm = WarmAgents(self._run.plan, self._run.loop, self._run.helpers)
        may_wait = self._run.plan.options.spare_nodes > 0
        if not self._run.plan.has_store:
            self._load()  # first: a client that finds no store yet waits for half a second (torch's TCPStore)
        if not may_wait:
            self._waiting = self._start_attempt()
        self._log_cap = companions.start(self._run)
        self._start_keeper()  # which is to know them
        self._join_nodes()
        self._after_spawn()
        from tenacity import Retrying, retry_if_result

        from ddp_run.supervise import run_end

        if may_wait and (end := self._await_part()) is not None:
            return run_end.end(self._run, end, 0, None)
        attempts = Retrying(
            retry=retry_if_result(lambda outcome: outcome.decision.retry and not self._is_ending),
            wait=back_off(),
            sleep=self._pause,
            before_sleep=self._announce_retry,
        )
        outcome: Outcome = attempts(self._attempt)
        if self._warm is not None:
            self._warm.close()
        if self._run.nodes is not None and self._run.nodes.is_left_out:
            self._run.output.say(outcome.decision.reason, level="warning")
            outcome = self._await_part() or outcome
        if self._ended_by is not None:
            self._run.emit(self._ended_by)
        return run_end.end(self._run, outcome, self._retries.started, self._page)

    # ------------------------------------------------------------------------------------ attempts

    def _attempt(self) -> Outcome:
        """Make one attempt that counts. Those that only lost their port or their backend don't."""
        from ddp_run.supervise import run_end

        while True:
            if self._last is not None:  # the first attempt's agent already runs, and signals are for it
                self._run.serve(0)
                if self._is_ending:
                    return self._last
            try:
                attempt = self._waiting or self._start_attempt()
            except OSError as error:
                if self._last is None:
                    raise
                return self._not_started(self._last, error)
            self._waiting, self._running = None, attempt
            attempt.wait()
            self._running = None
            outcome = self._last = self._conclude(attempt)
            run_end.show_failed(self._run, outcome.verdict)
            if not outcome.decision.free:
                return outcome
            run_end.show_rest(self._run, self._run.patience(BETWEEN_ATTEMPTS_S))
            if outcome.decision.backend is not None or not self._run.plan.may_change_port:
                run_end.teller(self._run, self._retries.started).repeated(outcome.verdict, outcome.decision)

    def _start_attempt(self) -> Attempt:
        """Start the next attempt's agent. Raises OSError."""
        if self._page is not None:
            self._page.give_up()
        attempt = Attempt(self._run, self._retries, self._warm.start if self._warm is not None else start)
        attempt.start()
        self._retries.started += 1
        self._count_memory()
        return attempt

    def _not_started(self, last: Outcome, error: OSError) -> Outcome:
        """The next attempt couldn't be started, so the run ends like its last one."""
        from ddp_run.judge import retry

        number = self._retries.started
        return self._ended(number, Outcome(last.verdict, retry.not_started(number + 1, error)))

    def _conclude(self, attempt: Attempt) -> Outcome:
        """Judge an attempt, with the other nodes if there are any, and decide what follows."""
        from ddp_run.judge import judging, retry
        from ddp_run.supervise import run_end

        run, number = self._run, attempt.number
        self._count_memory()
        if self._log_cap is not None:
            self._log_cap.settle()
        if attempt.has_failed:
            attempt.prepare_page()
        self._page = attempt.page
        events = run.journal.events
        if self._retries.are_used_up:
            seen = judging.judged_by_events(run.folder.path, events, number)
            if seen.outcome != "succeeded":  # an answer, in case ddp-run is killed while it reads the logs
                run_end.teller(run, self._retries.started).write(seen, retry.UNDECIDED)
        verdict = judging.judged(run.folder.path, events, number, limit_s=judging.LIMIT_S)
        if run.nodes is not None:
            verdict, decision = run.nodes.agree(verdict, number, self._retries.decide)
        else:
            if run.plan.options.max_nodes > 1:
                from ddp_run.judge.of_nodes import alone

                verdict = alone(verdict)
            decision = self._retries.decide(verdict)
        run.known_status = verdict.status
        self._retries.count(verdict, decision)
        if decision.retry and run.plan.options.spare_nodes and run.plan.has_store:  # the run may end well without it
            run_end.keep_against_host(verdict, run.folder.run_id, run.environ)
        return self._ended(number, Outcome(verdict, decision))

    def _ended(self, number: int, outcome: Outcome) -> Outcome:
        """Record how an attempt ended."""
        verdict, decision = outcome.verdict, outcome.decision
        follows = Next.RETRY if decision.retry else Next.STOP
        ended = verdict.outcome or "failed", verdict.cause, verdict.status
        self._run.emit(AttemptEnded(now(), number, *ended, follows, decision.reason))
        return outcome

    def _count_memory(self) -> None:
        from ddp_run.observe.memory import count_oom_kills

        self._run.emit(MemoryCounted(now(), *count_oom_kills()))

    # ---------------------------------------------------------------------------- between attempts

    @property
    def _is_ending(self) -> bool:
        """Whether nothing more may be started."""
        return self._run.stops > 0 or self._ended_by is not None

    def _announce_retry(self, state: RetryCallState) -> None:
        from ddp_run.supervise import run_end

        run_end.show_rest(self._run, self._run.patience(BETWEEN_ATTEMPTS_S))
        if self._is_ending or self._last is None or state.next_action is None:
            return
        counted = self._retries.counted
        run_end.teller(self._run, self._retries.started).retrying(
            self._last.verdict,
            self._last.decision.reason,
            delay_s=state.next_action.sleep,
            attempt=counted + 1,
            of=max(counted, self._run.plan.options.max_retries) + 1,
        )

    def _pause(self, seconds: float) -> None:
        """Serve the loop until the next attempt is due."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0 and not self._is_ending:
            self._run.serve(remaining)

    def _hear_of_end(self, attempt: int, event: Event) -> None:
        """Another node ends an attempt: the one that runs, or the next one before it begins."""
        if self._running is not None and self._running.number == attempt:
            self._running.hear(event)
        elif attempt == self._retries.started and isinstance(event, PeerFailed):
            self._ended_by = event

    # ------------------------------------------------------------- while the first agent loads torch

    def _start_keeper(self) -> None:
        try:
            self._run.keeper.start()
        except OSError as error:
            self._run.emit(Noted(now(), f"cannot start the keeper: {error}"))

    def _join_nodes(self) -> None:
        """Meet the other nodes of the job, if it has several; one node alone may have a rendezvous, too."""
        if self._run.plan.options.max_nodes > 1 or self._run.plan.options.meets_at_c10d:
            from ddp_run.supervise.nodes.join import join

            self._run.nodes = join(self._run, self._hear_of_end)

    def _await_part(self) -> Outcome | None:
        """Wait until this node takes part. How the job ended, if it never does, or not again."""
        run = self._run
        if run.nodes is None:
            return None
        part = run.nodes.await_part()
        if isinstance(part, tuple):
            return self._ended(self._retries.started, Outcome(*part))
        self._retries.begin_at(part.attempt, part.decision)
        return None

    def _load(self) -> None:
        self._run.output.load()
        for name in _NEEDED_WHEN_RANKS_START_OR_DIE:
            import_module(name)

    def _after_spawn(self) -> None:
        """Do what could wait for the agent's start: load the rest of ddp-run, write plan.json, show warnings."""
        from ddp_run.plan import plan_file

        run, node = self._run, None
        if run.plan.options.meets_others:
            from ddp_run.plan import node_facts

            node = node_facts.of_plan(run.plan, run.environ)
        plan_file.write(run.folder.plan, run.plan, self._argv, run.folder.run_id, node)
        for warning in self._warnings:
            run.output.say(warning, level="warning")
            run.emit(Noted(now(), warning))
        if run.folder.note is not None:
            run.emit(Noted(now(), run.folder.note))
        self._load()
        clear_stale()
        from ddp_run.tell.teller import Restarts

        run.sinks.append(Restarts(run.folder.path, run.journal.events, run.output).tell)
