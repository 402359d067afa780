"""`ddp-run report`: a run, or a log, as a page to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddp_run.commands import log_dir_option

if TYPE_CHECKING:
    from ddp_run.record.events import Event

_STDOUT = "-"


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN…]")
@click.option("-o", "--output", metavar="FILE", help="Where to write the page; - for standard output.")
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
@log_dir_option
def command(paths: tuple[str, ...], output: str | None, opened: bool, log_dir: str | None) -> int:
    """Write a page about a run: verdict, timeline, steps, memory, stacks, last lines.

    RUN is what `ddp-run explain` takes: a run's folder or name, the folders of a job's nodes, or logs of any launcher,
    of which only the verdict is known. Without RUN, the newest run. The page is one file: it needs no network, and no
    script to be read. It is written to report.html in the run's folder; for several folders or a log, to report.html
    here. Secrets are removed, as from all that ddp-run writes; paths, host names and lines of logs are in it.
    """
    from ddp_run.commands.explain.answer import explain
    from ddp_run.plan.checks.log_folder import runs_folder
    from ddp_run.record import file_names
    from ddp_run.record.runs_meant import run_named, runs_meant
    from ddp_run.tell.page import files
    from ddp_run.tell.page.page import page_of
    from ddp_run.tell.page.rendering import rendered
    from ddp_run.values.private_files import write_whole

    meant = runs_meant(paths or (str(run_named(None, runs_folder(log_dir))),), lambda: runs_folder(log_dir))
    if meant.note is not None:
        click.echo(f"ddp-run: {meant.note}", err=True)
    answer = explain(meant.paths, rank_from_filename=False)
    alone = answer.folder is not None and len(meant.paths) == 1
    parts = [(answer.folder, answer.events)] if alone and answer.folder is not None else list(_parts(meant.paths))
    known = files.known(answer.verdict, answer.attempts, answer.decision, answer.folder, parts)
    inside = alone and output is None
    text = rendered(page_of(known), links=inside)
    if output == _STDOUT:
        click.echo(text.encode("utf-8", "backslashreplace"), nl=False)
        return 0
    home = answer.folder if alone and answer.folder is not None else Path()
    path = home / file_names.REPORT if output is None else Path(output)
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    else:
        write_whole(path, text, durable=False)
    click.echo(f"ddp-run: wrote {path.resolve()}", err=True)
    if opened:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            click.echo("ddp-run: no browser was found", err=True)
    return 0


def _parts(paths: Sequence[str]) -> Iterator[tuple[Path, Sequence[Event]]]:
    """The folders of a job's nodes; none for logs."""
    from ddp_run.record import file_names, journal
    from ddp_run.record.runs_meant import is_run

    for path in filter(is_run, paths):
        folder = Path(path).resolve()
        yield folder, journal.load(folder / file_names.EVENTS).events
