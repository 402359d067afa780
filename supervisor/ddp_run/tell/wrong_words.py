"""Turns click's errors into problems as a launch shows them: with the wrong word, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from ddp_run.values.problem import Problem, nearest

_CODE = "DDP101"
_EXTRA = "unexpected extra argument"


def problem(error: click.ClickException, words: Sequence[str]) -> Problem:
    """The problem behind click's error. `words`: everything after `ddp-run`, the command's name first."""
    match error:
        case click.NoSuchOption():
            return _unknown(error, words)
        case click.BadOptionUsage():
            return _bad_option(error.option_name or "", words)
        case click.MissingParameter(param=click.Parameter() as parameter):
            title = f"{parameter.human_readable_name} is missing"
            return Problem(_CODE, title, len(words), f"expected {_allowed(parameter.type)} here", helps=_help_of(words))
        case click.BadParameter(param=click.Parameter() as parameter):
            return _bad_value(error, parameter, words)
        case click.UsageError() if _EXTRA in error.message:
            extra = error.message.partition("(")[2].removesuffix(")")
            title = f"{extra}: more words than expected"
            usage = () if error.ctx is None else (error.ctx.get_usage().removeprefix("Usage: "),)
            return Problem(_CODE, title, _first_of(extra, words), "not expected here", helps=usage)
        case click.UsageError():
            return Problem(_CODE, error.format_message(), helps=_help_of(words))
        case _:  # nothing is wrong with the words: no such run, a file that can't be read
            return Problem("", error.format_message())


def _help_of(words: Sequence[str]) -> tuple[str, ...]:
    return (f"ddp-run {words[0]} --help",)


def _unknown(error: click.NoSuchOption, words: Sequence[str]) -> Problem:
    name = error.option_name
    parameters = error.ctx.command.params if error.ctx is not None else ()
    known = [flag for each in parameters for flag in each.opts if flag.startswith("--")]
    close = nearest(name, known)
    helps = (f"did you mean {' or '.join(close)}?",) if close else _help_of(words)
    return Problem(
        _CODE, f"unknown option {name}", _holding(name, words), f"not an option of ddp-run {words[0]}", helps=helps
    )


def _bad_option(name: str, words: Sequence[str]) -> Problem:
    """An option without its value, or a flag with one."""
    word = _holding(name, words)
    if word < len(words) and words[word].startswith(f"{name}="):
        return Problem(_CODE, f"{name} takes no value", word, "its name alone turns it on")
    helps = (f"{name}{'=' if name.startswith('--') else ' '}VALUE", "is the variable after it empty?")
    return Problem(_CODE, f"{name} needs a value", word, "expected a value after it", helps=helps)


def _bad_value(error: click.BadParameter, parameter: click.Parameter, words: Sequence[str]) -> Problem:
    name = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
    word, value = _value_of(parameter, words)
    reason = error.message
    if isinstance(parameter.type, click.IntRange):  # their own words quote Python
        reason = f"must be {_allowed(parameter.type)}"
    elif isinstance(parameter.type, click.Choice):
        reason = f"{value!r} is not {_allowed(parameter.type)}"
    return Problem(_CODE, f"{name}: {reason}", word, "this value", helps=_help_of(words))


def _allowed(of: click.ParamType[Any]) -> str:
    match of:
        case click.Choice():
            return f"one of {', '.join(map(str, of.choices))}"
        case click.IntRange(min=int() as least, max=int() as most):
            return f"a whole number from {least} to {most}"
        case click.IntRange(min=int() as least):
            return f"a whole number of at least {least}"
        case _:
            return "a value"


def _value_of(parameter: click.Parameter, words: Sequence[str]) -> tuple[int, str]:
    """Which word has the value that counts, the last one; and the value."""
    if not isinstance(parameter, click.Option):
        place = max(index for index, word in enumerate(words) if index == 0 or not word.startswith("-"))
        return place, words[place]
    for index in range(len(words) - 1, 0, -1):
        for flag in parameter.opts:
            if words[index] == flag and index + 1 < len(words):
                return index + 1, words[index + 1]
            if words[index].startswith(f"{flag}=") or (len(flag) == 2 and words[index].startswith(flag)):
                return index, words[index][len(flag) :].removeprefix("=")
    return len(words), ""


def _holding(name: str, words: Sequence[str]) -> int:
    """Which word is the option: alone, with a value, or as one letter of several (`-fx`); one past the last if none."""
    letters = re.compile(rf"-\w*{re.escape(name[1:])}") if len(name) == 2 else re.compile(rf"{re.escape(name)}(=|$)")
    return next((index for index, word in enumerate(words) if index and letters.match(word)), len(words))


def _first_of(extra: str, words: Sequence[str]) -> int | None:
    """Where the words begin that click lists, joined by blanks; None if options are between them."""
    return next((start for start in range(1, len(words)) if " ".join(words[start:]) == extra), None)
