"""`ddp-run runs`: list the runs in a folder of runs."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime

import click

from ddp_run.commands import log_dir_option


@click.command()
@log_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print the runs as JSON.")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="Only the N newest runs.")
def command(log_dir: str | None, as_json: bool, count: int | None) -> int:
    """List the runs, the newest last.

    OUTCOME is the verdict's, or running; killed: ddp-run ended without a verdict; unknown: there is none, and this host
    cannot tell whether it is still running (another host, a container). NODE is the host, with several nodes
    number/nodes:host; a terminal shows it only if hosts differ. A pipe gets all columns uncut, and - for no value.
    """
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record import journal
    from ddp_run.record.recorded_runs import closed_runs, recorded_runs, size_of
    from ddp_run.tell import runs_table

    folder = runs_folder(log_dir)
    there = log_dir is not None or folder.exists()
    try:
        runs, closed = (recorded_runs(folder), closed_runs(folder)) if there else ([], 0)
    except OSError as error:
        raise click.ClickException(f"cannot read {folder}: {error.strerror}") from error
    rows = [runs_table.Row(run, size_of(run.folder), time.time_ns()) for run in runs[-(count or len(runs)) :]]
    if as_json:
        sys.stdout.write(json.dumps([runs_table.as_json(row, journal.iso) for row in rows], indent=2) + "\n")
    elif rows:
        width = os.get_terminal_size(1).columns or 80 if os.isatty(1) else None
        sys.stdout.write(runs_table.table(rows, width=width, local=_local))
    elif not closed:
        click.echo(f"ddp-run: no runs in {folder}", err=True)
    if closed:
        runs_of = "run" if closed == 1 else "runs"
        click.echo(f"ddp-run: {closed} {runs_of} of other users in {folder} cannot be read", err=True)
    return 0


def _local(wall_ns: int) -> str:
    """The local date and time of nanoseconds since the epoch; `-` for an impossible date."""
    try:
        return datetime.fromtimestamp(wall_ns / 1e9).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "-"
