"""Commands that answer questions; the launch itself does not pass here. The only module that imports click."""

from __future__ import annotations

import json
import os
import stat
import sys

import click

from ddp_run.terminal import colour, columns

NEWEST = "ddp-run-logs/latest"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Answer questions about a training."""


@commands.command()
@click.argument("paths", nargs=-1, metavar="[PATH…]")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON, schema of verdict.json.")
@click.option(
    "--rank-from-filename", is_flag=True, help="Each file is one rank's: rank_3.log, worker-3.err, 3/stderr.log."
)
def explain(paths: tuple[str, ...], as_json: bool, rank_from_filename: bool) -> int:
    """The verdict for what is over.

    PATH is a run's folder, log files of any launcher, folders of them, or - for standard input. Without one: standard
    input where that is a pipe or a file, else the newest run here.
    """
    from ddp_run import explanation

    if not paths:
        paths = (explanation.STANDARD_INPUT,) if _is_fed() else (NEWEST,)
    try:
        answer = explanation.explain(paths, rank_from_filename=rank_from_filename)
    except explanation.NotReadable as error:
        raise click.ClickException(str(error)) from error
    explanation.print_answer(answer, as_json=as_json, width=columns(), colour=colour(sys.stdout))
    return 0


@commands.command()
@click.argument("cause", required=False)
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
def rules(cause: str | None, as_json: bool) -> int:
    """The catalogue of causes: all of them, or all that is known of one. CAUSE is a name or a code."""
    from difflib import get_close_matches

    from ddp_run import catalogue_text, diagnose

    causes = diagnose.catalogue()
    if cause is not None:
        wanted = {name: each for each in causes for name in (each.rule.name, each.rule.code.lower())}
        found = wanted.get(cause.lower())
        if found is None:
            near = get_close_matches(cause.lower(), wanted, n=1)
            raise click.UsageError(f"no cause {cause!r}" + (f"; is {near[0]!r} meant?" if near else ""))
        causes = (found,)
    if as_json:
        rows = [catalogue_text.as_json(each) for each in causes]
        click.echo(json.dumps(rows if cause is None else rows[0], indent=2))
    else:
        click.echo(catalogue_text.listing(causes) if cause is None else catalogue_text.page(causes[0]), nl=False)
    return 0


def _is_fed() -> bool:
    """Whether standard input is a pipe or a file; not a terminal or /dev/null, as under cron."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def run(words: list[str]) -> int:
    """Run one command; returns its exit code. Messages about wrong words are click's."""
    try:
        code: object = commands.main(args=words, prog_name="ddp-run", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0
