"""Entry point: if the first word is a command, run it; otherwise all words are a launch's.

A launch's words go through torchrun's grammar (`ddp_run.settings.grammar`), not click: click would take
`--nproc_per_node=2` for the script, and importing it would delay the agent's start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddp_run import __version__, commands
from ddp_run.values.problem import Problem, Refused, nearest, render, why_not_here
from ddp_run.values.terminal import colour, columns, open_what_is_closed

if TYPE_CHECKING:
    from signal import Signals


def main() -> NoReturn:
    """Entry point of `ddp-run`: exits with one of the documented codes."""
    open_what_is_closed()
    code = 2
    try:
        code = run(sys.argv[1:])
    except Refused as refused:
        with suppress(OSError):  # there's no reader, but the exit code says it too
            _tell_refused(refused)
    except OSError as error:
        with suppress(OSError):
            sys.stderr.write(f"ddp-run: cannot start: {_why(error)}\n")
    except KeyboardInterrupt:
        code = 130
    finish(code)


def _why(error: OSError) -> str:
    try:
        Path.cwd()
    except FileNotFoundError:
        return 'the working directory was removed or recreated: cd "$PWD"'
    return str(error)


def finish(code: int) -> NoReturn:
    """Exit with this code, without tearing down modules, which costs as much as a verdict."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass
    os._exit(code)


def run(words: Sequence[str]) -> int:
    """Do what the words say. Returns the exit code. Raises Refused, and OSError if no folder can be made."""
    alone = words[0] if len(words) == 1 else None
    if alone in ("--version", "-V") or (alone == "version" and not _is_program("version")):
        sys.stdout.write(f"ddp-run {__version__}\n")
        return 0
    if alone in ("-h", "--help") or (alone == "help" and not _is_program("help")):
        return _help(whole=alone == "--help")
    if len(words) == 2 and words[0] == "help" and words[1] in commands.names() and not _is_program("help"):
        words = [words[1], "--help"]
    if not words or words[0] not in commands.names():
        try:
            return launch(tuple(words))
        except Refused as refused:
            problems = tuple(_with_commands_meant(each, words) for each in refused.problems)
            raise Refused(problems, refused.argv) from None
    if _is_program(words[0]):
        raise Refused((_ambiguous(words[0]),), tuple(words))
    return commands.run(list(words))


def _tell_refused(refused: Refused) -> None:
    if not _wants_json(refused.argv):
        sys.stderr.write(render(refused.problems, refused.argv, width=columns(), colour=colour(sys.stderr)))
        return
    import json

    from ddp_run.tell.verdict_file import refusal

    sys.stderr.write(json.dumps({"event": "verdict", "level": "error", **refusal(refused.problems)}) + "\n")


def _wants_json(words: Sequence[str]) -> bool:
    """Whether messages should be JSON, guessed from the words of a launch that couldn't be parsed."""
    ours = list(takewhile(lambda word: not word.endswith((".py", ".sh")), words))
    given = " ".join(ours).replace("=", " ").replace("log_format", "log-format")
    return "--log-format json" in given or os.environ.get("DDP_RUN_LOG_FORMAT") == "json"


def _is_program(word: str) -> bool:
    """Whether Python could run it: a file or a folder with a `__main__`."""
    path = Path(word)
    return path.is_file() or any((path / name).is_file() for name in ("__main__.py", "__main__.pyc"))


def _help(*, whole: bool) -> int:
    from ddp_run.plan.installed_torch import torch_rows
    from ddp_run.settings.help_text import short_help, whole_help
    from ddp_run.settings.table import all_rows

    note = ""
    try:
        rows = all_rows(torch_rows())
    except Refused as refused:
        rows = all_rows(())
        note = f"\n{refused.problems[0].title}: its torchrun's options are not listed\n"
    text = whole_help if whole else short_help
    sys.stdout.write(text(rows, commands.listing(), columns()) + note)
    return 0


def _with_commands_meant(problem: Problem, words: Sequence[str]) -> Problem:
    """If the first word isn't a script, suggest commands: it may be another tool's word or a misspelled command."""
    if not words or problem.word != 0 or problem.code != "DDP102":
        return problem
    if meant := commands.meant_by(words):
        import shlex

        return replace(problem, notes=(), helps=(shlex.join(meant),))
    near = nearest(words[0], commands.names(), count=1)
    return replace(problem, helps=(*problem.helps, *(f"ddp-run {name}   # the command" for name in near)))


def _ambiguous(word: str) -> Problem:
    return Problem(
        "DDP101",
        f"`{word}` is a command of ddp-run and a program in this folder",
        word=0,
        label="which one do you mean?",
        helps=(f"ddp-run ./{word}   (the script)", f"run `ddp-run {word}` in another folder   (the command)"),
    )


def launch(words: tuple[str, ...], *, begun: Callable[[Path], None] | None = None) -> int:
    """Run a training. Returns ddp-run's exit code. Raises Refused, and OSError if no folder can be made.

    `begun` gets the run's folder as soon as it exists.
    """
    if reason := why_not_here(sys.platform):
        sys.stderr.write(reason)
        return 2
    _take_stop_signals()
    early = _outlive_notices()
    from ddp_run.plan import preflight
    from ddp_run.plan.installed_torch import torch_rows
    from ddp_run.plan.read_options import read_options
    from ddp_run.settings.grammar import HelpWanted

    environ = dict(os.environ)
    try:
        options = read_options(words, environ, torch_rows())
    except HelpWanted as wanted:
        return _help(whole=wanted.whole)
    environ.update((each.name, each.value) for each in options.rank_variables)
    checked = preflight.check(options, environ, Path.cwd())
    if checked.problems:
        raise Refused(checked.problems, words)
    from ddp_run.plan.launch_plan import make_plan
    from ddp_run.values.addresses import is_this_host

    reached = {"master": checked.master, "interface": checked.interface}
    host = (checked.options.master or ("",))[0]
    is_here = checked.master is not None and is_this_host(host, checked.master)
    plan = make_plan(checked.options, environ, python=sys.executable, master_is_here=is_here, **reached)
    if options.dry_run:
        from ddp_run.plan import node_facts, plan_file

        for warning in (*checked.options.notes, *checked.warnings):
            sys.stderr.write(f"ddp-run: warning: {warning}\n")
        sys.stdout.write(plan_file.as_text(plan, ("ddp-run", *words), node_facts.of_plan(plan, environ)))
        return 0
    from ddp_run.supervise.job import supervise

    missed = tuple(f"{signum.name} arrived before any rank existed, so no rank got it" for signum in early)
    warnings = (*checked.options.notes, *checked.warnings, *missed)
    return supervise(plan, ("ddp-run", *words), environ, warnings, begun)


def _take_stop_signals() -> None:
    """Let INT, TERM and QUIT end a job even if they were ignored at the start, like torchrun.

    A shell script ignores INT and QUIT for programs that it starts with `&`. An ignored HUP stays ignored, as nohup
    wants it.
    """
    import signal

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def _outlive_notices() -> Sequence[Signals]:
    """Survive USR1 and USR2, which are for the ranks, while there are none yet (waiting for a name, say).

    Returns a list that grows with those that come. Handlers aren't inherited, so the ranks keep their default, or
    "ignored" if that came from outside.
    """
    import signal

    from ddp_run.values.signals import NOTICE_SIGNALS

    came: list[Signals] = []
    for signum in NOTICE_SIGNALS:
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, lambda signum, _frame: came.append(signal.Signals(signum)))
    return came
