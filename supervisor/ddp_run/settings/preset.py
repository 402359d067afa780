"""A TOML preset, or `[tool.ddp-run]` of a pyproject.toml: keys are options' names, `[env]` has variables for the ranks.

Every mistake in it is told at once, with its line. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_run.settings.rank_variables import RankVariable, read_variable, wrong_variable
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, nearest


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The values of a preset, as text of the command line (true for an option without a value), by destination."""

    path: str
    values: Mapping[str, tuple[str | bool, int]]
    """Value and line."""
    problems: tuple[Problem, ...] = ()
    variables: tuple[RankVariable, ...] = ()
    """For the ranks; those that the user has set among them."""


_ENV = "env"
_PROJECT_HEADER = re.compile(r"""^\s*\[\s*tool\s*\.\s*["']?ddp-run["']?\s*\]""", re.MULTILINE)


def read_config(path: str, text: str, rows: Sequence[Row]) -> ConfigFile:
    """Read a preset whose text is given; mistakes are in `problems`."""
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return ConfigFile(path, {}, (_syntax_problem(path, str(error)),))
    return _read(path, text, 0, table, rows)


def read_project(path: str, text: str, rows: Sequence[Row]) -> ConfigFile | None:
    """Read `[tool.ddp-run]` of a pyproject.toml; null where it has none."""
    import tomllib

    header = _PROJECT_HEADER.search(text)
    start = text.count("\n", 0, header.end()) + 1 if header else 0
    try:
        tool = tomllib.loads(text).get("tool")
    except tomllib.TOMLDecodeError as error:
        return ConfigFile(path, {}, (_syntax_problem(path, str(error)),)) if header else None
    table = tool.get("ddp-run") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        origin = f"{path}:{_line_of('ddp-run', text)}"
        return ConfigFile(path, {}, (Problem("DDP101", "tool.ddp-run is not a table", origin=origin),))
    return _read(path, text, start, table, rows)


def _read(path: str, text: str, start: int, table: Mapping[str, object], rows: Sequence[Row]) -> ConfigFile:
    """`start`: the number of the line before the table's first, as far as that is known."""
    names = {spelling: row for row in rows if row.dest != "config" for spelling in (row.key, row.dest)}
    values: dict[str, tuple[str | bool, int]] = {}
    problems: list[Problem] = []
    for key, value in table.items():
        if key == _ENV:
            continue
        line = _line_of(key, text, start)
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
    variables, wrong = _variables(path, text, start, table.get(_ENV, {}))
    return ConfigFile(path, values, (*problems, *wrong), variables)


def _variables(path: str, text: str, start: int, table: object) -> tuple[tuple[RankVariable, ...], tuple[Problem, ...]]:
    header = _header_line(text, start)
    if not isinstance(table, dict):
        title = "env is not a table of variables"
        return (), (Problem("DDP101", title, origin=f"{path}:{header}", helps=('[env]\n      NAME = "value"',)),)
    variables: list[RankVariable] = []
    problems: list[Problem] = []
    for name, value in table.items():
        origin = f"{path}:{_line_of(name, text, header)}"
        try:
            variables.append(read_variable(name, value, origin))
        except ValueError as error:
            problems.append(wrong_variable(name, str(error), origin))
    return tuple(variables), tuple(problems)


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


def _line_of(key: str, text: str, start: int = 0) -> int:
    """The line after `start` where a key stands, `start` where none does; tomllib does not tell."""
    pattern = re.compile(rf"""^\s*\[*\s*(?P<quote>["']?){re.escape(key)}(?P=quote)\s*[=.\]]""")
    for number, line in enumerate(text.splitlines(), 1):
        if number > start and pattern.match(line):
            return number
    return max(start, 1)


def _header_line(text: str, start: int) -> int:
    """The line of `[env]`, or of `env = {…}`."""
    pattern = re.compile(r"""^\s*(?:\[\s*(?:tool\s*\.\s*["']?ddp-run["']?\s*\.\s*)?env\s*\]|env\s*[=.])""")
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if number > start and pattern.match(line)), max(start, 1))


def _syntax_problem(path: str, message: str) -> Problem:
    line = re.search(r"at line (\d+)", message)
    origin = f"{path}:{line[1]}" if line else path
    return Problem("DDP101", f"not valid TOML: {message}", origin=origin)


def _unknown_key(path: str, line: int, key: str, names: Sequence[str]) -> Problem:
    close = nearest(key.replace("_", "-"), names)
    helps = (f"did you mean {' or '.join(close)}?",) if close else ("keys are option names without the dashes",)
    return Problem("DDP101", f"unknown key {key}", origin=f"{path}:{line}", helps=helps)
