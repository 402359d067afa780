"""`ddp-run clean`: remove old runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddp_run.commands import log_dir_option

if TYPE_CHECKING:
    from ddp_run.record.recorded_runs import RecordedRun

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def _age(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Nanoseconds of `14d`."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration (examples: 90m, 12h, 14d)")
    return int(found[1]) * _UNITS[found[2]] * 10**9


@click.command()
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the N newest runs, however old.")
@click.option("--older", metavar="AGE", callback=_age, help="Remove runs that ended longer ago: 90m, 12h, 14d, 8w.")
@click.option("--only-succeeded", is_flag=True, help="Keep runs that did not succeed.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@log_dir_option
def command(
    keep: int | None, older: int | None, only_succeeded: bool, dry_run: bool, yes: bool, log_dir: str | None
) -> int:
    """Remove the folders of old runs.

    At least one of --keep and --older is needed; with both, a run is removed if both say so. The folders of a job's
    nodes are one run: all of them stay, or none. Runs that may still be running stay, and so do folders whose name is
    not a run's: rename a folder to keep it.
    """
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record import removal
    from ddp_run.record.recorded_runs import by_job, recorded_runs, size_of
    from ddp_run.values.lines import neutral
    from ddp_run.values.words import size_in_words

    if keep is None and older is None:
        raise click.UsageError("say which runs: --keep N, --older AGE, or both")
    folder = runs_folder(log_dir)
    try:
        runs = recorded_runs(folder)
        if not any(run.is_ours for run in runs) and any(folder.iterdir()):
            raise click.ClickException(f"{folder} does not look like a folder of runs: there is no run in it")
    except OSError as error:
        raise click.ClickException(f"cannot read {folder}: {error.strerror}") from error
    jobs = by_job(runs)
    old = removal.removable(jobs, keep=keep, older_ns=older, only_succeeded=only_succeeded, now_ns=time.time_ns())
    chosen = {run.folder: size_of(run.folder) for nodes in old for run in nodes}
    for run in (run for nodes in old for run in nodes):
        size = size_in_words(chosen[run.folder])
        click.echo(f"{size:>9}  {run.outcome or 'no verdict':11}  {neutral(run.folder.name)}")
    told = f"{_share(old, jobs)}, {size_in_words(sum(chosen.values()))}"
    if dry_run or not chosen:
        click.echo(f"would remove {told}" if dry_run else f"nothing to remove: {_share(old, jobs)}")
        return 0
    if not yes and not _agreed(told):
        click.echo("nothing was removed", err=True)
        return 1
    removed = set()
    for run in (run for nodes in old for run in nodes):
        try:
            if removal.still_removable(run, time.time_ns()):
                removal.remove(folder, run)
                removed.add(run.folder)
        except OSError as error:
            click.echo(f"ddp-run: cannot remove {neutral(str(run.folder))}: {error.strerror}", err=True)
    try:
        removal.correct_latest(folder, [run for run in runs if run.folder not in removed])
    except OSError as error:
        click.echo(f"ddp-run: cannot correct the link {folder / 'latest'}: {error.strerror}", err=True)
    freed = size_in_words(sum(chosen[each] for each in removed))
    gone = [[run for run in nodes if run.folder in removed] for nodes in old]
    click.echo(f"removed {_share([nodes for nodes in gone if nodes], jobs)}, {freed}")
    return 0 if len(removed) == len(chosen) else 1


def _share(some: Sequence[Sequence[RecordedRun]], jobs: Sequence[Sequence[RecordedRun]]) -> str:
    """`2 of 3 runs`; with jobs of several nodes `2 of 3 runs (4 of 6 folders)`."""
    share = f"{len(some)} of {len(jobs)} runs"
    folders, of_all = sum(map(len, some)), sum(map(len, jobs))
    return share if of_all == len(jobs) else f"{share} ({folders} of {of_all} folders)"


def _agreed(told: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask without a terminal: add --yes, or --dry-run to see what would be removed")
    return click.confirm(f"Remove {told}?", err=True)
