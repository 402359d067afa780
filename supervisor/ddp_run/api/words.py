"""From the arguments of `ddp_run.launch` to the words of a command line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

from ddp_run.api.options import LaunchOptions

_STARTS_NOTHING = ("dry_run", "help", "version")


def words(
    script: str | Path, args: Iterable[str | int | float | Path], options: Mapping[str, object]
) -> tuple[str, ...]:
    """What to type after `ddp-run`. Raises TypeError for what no command line can say.

    Whether an option exists and what its value may be is checked where command lines are parsed.
    """
    if isinstance(args, str | bytes):
        raise TypeError(f"args is a string, not a list of words: {args!r}; shlex.split makes a list")
    return (*_option_words(options), _text("script", script), *(_text("args", each) for each in args))


def _option_words(options: Mapping[str, object]) -> list[str]:
    switches, valued = [], []
    for name, value in options.items():
        if name in _STARTS_NOTHING:
            raise TypeError(f"{name} doesn't start a job: use it on the command line")
        # A command line may shorten an option to what is unambiguous today; a program lasts longer.
        longer = [each for each in (*LaunchOptions.__annotations__, *_STARTS_NOTHING) if each.startswith(name)]
        if longer and name not in longer:
            raise TypeError(f"{name} is not an option: expected {' or '.join(longer)}")
        option = f"--{name.replace('_', '-')}"
        if value is True:
            switches.append(option)
        elif value is not None and value is not False:
            valued.append(f"{option}={_text(name, value)}")
    # First, so that an option that needs a value doesn't take the script for it.
    return [*switches, *valued]


def _text(name: str, value: object) -> str:
    match value:
        case str():
            text = value
        case PurePath() | int() | float():
            text = str(value)
        case _:
            raise TypeError(f"{name}: {type(value).__name__} can't be a word of a command line: {value!r}")
    if "\0" in text:
        raise TypeError(f"{name}: a word of a command line can't contain a null character")
    return text
