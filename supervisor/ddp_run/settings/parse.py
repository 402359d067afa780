"""From argv, environment and preset to the options of a launch. Pure.

Where a value comes from, first that has one: option, `PET_X`, plain variable, preset, scheduler, default
(`ddp_run.settings.sources`). All mistakes are told at once, as `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ddp_run.settings import rank_variables, values
from ddp_run.settings.checks import check_one, check_together, check_values
from ddp_run.settings.grammar import Given, Words, read_words
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.settings.preset import ConfigFile, read_config, read_project
from ddp_run.settings.sources import SOURCES, TORCHRUNS, Inputs, Reading
from ddp_run.settings.table import Row, all_rows
from ddp_run.values.problem import Problem, Refused

_DEFAULT_GRACE_S = 30.0
_GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_RETRIES_VARIABLE = "MAX_RETRIES"
_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
NO_CONFIG = "none"
"""`--config none`: no preset, and nothing of a pyproject.toml."""

Projects = Callable[[], Iterable[tuple[str, str]]]
"""Path and text of each pyproject.toml that may hold options, the nearest first."""


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    torch_rows: Sequence[Row],
    read_file: Callable[[str], str] | None = None,
    projects: Projects = tuple,
) -> Options:
    """Read a launch. `read_file` gives the text of a preset or raises `OSError` or `ValueError`.

    `projects` is asked where no preset was named: the first with `[tool.ddp-run]` is the preset.

    Raises `Refused` with every problem found, and `HelpWanted` where `-h` stands before the script.
    """
    rows = all_rows(torch_rows)
    environ, foreign = _without_foreign_retries(environ)
    words, config, reading = _read(argv, environ, rows, SOURCES, read_file, projects)
    swallowed = next((each for each in words.given if _took_the_script(each, argv, words)), None)
    if swallowed is not None:
        raise Refused((_script_as_value(swallowed),), tuple(argv))
    settings, problems = reading.settings, reading.problems
    grace_s, found = _grace(settings, environ)
    problems += found
    given = settings.get("log_line_prefix_template", Setting(None))
    template = environ.get(_PREFIX_VARIABLE) if given.source is Source.DEFAULT else given.value
    options = Options(
        tuple(argv),
        rows,
        words.script or "",
        words.script_word or 0,
        words.script_args,
        settings,
        grace_s,
        None if template is None else str(template),
        (*foreign, *reading.notes),
        rank_variables.unset(config.variables, environ),
    )
    problems += check_values(options)
    if not problems:
        options = _without_retries_of_changing_nodes(options)
        problems += check_together(options)
    if problems:
        raise Refused(tuple(problems), tuple(argv))
    return options


def settle(
    argv: Sequence[str], environ: Mapping[str, str], *, torch_rows: Sequence[Row]
) -> tuple[Words, Mapping[str, Setting]]:
    """What torchrun's own parser would say: words and values of options and `PET_` variables, nothing beyond.

    Raises `Refused` where it exits with an error, and `HelpWanted`.
    """
    words, _config, reading = _read(argv, environ, all_rows(torch_rows), TORCHRUNS)
    if reading.problems:
        raise Refused(tuple(reading.problems), tuple(argv))
    return words, reading.settings


def _read(
    argv: Sequence[str],
    environ: Mapping[str, str],
    rows: Sequence[Row],
    sources: Sequence[Callable[[Inputs, Reading], None]],
    read_file: Callable[[str], str] | None = None,
    projects: Projects = tuple,
) -> tuple[Words, ConfigFile, Reading]:
    words = read_words(argv, rows)
    reading = Reading(problems=list(words.problems))
    if words.script is None and not words.problems:
        reading.problems.append(_no_script(len(argv)))
    config = _load_config(words, environ, rows, read_file, projects)
    inputs = Inputs(rows, words, environ, config)
    for source in sources:
        source(inputs, reading)
    for row in rows:
        reading.settings.setdefault(row.dest, Setting(row.default))
    return words, config, reading


def _took_the_script(given: Given, argv: Sequence[str], words: Words) -> bool:
    """Whether the option's value is a script: what stood between them, a variable, was empty."""
    if given.text is None or argv[given.word] != given.text or not given.text.endswith((".py", ".sh")):
        return False
    if words.script is None:
        return True
    try:
        check_one(given.row.dest, values.convert(given.text, given.row.type))
    except ValueError:
        return True
    return False


def _script_as_value(given: Given) -> Problem:
    title = f"{given.row.name} took the script {given.text} as its value"
    notes = (f"is the variable after {given.row.name} empty?",)
    helps = (f'with {given.row.name}="$NAME", an empty variable is reported as empty',)
    return Problem("DDP101", title, given.word, "the script", notes=notes, helps=helps)


def _without_foreign_retries(environ: Mapping[str, str]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Without a MAX_RETRIES that is no number of retries: many programs read a variable of that name."""
    text = environ.get(_RETRIES_VARIABLE, "")
    try:
        values.read_count(int(values.convert(text or "0", "int")))
    except ValueError as error:
        left = {name: value for name, value in environ.items() if name != _RETRIES_VARIABLE}
        return left, (f"ignoring {_RETRIES_VARIABLE}={text}: {error}",)
    return environ, ()


def _without_retries_of_changing_nodes(options: Options) -> Options:
    """Retries need nodes that can agree; who exported the variable may not have meant this job."""
    setting = options.settings["max_retries"]
    if setting.source is not Source.VARIABLE or options.max_nodes == 1 or options.retry == "never":
        return options
    if options.has_fixed_nodes or not options.max_retries:
        return options
    return options.without(["max_retries"], "retries need a fixed number of nodes and a static rendezvous")


def _no_script(words: int) -> Problem:
    return Problem(
        "DDP101",
        "the script is missing",
        words,
        "expected the training script here",
        helps=("ddp-run --nproc-per-node=2 train.py", "ddp-run --help"),
    )


def _load_config(
    words: Words,
    environ: Mapping[str, str],
    rows: Sequence[Row],
    read_file: Callable[[str], str] | None,
    projects: Projects,
) -> ConfigFile:
    given = words.last("config")
    path = given.text if given else environ.get("DDP_RUN_CONFIG")
    keys = [row for row in rows if not row.prints_and_exits]
    if path is None:
        found = (read_project(*project, keys) for project in projects())
        return next((each for each in found if each is not None), ConfigFile("", {}))
    if path in ("", NO_CONFIG) or read_file is None:
        return ConfigFile("", {})
    try:
        return read_config(path, read_file(path), keys)
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError:
        reason = "it is not UTF-8 text"
    word = given.word if given else None
    origin = None if given else "environment variable DDP_RUN_CONFIG"
    return ConfigFile(path, {}, (Problem("DDP101", f"cannot read {path}: {reason}", word, "the preset", origin),))


def _grace(settings: Mapping[str, Setting], environ: Mapping[str, str]) -> tuple[float, list[Problem]]:
    timeout = settings.get("shutdown_timeout")
    if timeout is not None and isinstance(timeout.value, int):
        return float(timeout.value), []
    text = environ.get(_GRACE_VARIABLE, "")
    if not text:
        return _DEFAULT_GRACE_S, []
    try:
        return float(values.read_count(int(text))), []
    except ValueError:
        title = f"{_GRACE_VARIABLE}={text} is not an integer number of seconds"
        return _DEFAULT_GRACE_S, [Problem("DDP101", title, origin=f"environment variable {_GRACE_VARIABLE}")]
