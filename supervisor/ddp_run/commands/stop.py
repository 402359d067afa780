"""`ddp-run stop`: end a running job from another terminal."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddp_run.commands import log_dir_option

if TYPE_CHECKING:
    from ddp_run.record.recorded_runs import RecordedRun

_LOOK_S = 0.1
_LATE_S = 10.0


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--kill", is_flag=True, help="Kill the ranks at once, as a second Ctrl-C would.")
@log_dir_option
def command(run: str | None, kill: bool, log_dir: str | None) -> int:
    """Stop a running job, as Ctrl-C in its terminal would.

    RUN is a run's folder, or its name in the folder of runs; without RUN, the one that is running. The ranks get SIGINT
    and --shutdown-timeout seconds (30) to end; stopping the run again kills them. The command waits for the run's end
    and prints its last line. Stopping one node's run stops the job on all nodes. Exit code 0: the run has ended.
    """
    from ddp_run.commands.explain.answer import NotReadable, explain
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record import own_process
    from ddp_run.tell.verdict_file import verdict_line
    from ddp_run.values.lines import neutral

    chosen = _chosen(run, runs_folder(log_dir))
    started, process, name = chosen.started, chosen.process, neutral(chosen.folder.name)
    if started is None or process is None or not chosen.alive:
        raise click.ClickException(f"{name} {chosen.why_not_running('stop')}")
    if not own_process.is_mine(process):
        raise click.ClickException(f"{name} belongs to another user: kill -INT {process.pid} as that user")
    twice = (signal.SIGINT,) if kill else ()
    if own_process.send(process, (signal.SIGINT, signal.SIGCONT, *twice)):  # Ctrl-Z may have stopped it
        grace = f"its ranks have {started.grace_s:g} s to end; run ddp-run stop again to kill them"
        within = "killing its ranks" if kill else grace
        click.echo(f"ddp-run: stopping {name} (pid {process.pid}): {within}", err=True)
    late_at = time.monotonic() + started.grace_s + _LATE_S
    while own_process.still_runs(process):
        time.sleep(_LOOK_S)
        if time.monotonic() > late_at:
            late_at = float("inf")
            click.echo(f"ddp-run: still running (a command of --on-end?). Try: ddp-run stop --kill {name}", err=True)
    try:
        answer = explain((str(chosen.folder),), rank_from_filename=False)
    except NotReadable:
        click.echo("ddp-run: it ended before its first attempt", err=True)
    else:
        sys.stdout.write(verdict_line(answer.verdict, attempts=answer.attempts, folder=answer.folder) + "\n")
    return 0


def _chosen(word: str | None, log_dir: Path) -> RecordedRun:
    """The named run; without a word, this user's only running job. Raises ClickException, or Refused."""
    from ddp_run.record import own_process
    from ddp_run.record.runs_meant import recorded, running
    from ddp_run.values.problem import Problem, Refused

    if word is not None:
        return recorded(word, log_dir)
    mine = [job for job in running(log_dir) if own_process.is_mine(job[0].process)]
    if not mine:
        raise click.ClickException(f"no run of yours in {log_dir} is running on this host")
    if len(mine) > 1:
        these = tuple(f"ddp-run stop {run.folder.name}   # {shlex.join(run.script)[:80]}" for run, *_nodes in mine)
        raise Refused((Problem("", f"{len(mine)} runs are running: name one of them", helps=these),))
    return mine[0][0]
