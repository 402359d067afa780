"""Commands that answer questions; the launch itself does not pass here. The only module that imports click."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddp_run.values.lines import neutral_text
from ddp_run.values.terminal import colour, columns

if TYPE_CHECKING:
    from ddp_run.judge.verdict import Rule

NEWEST = "ddp-run-logs/latest"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Explain failed runs and the causes of failures."""


@commands.command()
@click.argument("paths", nargs=-1, metavar="[PATH…]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, in the schema of verdict.json.")
@click.option(
    "--rank-from-filename", is_flag=True, help="Read each file as one rank's: rank_3.log, worker-3.err, 3/stderr.log."
)
def explain(paths: tuple[str, ...], as_json: bool, rank_from_filename: bool) -> int:
    """Print the verdict of a finished run, or of a log.

    PATH is a run's folder, the folders of a job's nodes, a folder of runs (the newest counts), log files of any
    launcher, folders of log files, or - for standard input. Without PATH: standard input if it is a pipe or a file,
    else the newest run here.
    """
    from ddp_run.commands import explanation
    from ddp_run.record.runs_meant import runs_meant

    if not paths:
        paths = (explanation.STANDARD_INPUT,) if _is_fed() else (NEWEST,)
        if paths == (NEWEST,) and not Path(NEWEST).exists():
            raise click.ClickException(f"no run here ({NEWEST}): name a run's folder or a log, or pipe a log in")
    meant = runs_meant(paths)
    if meant.note is not None:
        click.echo(f"ddp-run: {meant.note}", err=True)
    try:
        answer = explanation.explain(meant.paths, rank_from_filename=rank_from_filename)
    except explanation.NotReadable as error:
        raise click.ClickException(str(error)) from error
    explanation.print_answer(answer, as_json=as_json, width=columns(), colour=colour(sys.stdout))
    return 0


@commands.command()
@click.argument("words", nargs=-1, metavar="[WORD…]")
@click.option("--json", "as_json", is_flag=True, help="Print the causes as JSON.")
def rules(words: tuple[str, ...], as_json: bool) -> int:
    """Print the catalogue of causes.

    Without WORD, all causes. With a name or a code, everything about that cause. With other words, the causes whose
    names, titles or pages contain them.
    """
    from ddp_run.judge import catalogue
    from ddp_run.tell import catalogue_text

    causes = catalogue.catalogue()
    one = next((each for each in causes if words[:1] and words[0].lower() in _names(each.rule)), None)
    if one is not None and len(words) == 1:
        text = json.dumps(catalogue_text.as_json(one), indent=2) + "\n" if as_json else ""
        click.echo(text or catalogue_text.plain_page(one, columns()), nl=False)
        return 0
    found = catalogue_text.search(causes, words)
    if not found:
        raise click.UsageError(_no_cause(words, [name for each in causes for name in _names(each.rule)]))
    if as_json:
        click.echo(json.dumps([catalogue_text.as_json(each) for each in found], indent=2))
    elif len(found) == 1:
        click.echo(catalogue_text.plain_page(found[0], columns()), nl=False)
    else:
        click.echo(catalogue_text.listing(found), nl=False)
    return 0


def _names(rule: Rule) -> tuple[str, str]:
    return rule.name, rule.code.lower()


def _no_cause(words: tuple[str, ...], names: list[str]) -> str:
    from difflib import get_close_matches

    text = " ".join(words)
    near = get_close_matches(text.lower(), names, n=1)
    return f"no cause {text!r}" + (f"; did you mean {near[0]!r}?" if near else "; ddp-run rules lists all")


def _is_fed() -> bool:
    """Whether standard input is a pipe or a file; not a terminal or /dev/null, as under cron."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def run(words: list[str]) -> int:
    """Run one command; returns its exit code. Messages about wrong words are click's."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without UTF-8 would end an answer in a traceback
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: object = commands.main(args=words, prog_name="ddp-run", standalone_mode=False)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        sys.stderr.write(neutral_text(said.getvalue()))  # it quotes words and names of files
        return 2
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0
