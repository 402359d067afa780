"""The commands besides a launch: one file each, found by being there; its `command` is a click command.

The launch does not pass here: click is loaded for commands alone.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import sys
from typing import TYPE_CHECKING

from ddp_run.values.lines import neutral_text

if TYPE_CHECKING:
    import click


def names() -> tuple[str, ...]:
    """The words that choose a command."""
    return tuple(found.name for found in pkgutil.iter_modules(__path__))


def all_commands() -> dict[str, click.Command]:
    """The commands, by name."""
    return {name: importlib.import_module(f"{__name__}.{name}").command for name in names()}


def listing() -> list[tuple[str, str]]:
    """For the help: how each is typed, in ASCII, and what it does."""
    import click

    found = []
    for name, command in all_commands().items():
        arguments = command.collect_usage_pieces(click.Context(command))[1:]
        found.append((" ".join([name, *arguments]).replace("…", "..."), command.get_short_help_str(80)))
    return found


def run(words: list[str]) -> int:
    """Run one command; returns its exit code. Messages about wrong words are click's."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without UTF-8 would end an answer in a traceback
        sys.stdout.reconfigure(errors="backslashreplace")
    import click

    group = click.Group(commands=all_commands(), context_settings={"help_option_names": ["-h", "--help"]})
    try:
        code: object = group.main(args=words, prog_name="ddp-run", standalone_mode=False)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        sys.stderr.write(neutral_text(said.getvalue()))  # it quotes words and names of files
        return 2
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0
