"""The end of a run, from the last attempt's verdict to the exit code; `end` reads in the order in which things happen.

What an attempt leaves to show is shown here too, since another attempt may follow.

The user's own commands run one after another: --on-success or --on-failure, then --on-end. That is after verdict.json
and the verdict's block, and before the last line. Whatever they do, the run's exit code doesn't change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import final

from ddp_run.judge import judging, retry
from ddp_run.judge.bad_hosts import failure_of
from ddp_run.judge.verdict import Verdict
from ddp_run.record import host_failures
from ddp_run.record.attempt_events import ended_before_retry
from ddp_run.record.events import Noted, RunEnded
from ddp_run.record.journal import now
from ddp_run.record.run_folder import RunFolder
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.supervise import last_page, open_files
from ddp_run.supervise.last_page import PageMaker
from ddp_run.supervise.retries import Outcome
from ddp_run.supervise.run import Run
from ddp_run.tell.output import AT_THE_END_S, Patience
from ddp_run.tell.selection import failed_lines
from ddp_run.tell.teller import Teller
from ddp_run.values import helper_process

_KEPT_WITHIN_S = 1.0
_TURN_S = 1.0
_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL for a hook when ddp-run is told to stop."""
_GIVE_UP_S = 0.5
"""After SIGKILL: a process that doesn't end by then waits in the kernel, and isn't waited for."""
_NOT_HANDED_ON = frozenset({"DDP_RUN_ON_SUCCESS", "DDP_RUN_ON_FAILURE", "DDP_RUN_ON_END"})
"""A hook that starts ddp-run must not run hooks forever: neither those of variables nor those of a preset."""
_WITHIN = "DDP_RUN_HOOK"
"""Set for a hook: the scheduler's job that it belongs to. A job that it submits inherits this, but is another one."""
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def end(run: Run, outcome: Outcome, attempts: int, page: PageMaker | None) -> int:
    """End the run; `outcome` is the last attempt's. Returns the exit code for ddp-run."""
    verdict = judging.final(outcome.verdict, run.journal.events)
    by = ended_before_retry(run.journal.events)
    if run.nodes is not None and by is not None:
        verdict, _stop = run.nodes.agree(verdict, attempts, lambda _verdict: retry.ended(by))
    verdict = judging.with_time(verdict, run.journal.events)
    reason = judging.final_reason(outcome.decision.reason, run.journal.events)
    run.known_status = verdict.status

    # The answer comes first, before anything that may have to wait.
    told = teller(run, attempts)
    document = told.write(verdict, reason)
    patience = run.patience(AT_THE_END_S)
    show_rest(run, patience, before_own=True)
    run.emit(RunEnded(now(), verdict.status))
    if run.journal.broken is not None:
        run.output.say(f"{run.folder.events} is incomplete: {run.journal.broken.strerror}", level="warning")
    told.show(verdict, reason, document)
    last_page.finish(run, page, verdict, attempts, f"not retried: {reason}")
    _run_hooks(run, verdict, attempts, patience)
    show_rest(run, patience)
    told.show_line(verdict)
    run.output.console.finish(patience.for_own)
    # Node 0 records failures for all hosts: it has the verdict of all nodes.
    if run.nodes is None or run.nodes.where() is None:
        keep_against_host(verdict, run.folder.run_id, run.environ)
    return verdict.status


def teller(run: Run, attempts: int) -> Teller:
    """The teller of a run with this many attempts."""
    line = run.environ.get("DDP_RUN_VERDICT_LINE") == "1"
    where = run.nodes.where() if run.nodes is not None else None
    return Teller(run.folder, run.journal.events, run.output, attempts, line_always=line, whole=where)


def show_failed(run: Run, verdict: Verdict) -> None:
    """With `--console failed`, show the last lines of the ranks that failed. The files have them too."""
    if run.plan.options.console != "failed" or verdict.outcome == "succeeded":
        return
    try:
        run.output.console.replay(failed_lines(verdict, run.journal.events, run.folder.path), time.monotonic())
    except Exception as error:
        run.output.say(f"cannot show the last lines of the failed ranks ({type(error).__name__})")


def show_rest(run: Run, patience: Patience, *, before_own: bool = False) -> None:
    """Show the rest of the last attempt's output while there's time. `before_own`: as in `Output.show_rest`."""
    if run.tailer is None:
        return
    run.output.show_rest(run.tailer, run.folder.path, patience, before_own=before_own)
    for note in run.tailer.take_notes():
        run.emit(Noted(now(), note))
    if not before_own:
        run.output.end_attempt(run.tailer)
        run.tailer = None


def _run_hooks(run: Run, verdict: Verdict, attempts: int, patience: Patience) -> None:
    """Run the user's commands, if there are any. What waits for the console is written first."""
    options = run.plan.options
    if not any((options.on_success, options.on_failure, options.on_end)):
        return
    run.keeper.dismiss()  # what the commands leave in the background is the user's
    run.output.console.flush(patience.for_own)
    began = time.monotonic()
    environ = hook_environ(run.environ, options, verdict, run.folder, attempts)
    commands = EndHooks(environ, run.serve, lambda: run.stops, partial(run.output.say, level="warning"))
    run.on_child_end = commands.reaped
    commands.run(hooks(options, verdict.outcome, run.environ))
    patience.add(time.monotonic() - began)


def keep_against_host(verdict: Verdict, run_id: str, environ: Mapping[str, str]) -> None:
    """Record a failure that speaks against its host, for later runs.

    A fork writes it, because a home on a dead server never answers. What isn't written within a second is lost.
    """
    failure = failure_of(verdict, run_id, time.time())
    folder = host_failures.folder(environ)
    if failure is None or folder is None:
        return
    try:
        writer = helper_process.fork(lambda _fd: host_failures.append(folder, failure), _KEPT_WITHIN_S)
    except OSError:
        return
    writer.reaped = helper_process.reap(writer.pid, _KEPT_WITHIN_S)
    writer.end()


# ------------------------------------------------------------------------------------------ the user's commands


@dataclass(frozen=True, slots=True)
class Hook:
    """A command for /bin/sh and the option that it came from, with file and line if that isn't the command line.

    `again`: it comes from a preset, and this launch is part of such a command.
    """

    option: str
    command: str
    again: bool = False


def hooks(options: Options, outcome: str | None, environ: Mapping[str, str]) -> tuple[Hook, ...]:
    """The commands to run after a run with this outcome, in order. An empty command is none."""
    first = ("on_success", options.on_success) if outcome == "succeeded" else ("on_failure", options.on_failure)
    wanted = (first, ("on_end", options.on_end))
    return tuple(_hook(options.settings[dest], dest, each, environ) for dest, each in wanted if each and each.strip())


def _hook(setting: Setting, dest: str, command: str, environ: Mapping[str, str]) -> Hook:
    name = f"--{dest.replace('_', '-')}"
    again = setting.source is Source.CONFIG and environ.get(_WITHIN) == _job_of(environ)
    return Hook(f"{name} ({setting.place})" if setting.place else name, command, again)


def _job_of(environ: Mapping[str, str]) -> str:
    return "/".join(environ.get(name, "") for name in _JOBS)


def hook_environ(
    environ: Mapping[str, str], options: Options, verdict: Verdict, folder: RunFolder, attempts: int
) -> dict[str, str]:
    """ddp-run's own environment and the verdict; values that aren't known are empty."""
    first = verdict.first_failure
    told = {
        "OUTCOME": verdict.outcome,
        "EXIT_CODE": verdict.exit_code,
        "CAUSE": verdict.cause,
        "CODE": verdict.code,
        "TITLE": verdict.title,
        "RANK": first.rank if first is not None else None,
        "NODE": first.host if first is not None else None,
        "NODE_RANK": options.own_node_rank,
        "ATTEMPTS": attempts,
        "FOLDER": folder.path,
        "VERDICT": folder.verdict,
    }
    kept = {name: value for name, value in environ.items() if name not in _NOT_HANDED_ON}
    kept[_WITHIN] = _job_of(environ)
    return kept | {f"DDP_RUN_{name}": "" if value is None else str(value) for name, value in told.items()}


@final
@dataclass
class EndHooks:
    """Runs hooks. `serve`: serves the loop for some seconds; `stops`: the number of stop signals so far."""

    environ: Mapping[str, str]
    serve: Callable[[float], object]
    stops: Callable[[], int]
    warn: Callable[[str], None]
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def run(self, wanted: tuple[Hook, ...]) -> None:
        """Run them all. A stop signal ends the one that runs, and no other is started."""
        before = self.stops()
        for hook in wanted:
            if hook.again:
                self.warn(f"{hook.option} not run: this launch is part of such a command")
            elif self.stops() > before:
                self.warn(f"{hook.option} not run: told to stop")
            else:
                self._run_one(hook, before)

    def reaped(self, pid: int, code: int) -> None:
        """Note that a child was waited for; it may be the hook's shell."""
        if self._process is not None and self._process.pid == pid:
            self._process.returncode = code

    def _run_one(self, hook: Hook, before: int) -> None:
        try:
            # Both streams go to stderr: stdout has what the ranks wrote, and scripts read that.
            process = self._process = subprocess.Popen(
                ["/bin/sh", "-c", hook.command],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                preexec_fn=open_files.give_back,  # noqa: PLW1509  # this process has one thread
            )
        except (OSError, ValueError) as error:
            self.warn(f"{hook.option} not run: {error}")
            return
        while process.returncode is None and self.stops() == before:
            self.serve(_TURN_S)
        for signum, within_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GIVE_UP_S)):
            if process.returncode is None:
                self._end(process, signum, within_s)
        if process.returncode is None:
            process.returncode = 0  # so that the Popen object doesn't wait for it
            self.warn(f"{hook.option} did not end after SIGKILL")
        elif process.returncode:
            code = process.returncode
            ended = f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
            self.warn(f"{hook.option} {ended}; the exit code of the run is unchanged")

    def _end(self, process: subprocess.Popen[bytes], signum: int, within_s: float) -> None:
        asked, deadline = self.stops(), time.monotonic() + within_s
        try:
            os.killpg(process.pid, signum)  # not reaped yet, so the group is still its own
        except ProcessLookupError:
            pass
        while process.returncode is None and (left := deadline - time.monotonic()) > 0 and self.stops() == asked:
            self.serve(min(left, _TURN_S))
