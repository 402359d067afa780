"""From argv, environment and preset to the options of a launch. Pure.

Where a value comes from, first that has one: option, `PET_X`, plain variable, preset, default. All mistakes are told
at once, as `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ddp_run.settings import values
from ddp_run.settings.checks import bad_value, check_one, check_together, check_values
from ddp_run.settings.grammar import Given, Words, read_words
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.settings.preset import ConfigFile, read_config
from ddp_run.settings.table import PLAIN_VARIABLES, Owner, Row, all_rows
from ddp_run.values.problem import Problem, Refused

_DEFAULT_GRACE_S = 30.0
_GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_RETRIES_VARIABLE = "MAX_RETRIES"
_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    torch_rows: Sequence[Row],
    read_file: Callable[[str], str] | None = None,
) -> Options:
    """Read a launch. `read_file` gives the text of a preset or raises `OSError` or `ValueError`.

    Raises `Refused` with every problem found, and `HelpWanted` where `-h` stands before the script.
    """
    rows = all_rows(torch_rows)
    environ, foreign = _without_foreign_retries(environ)
    words, settings, problems = _settle(argv, environ, rows, read_file)
    swallowed = next((each for each in words.given if _took_the_script(each, argv, words)), None)
    if swallowed is not None:
        raise Refused((_script_as_value(swallowed),), tuple(argv))
    settings, found, notes = _add_plain_variables(rows, settings, environ)
    problems += found
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
        (*foreign, *notes),
    )
    problems += check_values(options)
    if not problems:
        options = _without_retries_of_many_nodes(options)
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
    words, settings, problems = _settle(argv, environ, all_rows(torch_rows), None)
    if problems:
        raise Refused(tuple(problems), tuple(argv))
    return words, settings


def _settle(
    argv: Sequence[str],
    environ: Mapping[str, str],
    rows: Sequence[Row],
    read_file: Callable[[str], str] | None,
) -> tuple[Words, dict[str, Setting], list[Problem]]:
    words = read_words(argv, rows)
    problems = list(words.problems)
    if words.script is None and not problems:
        problems.append(_no_script(len(argv)))
    config = _load_config(words, environ, rows, read_file)
    settings, found = _settle_all(rows, words, environ, config)
    return words, settings, [*problems, *config.problems, *found]


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
    notes = (f"is the variable behind {given.row.name} empty?",)
    helps = (f'{given.row.name}="$NAME" shows an empty variable as what it is',)
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


def _without_retries_of_many_nodes(options: Options) -> Options:
    """Retries are for one node; who exported the variable may not have meant this job."""
    setting = options.settings["max_retries"]
    if setting.source is not Source.VARIABLE or options.max_nodes == 1 or options.retry == "never":
        return options
    return options.without(["max_retries"], "retries are for one node") if options.max_retries else options


def _no_script(words: int) -> Problem:
    return Problem(
        "DDP101",
        "the script is missing",
        words,
        "expected the training script here",
        helps=("ddp-run --nproc-per-node=2 train.py", "ddp-run --help"),
    )


def _load_config(
    words: Words, environ: Mapping[str, str], rows: Sequence[Row], read_file: Callable[[str], str] | None
) -> ConfigFile:
    given = words.last("config")
    path = given.text if given else environ.get("DDP_RUN_CONFIG")
    if not path or read_file is None:
        return ConfigFile("", {})
    try:
        return read_config(path, read_file(path), [row for row in rows if not row.prints_and_exits])
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError:
        reason = "it is not UTF-8 text"
    word = given.word if given else None
    origin = None if given else "environment variable DDP_RUN_CONFIG"
    return ConfigFile(path, {}, (Problem("DDP101", f"cannot read {path}: {reason}", word, "no preset", origin),))


def _settle_all(
    rows: Sequence[Row], words: Words, environ: Mapping[str, str], config: ConfigFile
) -> tuple[dict[str, Setting], list[Problem]]:
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for row in rows:
        raw = _raw(row, words, environ, config)
        try:
            settings[row.dest] = _converted(row, raw)
        except ValueError as error:
            settings[row.dest] = Setting(row.default)
            problems.append(bad_value(row, raw, str(error)))
        if not row.takes_value and raw.source is not Source.PET:
            problems += _broken_switch(row, environ)
    for given in words.given:
        if given is not words.last(given.row.dest):
            problems += _broken_earlier(given)
    return settings, problems


def _raw(row: Row, words: Words, environ: Mapping[str, str], config: ConfigFile) -> Setting:
    """The row's text and origin, not converted; plain variables of torchrun's options come later."""
    given = words.last(row.dest)
    if given is not None:
        return Setting(True, Source.OPTION, row.name, given.text, given.word)
    if row.pet and row.pet in environ:
        return Setting(True, Source.PET, row.pet, environ[row.pet])
    if row.owner is Owner.DDP_RUN and row.variable and environ.get(row.variable):
        return Setting(True, Source.VARIABLE, row.variable, environ[row.variable])
    if row.dest in config.values:
        value, line = config.values[row.dest]
        text = None if isinstance(value, bool) else value
        return Setting(value, Source.CONFIG, f"{config.path}:{line}", text)
    return Setting(row.default)


def _converted(row: Row, raw: Setting) -> Setting:
    """Raises `ValueError` with the reason."""
    if raw.source is Source.DEFAULT:
        return raw
    if not row.takes_value:
        if raw.source is Source.VARIABLE:
            return replace(raw, value=not values.says_no(raw.text or ""))
        return replace(raw, value=values.read_switch(raw.text or "")) if raw.source is Source.PET else raw
    text = raw.text or ""
    value = values.convert(text, row.type)
    # The agent's parser does not check choices in a PET_ variable either.
    if row.choices and raw.source is not Source.PET and str(value) not in row.choices:
        raise ValueError(f"invalid choice {text!r} (choose from {', '.join(row.choices)})")
    return replace(raw, value=value)


def _broken_earlier(given: Given) -> list[Problem]:
    """argparse converts every occurrence of an option, also those that a later one overrides."""
    raw = Setting(True, Source.OPTION, given.row.name, given.text, given.word)
    try:
        _converted(given.row, raw)
    except ValueError as error:
        return [bad_value(given.row, raw, str(error))]
    return []


def _broken_switch(row: Row, environ: Mapping[str, str]) -> list[Problem]:
    """torchrun dies of a malformed PET_ switch even where the option was given."""
    text = environ.get(row.pet or "", "0")
    try:
        values.read_switch(text)
    except ValueError as error:
        return [bad_value(row, Setting(None, Source.PET, row.pet or "", text), str(error))]
    return []


def _add_plain_variables(
    rows: Sequence[Row], settings: Mapping[str, Setting], environ: Mapping[str, str]
) -> tuple[dict[str, Setting], list[Problem], tuple[str, ...]]:
    """NNODES and its like, where nothing better is known and they are about this job's rendezvous.

    Such names are exported for other purposes too: a rendezvous that was chosen otherwise ignores them, and one node
    needs no port, so that a broken MASTER_PORT is no reason to refuse it there (Kubernetes gives every pod
    MASTER_PORT=tcp://… where a service is called "master"). NNODES alone, without a master, makes no job of several
    nodes: each of them would wait at its own address for the others.
    """
    result = dict(settings)
    problems: list[Problem] = []
    notes: list[str] = []
    own_rendezvous = _has_own_rendezvous(result)
    for row in rows:
        text = environ.get(row.variable or "")
        if row.owner is not Owner.TORCH or not text or not row.variable:
            continue
        if result[row.dest].source not in (Source.CONFIG, Source.DEFAULT):
            continue
        alone = _one_node(result)
        if row.dest != "nproc_per_node" and (own_rendezvous or (alone and row.dest == "node_rank")):
            continue
        if row.dest == "nnodes" and not _names_a_master(result, environ):
            if text not in ("1", "1:1"):
                notes.append(f"ignoring {row.variable}={text}: no master address was given (--master-addr)")
            continue
        raw = Setting(True, Source.VARIABLE, row.variable, text)
        try:
            setting = _converted(row, raw)
            check_one(row.dest, setting.value)
        except ValueError as error:
            if alone and row.dest in ("master_addr", "master_port"):
                notes.append(f"ignoring {row.variable}={text}: {error}")
            else:
                problems.append(bad_value(row, raw, str(error)))
            continue
        if row.dest == "nnodes" and values.read_nnodes(text)[1] > 1:
            notes.append(f"{text} nodes, from the variable {row.variable}")
        result[row.dest] = setting
    return result, problems, tuple(notes)


def _names_a_master(settings: Mapping[str, Setting], environ: Mapping[str, str]) -> bool:
    given = settings.get("master_addr")
    return bool(environ.get(PLAIN_VARIABLES["master_addr"]) or (given and given.source is not Source.DEFAULT))


def _has_own_rendezvous(settings: Mapping[str, Setting]) -> bool:
    def value(dest: str) -> object:
        return settings[dest].value if dest in settings else None

    return bool(value("standalone") or value("rdzv_endpoint") or value("rdzv_backend") not in (None, "static"))


def _one_node(settings: Mapping[str, Setting]) -> bool:
    if "nnodes" not in settings:
        return True
    try:
        return values.read_nnodes(str(settings["nnodes"].value))[1] == 1
    except ValueError:
        return False


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
