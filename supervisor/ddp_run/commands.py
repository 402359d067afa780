"""Commands that answer questions; the launch itself does not pass here. The only module that imports click."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ddp_run.terminal import colour, columns


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Answer questions about a training."""


@commands.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON, schema of verdict.json.")
def explain(folder: Path | None, as_json: bool) -> int:
    """The verdict for a run that is over: FOLDER is a run's folder, by default the newest one here."""
    from ddp_run.explain import explain_folder

    return explain_folder(
        folder or Path("ddp-run-logs/latest"),
        as_json=as_json,
        width=columns(),
        colour=colour(sys.stdout),
    )


def run(words: list[str]) -> int:
    """Run one command; returns its exit code. Messages about wrong words are click's."""
    try:
        code: object = commands.main(args=words, prog_name="ddp-run", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0
