"""A TOML preset: its keys are options' names. Every mistake in it is told at once, with its line. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, nearest


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The values of a preset, as text of the command line (true for an option without a value), by destination."""

    path: str
    values: Mapping[str, tuple[str | bool, int]]
    """Value and line."""
    problems: tuple[Problem, ...] = ()


def read_config(path: str, text: str, rows: Sequence[Row]) -> ConfigFile:
    """Read a preset whose text is given; mistakes are in `problems`."""
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return ConfigFile(path, {}, (_syntax_problem(path, str(error)),))
    names = {spelling: row for row in rows if row.dest != "config" for spelling in (row.key, row.dest)}
    values: dict[str, tuple[str | bool, int]] = {}
    problems: list[Problem] = []
    for key, value in table.items():
        line = _line_of(key, text)
        row = names.get(key)
        if row is None:
            problems.append(_unknown_key(path, line, key, sorted({each.key for each in names.values()})))
        elif row.dest in values:
            title = f"{row.key} is set twice, also as {key}"
            problems.append(Problem("DDP101", title, origin=f"{path}:{line}"))
        else:
            try:
                values[row.dest] = (_as_text(row, value), line)
            except TypeError as error:
                title = f"{key} = {_shown(value)}: {error}"
                problems.append(Problem("DDP101", title, origin=f"{path}:{line}"))
    return ConfigFile(path, values, tuple(problems))


def _as_text(row: Row, value: object) -> str | bool:
    """The value as the command line would have it; raises `TypeError` with what is allowed."""
    match row.takes_value, row.type, value:
        case False, _, bool():
            return value
        case False, _, _:
            raise TypeError("expected true or false")
        case True, "int", int() if not isinstance(value, bool):
            return str(value)
        case True, "int", _:
            raise TypeError("expected an integer")
        case True, "float", int() | float() if not isinstance(value, bool):
            return str(value)
        case True, "float", _:
            raise TypeError("expected a number")
        case True, _, str():
            return value
        case True, _, int() if not isinstance(value, bool):
            return str(value)
    raise TypeError("expected a string")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) < 60 else text[:59] + "…"


def _line_of(key: str, text: str) -> int:
    """The line where a top-level key stands; tomllib does not tell."""
    pattern = re.compile(rf"""^\s*\[*\s*(?P<quote>["']?){re.escape(key)}(?P=quote)\s*[=.\]]""")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return number
    return 1


def _syntax_problem(path: str, message: str) -> Problem:
    line = re.search(r"at line (\d+)", message)
    origin = f"{path}:{line[1]}" if line else path
    return Problem("DDP101", f"not valid TOML: {message}", origin=origin)


def _unknown_key(path: str, line: int, key: str, names: Sequence[str]) -> Problem:
    close = nearest(key.replace("_", "-"), names)
    helps = (f"did you mean {' or '.join(close)}?",) if close else ("keys are option names without the dashes",)
    return Problem("DDP101", f"unknown key {key}", origin=f"{path}:{line}", helps=helps)
