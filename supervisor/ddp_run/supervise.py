"""A run from its plan to its exit code: attempts, what follows each, and the files that tell of it.

The first agent is started before anything is loaded that it does not need: the agent then imports torch for a second
or more, time enough for the rest of ddp-run.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, final

from ddp_run import __version__, launch
from ddp_run.attempt import Attempt
from ddp_run.events import AttemptEnded, AttemptStarted, MemoryCounted, Noted, RunEnded, RunStarted, SignalReceived
from ddp_run.inbox import Inbox
from ddp_run.journal import Journal, now
from ddp_run.logs import RunFolder, Tailer
from ddp_run.loop import Caught, Loop
from ddp_run.output import Output
from ddp_run.plan import (
    LaunchPlan,
    agent_argv,
    agent_ends_with_ranks,
    agent_environment,
    dist_timeout_s,
    local_restarts,
    log_dir,
)
from ddp_run.redaction import redact_words
from ddp_run.run import HANDLED_SIGNALS, STOP_SIGNALS, Run

if TYPE_CHECKING:
    from ddp_run.retry import Decision
    from ddp_run.verdict import Verdict

_INTERNAL_ERROR = 70
"""sysexits.h EX_SOFTWARE: ddp-run itself failed."""


def supervise(plan: LaunchPlan, argv: Sequence[str], environ: Mapping[str, str], warnings: Sequence[str]) -> int:
    """Run the job; returns the exit code for ddp-run. Raises OSError where its folder or sockets cannot be made."""
    launch.become_subreaper()
    with ExitStack() as stack:
        folder = RunFolder.create(log_dir(plan.options).resolve(), datetime.now())
        journal = Journal(folder.events)
        stack.callback(journal.close)
        loop = stack.enter_context(Loop(HANDLED_SIGNALS))
        inbox = stack.enter_context(Inbox())
        job = _Job(plan, tuple(argv), environ, tuple(warnings), folder, journal, loop, inbox, stack)
        try:
            return job.run()
        except Exception:
            launch.kill_everything_below()
            sys.stderr.write("ddp-run: internal error; the job was ended; its files: " + str(folder.path) + "\n")
            import traceback

            traceback.print_exc()
            return _INTERNAL_ERROR


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How an attempt ended and what follows."""

    verdict: Verdict
    decision: Decision


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
    output: Output = field(init=False)
    _attempts: int = 0
    _counted: int = 0
    _ports_lost: int = 0
    _used_ports: set[int] = field(default_factory=set)
    _port: int | None = None
    _keep: frozenset[int] = frozenset()
    _stopped: bool = False
    _waiting: Attempt | None = None
    _verdicts: list[Verdict] = field(default_factory=list)
    _backend: str | None = None
    """The process-group backend of the next attempt, where it is another than the program's."""

    def run(self) -> int:
        self.output = Output(self.plan.options, self.environ, self.loop)
        self.journal.record(self._run_started())
        self._waiting = self._start_attempt()
        self._start_keeper()
        self._after_spawn()
        from ddp_run import retry

        retrying = retry.attempts(
            self.plan.options.max_retries,
            again=lambda outcome: outcome.decision.retry and not self._stopped,
            sleep=self._pause,
            before_sleep=self._announce_retry,
        )
        outcome: _Outcome = retrying(self._attempt)
        return self._end(outcome)

    # ------------------------------------------------------------------ attempts

    def _attempt(self) -> _Outcome:
        """One attempt that counts; those that only lost their port, or their backend, do not."""
        from ddp_run import verdict_text

        while True:
            attempt = self._waiting or self._start_attempt()
            self._waiting = None
            attempt.stay()
            # what could not be ended has SIGKILL already, and is no leftover of the next attempt
            self._keep = frozenset(pid for pid in self._keep | attempt.not_ended if launch.is_alive(pid))
            outcome = self._conclude(attempt)
            if not outcome.decision.free:
                self._counted += 1
                return outcome
            if outcome.decision.backend is not None:
                self._backend = outcome.decision.backend
                self.output.show(verdict_text.attempt_line(outcome.verdict))
                self.output.say(outcome.decision.reason, level="warning")
            else:
                self._ports_lost += 1
                self.output.say(f"attempt {attempt.number} not counted: {outcome.decision.reason}")

    def _start_attempt(self) -> Attempt:
        number = self._attempts
        self._attempts += 1
        folder = self.folder.attempt_folder(number)
        self._port, override = self._choose_port(number)
        argv = agent_argv(self.plan, folder=folder, rank_program=launch.RANK_PROGRAM, port=override)
        self.journal.record(AttemptStarted(now(), number, redact_words(argv), self._port))
        options = self.plan.options
        tailer = self.stack.enter_context(Tailer())
        attempt = Attempt(
            number=number,
            folder=folder,
            run_folder=self.folder.path,
            run=Run(options.grace_s, local_restarts(options), self.plan.agent_signals, agent_ends_with_ranks(options)),
            loop=self.loop,
            journal=self.journal,
            inbox=self.inbox,
            output=self.output,
            tailer=tailer,
            places=self._places(),
            keep=self._keep,
            hang_timeout_s=options.hang_timeout_s,
        )
        attempt.start(argv, self._agent_environ(number))
        self._count_memory()
        return attempt

    def _choose_port(self, number: int) -> tuple[int | None, int | None]:
        """The attempt's master port (null: torch takes a free one), and the one to put in the user's place."""
        chosen = self.plan.chosen_port
        fixed = chosen is None or number == 0 or self.plan.options.max_nodes > 1
        if fixed and not self.plan.options.needs_port:
            self._used_ports.update([chosen] if chosen else [])
            return chosen, None
        from ddp_run.net import free_port

        fresh = free_port(self.plan.master or "127.0.0.1", avoid=self._used_ports)
        self._used_ports.add(fresh)
        return fresh, fresh

    def _places(self) -> tuple[str, ...]:
        """Where a job runs out of space: shared memory, ddp-run's files, temporary files, the job's own folder."""
        temporary = next((path for name in ("TMPDIR", "TEMP", "TMP") if (path := self.environ.get(name))), "/tmp")  # noqa: S108
        try:
            here = [str(Path.cwd())]
        except OSError:  # somebody removed it
            here = []
        return tuple(dict.fromkeys(["/dev/shm", str(self.folder.path), temporary, *here]))  # noqa: S108

    def _agent_environ(self, number: int) -> dict[str, str]:
        import json

        environ = agent_environment(self.plan, self.environ, self.folder.run_id)
        environ["DDP_RUN_AGENT"] = json.dumps(
            {
                "run_folder": str(self.folder.path),
                "attempt": number,
                "socket": str(self.inbox.path),
                "nccl_debug": self.plan.nccl_log,
                "restore": dict(self.plan.restore),
                "watch": self._watch(),
                "logs_specs": self.plan.options.logs_specs,
            }
        )
        return environ

    def _watch(self) -> dict[str, object]:
        """What is hooked into torch inside the ranks."""
        options = self.plan.options
        return {
            "backend": self._backend or options.backend,
            "timeout_s": dist_timeout_s(self.environ),
            "debug": options.ddp_debug,
        }

    def _conclude(self, attempt: Attempt) -> _Outcome:
        from ddp_run import diagnose, evidence, retry

        self._count_memory()
        self.output.drain(attempt.tailer, self.folder.path)
        for note in attempt.tailer.take_notes():
            self.journal.record(Noted(now(), note))
        attempt.tailer.close()
        verdict = diagnose.judge(evidence.gather(self.folder.path, self.journal.events, attempt.number))
        options = self.plan.options
        decision = retry.decide(
            verdict,
            policy=options.retry,
            asked=options.max_retries,
            retries_left=options.max_retries - self._counted,
            ports_lost=self._ports_lost,
            port=self._port,
            earlier=self._verdicts,
            fallback=options.fallback_backend if self._backend is None else None,
        )
        self._verdicts.append(verdict)
        word = "retry" if decision.retry else "stop"
        self.journal.record(
            AttemptEnded(
                now(), attempt.number, verdict.outcome or "failed", verdict.cause, verdict.status, word, decision.reason
            )
        )
        return _Outcome(verdict, decision)

    # ------------------------------------------------------------ between attempts

    def _announce_retry(self, outcome: _Outcome, delay_s: float) -> None:
        from ddp_run import verdict_text

        attempts = self.plan.options.max_retries + 1
        if self.output.json:
            verdict, reason = outcome.verdict, outcome.decision.reason
            self.output.say("retrying", level="warning", cause=verdict.cause, reason=reason, delay_s=round(delay_s, 3))
            return
        line = verdict_text.retry_line(
            outcome.verdict,
            delay_s=delay_s,
            attempt=self._counted + 1,
            attempts=attempts,
            reason=outcome.decision.reason,
        )
        self.output.show(line)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0 and not self._stopped:
            for wakeup in self.loop.wait(remaining):
                match wakeup:
                    case Caught(signal.SIGTSTP):
                        os.kill(os.getpid(), signal.SIGSTOP)
                    case Caught(signum):
                        self.journal.record(SignalReceived(now(), signum))
                        self._stopped = self._stopped or signum in STOP_SIGNALS
                    case _:
                        pass

    # ------------------------------------------------------------------ beginning and end

    def _run_started(self) -> RunStarted:
        options = self.plan.options
        return RunStarted(
            at=now(),
            wall_ns=time.time_ns(),
            run_id=self.folder.run_id,
            host=socket.gethostname(),
            node_rank=options.node_rank,
            nodes=options.max_nodes,
            argv=redact_words(self.argv),
            max_retries=options.max_retries,
            retry=options.retry,
            grace_s=options.grace_s,
            restarts=options.restarts,
            version=__version__,
        )

    def _start_keeper(self) -> None:
        try:
            keeper = launch.start_keeper(self.folder.run_id, self.inbox.folder)
        except OSError as error:
            self.journal.record(Noted(now(), f"no keeper: {error}"))
            return
        self._keep = frozenset({keeper.pid})
        if self._waiting is not None:
            self._waiting.keep = self._keep
        self.stack.callback(launch.dismiss_keeper, keeper)

    def _after_spawn(self) -> None:
        """What may wait until the agent runs: the plan's file, and what the user should know."""
        from ddp_run import plan_file

        plan_file.write(self.folder.plan, self.plan, self.argv, self.folder.run_id)
        for warning in self.warnings:
            self.output.say(warning, level="warning")
        self.output.load()
        # now, and not when ranks start or die: the loop must not be away then
        import ddp_run.observer  # noqa: F401
        from ddp_run import core_dump, diagnose, evidence, leftovers, retry, verdict_file, verdict_text  # noqa: F401

    def _count_memory(self) -> None:
        from ddp_run.memory import count_oom_kills

        self.journal.record(MemoryCounted(now(), *count_oom_kills()))

    def _end(self, outcome: _Outcome) -> int:
        from ddp_run import journal, verdict_file

        verdict = outcome.verdict
        self.journal.record(RunEnded(now(), verdict.status))
        document = verdict_file.as_json(
            verdict,
            run_id=self.folder.run_id,
            attempts=self._attempts,
            folder=str(self.folder.path),
            decision="stop",
            decision_reason=outcome.decision.reason,
            wall_at=journal.clock(self.journal.events),
        )
        try:
            verdict_file.write(self.folder.verdict, document)
        except OSError as error:
            self.output.say(f"verdict.json not written: {error}")
        self._show_verdict(outcome, document)
        return verdict.status

    def _show_verdict(self, outcome: _Outcome, document: Mapping[str, object]) -> None:
        from ddp_run import verdict_text

        verdict = outcome.verdict
        failed = verdict.outcome != "succeeded"
        if self.output.json:
            self.output.say("verdict", level="error" if failed else "info", **document)
        elif failed:
            self.output.show(
                verdict_text.verdict_block(
                    verdict,
                    colour=self.output.colour,
                    width=self.output.width,
                    folder=self.folder.path,
                    attempt=self._attempts - 1,
                    attempts=self._attempts,
                    decision=f"not retried: {outcome.decision.reason}",
                )
            )
        if failed or self.output.json or self.environ.get("DDP_RUN_VERDICT_LINE") == "1":
            self.output.show(verdict_text.verdict_line(verdict, attempts=self._attempts, folder=self.folder.path))
        self.output.finish()
