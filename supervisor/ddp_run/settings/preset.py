"""A TOML preset, or `[tool.ddp-run]` of a pyproject.toml: keys are options' names, `[env]` has variables for the ranks.

All mistakes are reported at once, each with its line. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddp_run.settings.options import Setting, Source, Variable
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem, nearest


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a preset says, by destination: texts as on the command line, and values of options without one."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    variables: tuple[Variable, ...] = ()
    """For the ranks, including those that the user has set."""


_PROJECT_HEADER = re.compile(r"""^\s*\[\s*tool\s*\.\s*["']?ddp-run["']?\s*\]""", re.MULTILINE)
_PROJECT_PREFIX = r"""(?:tool\s*\.\s*["']?ddp-run["']?\s*\.\s*)?"""


def read_config(path: str, text: str, rows: Sequence[Row]) -> ConfigFile:
    """Read the text of a preset; mistakes are in `problems`."""
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return _not_toml(path, error)
    return _read(path, text, 0, table, rows)


def read_project(path: str, text: str, rows: Sequence[Row]) -> ConfigFile | None:
    """Read `[tool.ddp-run]` of a pyproject.toml; None if it has none."""
    import tomllib

    header = _PROJECT_HEADER.search(text)
    start = text.count("\n", 0, header.end()) + 1 if header else 0
    try:
        tool = tomllib.loads(text).get("tool")
    except tomllib.TOMLDecodeError as error:
        return _not_toml(path, error) if header else None
    table = tool.get("ddp-run") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        origin = f"{path}:{_line_of('ddp-run', text)}"
        return ConfigFile(problems=(Problem("DDP101", "tool.ddp-run is not a table", origin=origin),))
    return _read(path, text, start, table, rows)


def _not_toml(path: str, error: ValueError) -> ConfigFile:
    line = re.search(r"at line (\d+)", str(error))
    origin = f"{path}:{line[1]}" if line else path
    return ConfigFile(problems=(Problem("DDP101", f"not valid TOML: {error}", origin=origin),))


def _read(path: str, text: str, start: int, table: Mapping[str, object], rows: Sequence[Row]) -> ConfigFile:
    """Read the options of a table. `start`: the number of the line before its first, if known."""
    names = {spelling: row for row in rows if row.dest != "config" for spelling in (row.key, row.dest)}
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for key, value in table.items():
        if key == "env":
            continue
        origin = f"{path}:{_line_of(key, text, start)}"
        row = names.get(key)
        if row is None:
            title = f"unknown key {key}"
            close = nearest(key.replace("_", "-"), [each.key for each in names.values()])
            help = f"did you mean {' or '.join(close)}?" if close else "keys are option names without the dashes"
            problems.append(Problem("DDP101", title, origin=origin, helps=(help,)))
        elif row.dest in settings:
            problems.append(Problem("DDP101", f"{row.key} is set twice, also as {key}", origin=origin))
        elif allowed := _allowed(row, value):
            problems.append(Problem("DDP101", f"{key} = {value!r}: expected {allowed}", origin=origin))
        else:
            written = None if isinstance(value, bool) else str(value)
            settings[row.dest] = Setting(value, Source.CONFIG, origin, written)
    variables = _variables(path, text, start, table.get("env", {}), problems)
    return ConfigFile(settings, tuple(problems), variables)


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
}


def _allowed(row: Row, value: object) -> str | None:
    """What the option's value must be; None if it is that."""
    types, allowed = _TYPES.get(row.type, ((int, str), "a string")) if row.takes_value else ((bool,), "true or false")
    return None if type(value) in types else allowed  # True is an int too


def _line_of(key: str, text: str, start: int = 0) -> int:
    """The line after `start` that has the key, else `start`; tomllib gives no line numbers."""
    pattern = re.compile(rf"""^\s*\[*\s*{_PROJECT_PREFIX}(?P<quote>["']?){re.escape(key)}(?P=quote)\s*[=.\]]""")
    for number, line in enumerate(text.splitlines(), 1):
        if number > start and pattern.match(line):
            return number
    return max(start, 1)


# ------------------------------------------------------------------------------- variables for the ranks

_LAUNCH = frozenset({"NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "MAX_RETRIES", "DDP_DEBUG"})
_LAUNCHERS = ("TORCHELASTIC_", "TORCH_ELASTIC_", "GROUP_", "ROLE_")
_RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})


def _variables(path: str, text: str, start: int, table: object, problems: list[Problem]) -> tuple[Variable, ...]:
    header = _line_of("env", text, start)
    if not isinstance(table, dict):
        title, helps = "env is not a table of variables", ('[env]\n      NAME = "value"',)
        problems.append(Problem("DDP101", title, origin=f"{path}:{header}", helps=helps))
        return ()
    found = []
    for name, value in table.items():
        origin = f"{path}:{_line_of(name, text, header)}"
        reason = _why_not(name, value)
        if reason is None:
            found.append(Variable(name, str(value), origin))
        else:  # only the name: the value may be a secret
            problems.append(Problem("DDP101", f"[env] {name}: {reason}", origin=origin))
    return tuple(found)


def _why_not(name: str, value: object) -> str | None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return "expected a variable's name: letters, digits and _"
    if name in _RANKS or name.startswith(_LAUNCHERS):
        return "set by the launcher for each rank"
    if name in _LAUNCH or name.startswith(("PET_", "DDP_RUN_")):
        return "an option's variable: write the option's own key in the preset"
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
        return "expected a string or a number"
    return None
