"""`ddp-run explain`: the verdict of a finished run, or of a log."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click

from ddp_run.commands import busy
from ddp_run.values.terminal import colour, columns, width_of


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH…]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, in the schema of verdict.json.")
@click.option(
    "--rank-from-filename", is_flag=True, help="Read each file as one rank's: rank_3.log, worker-3.err, 3/stderr.log."
)
@click.option("--exit-code", is_flag=True, help="Exit with the exit code of the explained run.")
def command(paths: tuple[str, ...], as_json: bool, rank_from_filename: bool, exit_code: bool) -> int:
    """Print the verdict of a finished run, or of any launcher's log.

    PATH is a run's folder or name, the folders of a job's nodes, or a folder of runs (the newest counts). It can also
    be log files of any launcher, folders of log files, or - for standard input. Without PATH: standard input if it is a
    pipe or a file, else the newest run where a launch from here puts its runs.

    The exit code is 0 if there is an answer, whatever it says, and 2 if nothing can be read. With --exit-code it is
    that of the run: 0 if it succeeded or the log shows no failure, 1 for a failure whose code is unknown.
    """
    from ddp_run.commands.explain.answer import STANDARD_INPUT, block_text, explain, json_text
    from ddp_run.record.runs_meant import run_named, runs_meant

    if not paths:
        hint = "; name a run's folder or a log, or pipe a log in"
        paths = (STANDARD_INPUT,) if _is_fed() else (str(run_named(None, _log_dir(), hint)),)
    meant = runs_meant(paths, _log_dir)
    if meant.note is not None:
        click.echo(f"ddp-run: {meant.note}", err=True)
    with busy("reading the logs"):
        answer = explain(meant.paths, rank_from_filename=rank_from_filename)
    if as_json:
        text = json_text(answer)
    else:
        text = block_text(answer, width=columns(), colour=colour(sys.stdout), wrap=width_of(1))
    sys.stdout.write(text)
    failed = answer.verdict.outcome not in (None, "succeeded")
    return answer.verdict.status if exit_code and failed else 0


def _log_dir() -> Path:
    from ddp_run.plan.checks.log_folder import runs_folder

    return runs_folder(None)


def _is_fed() -> bool:
    """Whether standard input is a pipe or a file; not a terminal or /dev/null, as under cron."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
