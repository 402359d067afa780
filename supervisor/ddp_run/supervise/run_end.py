"""The end of a run, from the last attempt's verdict to the exit code; `end` reads in the order in which things happen.

What an attempt leaves to show is shown here too, since another attempt may follow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from ddp_run.judge import judging, retry
from ddp_run.judge.bad_hosts import failure_of
from ddp_run.judge.verdict import Verdict
from ddp_run.record import host_failures
from ddp_run.record.attempt_events import ended_before_retry
from ddp_run.record.events import Noted, RunEnded
from ddp_run.record.journal import now
from ddp_run.supervise.end_hooks import EndHooks, hook_environ, hooks
from ddp_run.supervise.retries import Outcome
from ddp_run.supervise.run import Run
from ddp_run.tell.output import AT_THE_END_S, Patience
from ddp_run.tell.teller import Teller
from ddp_run.values import helper_process

_KEPT_WITHIN_S = 1.0


def end(run: Run, outcome: Outcome, attempts: int) -> int:
    """End the run; `outcome` is the last attempt's. Returns the exit code for ddp-run."""
    verdict = judging.final(outcome.verdict, run.journal.events)
    by = ended_before_retry(run.journal.events)
    if run.nodes is not None and by is not None:
        verdict, _stop = run.nodes.agree(verdict, attempts, lambda _verdict: retry.ended(by))
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
    _run_hooks(run, verdict, attempts, patience)
    show_rest(run, patience)
    told.show_line(verdict)
    run.output.finish(patience)
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
    """`--console failed`: show the last lines of the ranks that failed. The files have them too."""
    try:
        run.output.show_failed(verdict, run.journal.events, run.folder.path)
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
    if not options.has_hooks:
        return
    run.keeper.dismiss()  # what the commands leave in the background is the user's
    run.output.flush(patience)
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
