"""The commands. Translates words to `Options` and answers to text; the only module that imports click."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from ddp_run.problem import Problem, Refused, render

if TYPE_CHECKING:
    pass


class _Launch(click.Command):
    """Takes its words as they are: torchrun's grammar, not click's, decides where the script begins."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []


class _Commands(click.Group):
    """The first word chooses the command; any other word belongs to a launch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.commands and args[0] != _LAUNCH:
            if Path(args[0]).exists():
                raise Refused((_ambiguous(args[0]),), tuple(args))
            return super().parse_args(ctx, args)
        ctx._protected_args, ctx.args = [_LAUNCH], list(args)
        return ctx.args


_LAUNCH = "launch"


def _ambiguous(word: str) -> Problem:
    return Problem(
        "DDP101",
        f"`{word}` is a command of ddp-run and a file in this folder",
        word=0,
        label="which one is meant?",
        helps=(f"ddp-run ./{word}   (the script)", f"run `ddp-run {word}` in another folder   (the command)"),
    )


@click.group(cls=_Commands, add_help_option=False)
def commands() -> None:
    """Launch a training, or answer questions about one."""


@commands.command(_LAUNCH, cls=_Launch, add_help_option=False)
def launch(words: tuple[str, ...]) -> int:
    """Start a training: torchrun's command line and a few options more."""
    from ddp_run import preflight
    from ddp_run.grammar import HelpWanted
    from ddp_run.options import parse

    environ = dict(os.environ)
    try:
        options = parse(words, environ, torch_rows=preflight.torch_rows(), read_file=_read_file)
    except HelpWanted:
        click.echo(preflight.help_text(_columns()), nl=False)
        return 0
    checked = preflight.check(options, environ, Path.cwd())
    if checked.problems:
        raise Refused(checked.problems, words, checked.exit_code)
    from ddp_run.plan import make_plan

    plan = make_plan(checked.options, environ, python=sys.executable, master=checked.master)
    if options.dry_run:
        from ddp_run import plan_file

        click.echo(plan_file.as_text(plan, ("ddp-run", *words)), nl=False)
        return 0
    from ddp_run.supervise import supervise

    return supervise(plan, ("ddp-run", *words), environ, (*checked.options.notes, *checked.warnings))


@commands.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON, schema of verdict.json.")
def explain(folder: Path | None, as_json: bool) -> int:
    """The verdict for a run that is over: FOLDER is a run's folder, by default the newest one here."""
    from ddp_run.explain import explain_folder

    return explain_folder(folder or Path("ddp-run-logs/latest"), as_json=as_json, width=_columns(), colour=_colour())


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _columns() -> int:
    import shutil

    return min(120, shutil.get_terminal_size((100, 24)).columns)


def _colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def main() -> NoReturn:
    """Entry point of `ddp-run`: exits with the code that interfaces.md promises."""
    try:
        code = commands.main(prog_name="ddp-run", standalone_mode=False)
    except Refused as refused:
        sys.stderr.write(render(refused.problems, refused.argv, width=_columns(), colour=_colour()))
        code = refused.exit_code
    except OSError as error:
        sys.stderr.write(f"ddp-run: cannot start: {error}\n")
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = 130
    # Nothing is left to do: skip the teardown of modules, which costs as much as a small job's verdict.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass
    os._exit(code or 0)
