"""`ddp-run logs`: the output of a run's ranks, past or live."""

from __future__ import annotations

import click

from ddp_run.commands import log_dir_option
from ddp_run.values.lines import Stream

Spans = tuple[tuple[int, int], ...]


def _spans(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Spans | None:
    """Pairs of first and last of `3,5-7`."""
    if text is None:
        return None
    spans = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or (dash and int(first) > int(last)):
            raise click.BadParameter(f"{part!r} is not a rank or a range of ranks (examples: 3, 5-7)")
        spans.append((int(first), int(last or first)))
    return tuple(spans)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("-f", "--follow", is_flag=True, help="Show new lines, attempts and ranks until the run ends.")
@click.option("--rank", "ranks", metavar="RANKS", callback=_spans, help="Only these ranks: 3,5-7.")
@click.option("--stdout", "stream", flag_value="stdout", help="Only standard output.")
@click.option("--stderr", "stream", flag_value="stderr", help="Only standard error.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="N", help="This attempt, from 0 (default: the last).")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="The last N lines of each file.")
@click.option("--agent", is_flag=True, help="Show what torch.distributed.run itself wrote instead.")
@log_dir_option
def command(
    run: str | None,
    follow: bool,
    ranks: Spans | None,
    stream: Stream | None,
    attempt: int | None,
    lines: int | None,
    agent: bool,
    log_dir: str | None,
) -> int:
    """Show or follow a run's rank output.

    RUN is a run's folder, or its name in the folder of runs; without RUN, the newest. Lines carry no times, so the logs
    come one after the other: rank by rank, stdout before stderr. Each is below its file's name. With --follow, lines
    come as the ranks write them. Everything goes to standard output. Whether a run on another host was killed can't be
    seen from here: --follow reports that nothing is being written, and keeps following.
    """
    from ddp_run.commands.logs.shown import Shown, follow_run, show_run, why_none
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record.runs_meant import run_named

    if agent and (ranks is not None or stream is not None):
        raise click.UsageError("--agent replaces the ranks: leave out --rank, --stdout and --stderr")
    found = run_named(run, runs_folder(log_dir))
    wanted = Shown(found, ranks, stream, attempt, lines, agent)
    if not (follow_run(wanted) if follow else show_run(wanted)):
        raise click.ClickException(f"no such logs in {found}: {why_none(wanted)}")
    return 0
