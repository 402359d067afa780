"""The commands besides a launch. Each module or package here is one; its `command` is a click command.

A launch doesn't load click.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ddp_run.values.lines import neutral_text
from ddp_run.values.problem import Problem, Refused, render
from ddp_run.values.terminal import ERASE, colour, columns

if TYPE_CHECKING:
    import threading

    import click

_MEANT = {
    "runs": "list ls ps status jobs history",
    "watch": "monitor top stats",
    "stacks": "stack dump threads",
    "logs -f": "tail follow attach",
    "explain": "show inspect describe diagnose why",
    "stop": "cancel abort terminate",
    "stop --kill": "kill",
    "clean": "rm prune delete remove",
    "doctor": "check preflight env",
    "": "run launch start",
}
"""Other tools' words, by the command that does the same; empty stands for a launch."""
_NO_READER = 128 + signal.SIGPIPE


def names() -> tuple[str, ...]:
    """The words that choose a command."""
    return tuple(found.name for found in pkgutil.iter_modules(__path__))


def meant_by(words: Sequence[str]) -> tuple[str, ...]:
    """Translate a command line that begins with another tool's word; empty if it doesn't."""
    found = next((ours for ours, theirs in _MEANT.items() if words[0] in theirs.split()), None)
    return () if found is None or not (found or words[1:]) else ("ddp-run", *found.split(), *words[1:])


def all_commands() -> dict[str, click.Command]:
    """The commands, by name."""
    return {name: importlib.import_module(f"{__name__}.{name}").command for name in names()}


def log_dir_option(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command that reads runs the option `--log-dir`."""
    import click

    said = "The folder with the runs (default: where a launch from this directory writes them)."
    return click.option("--log-dir", metavar="DIR", help=said)(function)


def listing() -> list[tuple[str, str]]:
    """Usage, in ASCII, and summary of each command, for the help."""
    import click

    found = []
    for name, command in all_commands().items():
        arguments = command.collect_usage_pieces(click.Context(command))[1:]
        found.append((" ".join([name, *arguments]).replace("…", "..."), command.get_short_help_str(80)))
    return found


def run(words: list[str]) -> int:
    """Run one command; returns its exit code. Usage errors look like those of a launch."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # else a traceback if the locale isn't UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    import click

    group = click.Group(commands=all_commands(), context_settings={"help_option_names": ["-h", "--help"]})
    try:
        code: object = group.main(args=words, prog_name="ddp-run", standalone_mode=False)
    except click.ClickException as error:
        from ddp_run.tell import wrong_words

        return _refused((wrong_words.problem(error, words),), words)
    except Refused as refused:
        return _refused([_placed(each, refused.argv, words) for each in refused.problems], words)
    except click.Abort:
        return 130
    except SystemExit:  # click raises it if the pipe's reader has gone
        return _NO_READER
    except OSError as error:  # usually a full disk under standard output
        sys.stderr.write(f"ddp-run {words[0]}: {neutral_text(str(error))}\n")
        return 2
    return code if isinstance(code, int) else 0


def _refused(problems: Sequence[Problem], words: Sequence[str]) -> int:
    sys.stderr.write(render(problems, words, width=columns(), colour=colour(sys.stderr)))
    return 2


def _placed(problem: Problem, some: Sequence[str], words: Sequence[str]) -> Problem:
    """Move a problem from its place in the words that a command passed on to its place in all words.

    Searches from the end: a command's own options usually come first.
    """
    if problem.word is None or problem.word >= len(some):
        return replace(problem, word=None if problem.word is None else len(words))
    place = len(words)
    for each in reversed(some[problem.word :]):
        place = max((index for index in range(place) if words[index] == each), default=place)
    return replace(problem, word=place)


# ------------------------------------------------------------------------------ commands that take long

_QUIET_S = 2
"""Seconds that a command may take without a word."""


@contextmanager
def busy(step: str) -> Iterator[None]:
    """Show what the command does, and the seconds so far, on stderr if that's a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    import threading

    finished = threading.Event()
    shower = threading.Thread(target=_show, args=(step, finished), daemon=True)
    shower.start()
    try:
        yield
    finally:
        finished.set()
        shower.join()


def _show(step: str, finished: threading.Event) -> None:
    seconds = _QUIET_S
    if finished.wait(_QUIET_S):
        return
    while True:
        sys.stderr.write(f"{ERASE}{step}, {seconds} s")
        sys.stderr.flush()
        if finished.wait(1):
            break
        seconds += 1
    sys.stderr.write(ERASE)
    sys.stderr.flush()
