"""Options of one launch, valid by construction: argv, environment and preset in, values with their origin out. Pure.

Where a value comes from, first that has one: option, `PET_X`, plain variable, preset, default. All mistakes are told
at once, as `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from ddp_run import option_values as values
from ddp_run.config_file import ConfigFile, read_config
from ddp_run.grammar import Given, Words, read_words
from ddp_run.option_table import Owner, Row, all_rows
from ddp_run.option_values import PerRank
from ddp_run.problem import Problem, Refused, nearest

T = TypeVar("T")

DEFAULT_GRACE_S = 30.0
_GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


class Source(StrEnum):
    """Where a value came from; the order is that of precedence."""

    OPTION = "option"
    PET = "PET_ variable"
    VARIABLE = "variable"
    CONFIG = "configuration file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one option. `origin` names its place: "--nnodes", "PET_NNODES", "preset.toml:3", "default".

    `word` is the index of the word of the command line that holds it; `text` is the value as it was written.
    """

    value: object
    source: Source = Source.DEFAULT
    origin: str = "default"
    text: str | None = None
    word: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """One launch. Made by `parse`."""

    argv: tuple[str, ...]
    rows: tuple[Row, ...]
    script: str
    script_word: int
    script_args: tuple[str, ...]
    settings: Mapping[str, Setting]
    """By destination (`nproc_per_node`), one for every row."""
    grace_s: float
    """Seconds between the signal to stop and SIGKILL."""
    prefix_template: str | None = None
    """torchrun's own template of the console's line prefix, where the user set one."""
    notes: tuple[str, ...] = ()
    """What was given and is not used, with the reason."""

    @property
    def given(self) -> frozenset[str]:
        """Destinations that do not have their default."""
        return frozenset(dest for dest, each in self.settings.items() if each.source is not Source.DEFAULT)

    def torch_arguments(self) -> tuple[str, ...]:
        """The agent's options, `--name=value`. What `PET_` variables say is left out: the agent reads them itself."""
        return tuple(
            f"{row.name}={self.settings[row.dest].text}" if row.takes_value else row.name
            for row in self.rows
            if row.owner is Owner.TORCH and self._handed_on(row)
        )

    def _handed_on(self, row: Row) -> bool:
        setting = self.settings[row.dest]
        return setting.source in (Source.OPTION, Source.VARIABLE, Source.CONFIG) and setting.value is not False

    def without(self, dests: Collection[str], reason: str) -> Options:
        """These options with the default again, and a note that says why."""
        rows = {row.dest: row for row in self.rows}
        dropped = [self.settings[dest].origin for dest in dests]
        settings = {**self.settings, **{dest: Setting(rows[dest].default) for dest in dests}}
        note = f"{' and '.join(dropped)} not used: {reason}"
        return replace(self, settings=settings, notes=(*self.notes, note))

    # ---------------------------------------------------------------------------------- torchrun's

    @property
    def min_nodes(self) -> int:
        """Fewest nodes."""
        return values.read_nnodes(self._text("nnodes", "1:1"))[0]

    @property
    def max_nodes(self) -> int:
        """Most nodes."""
        return values.read_nnodes(self._text("nnodes", "1:1"))[1]

    @property
    def nproc(self) -> str:
        """Ranks on this node as it was written: a number, auto, cpu, gpu, xpu or a plug-in's name."""
        return self._text("nproc_per_node", "1")

    @property
    def nproc_count(self) -> int | None:
        """Ranks on this node, null where the number of devices decides."""
        return values.read_nproc(self.nproc)

    @property
    def node_rank(self) -> int:
        """Index of this node; counts for the static rendezvous only."""
        return int(self._of("node_rank", 0))

    @property
    def master_addr(self) -> str:
        """Name or address of the static rendezvous' host, without the brackets of an IPv6 address."""
        return self._text("master_addr", "127.0.0.1").strip("[]")

    @property
    def master_port(self) -> int | None:
        """Port of the static rendezvous, null where none was given, whatever default an older torch has."""
        setting = self.settings.get("master_port")
        if setting is None or setting.source is Source.DEFAULT or setting.value is None:
            return None
        return int(str(setting.value))

    @property
    def rdzv_backend(self) -> str:
        """Rendezvous backend as given ("static" is the default)."""
        return self._text("rdzv_backend", "static")

    @property
    def rdzv_endpoint(self) -> str:
        """HOST:PORT of the rendezvous, empty where none was given."""
        return self._text("rdzv_endpoint", "")

    @property
    def standalone(self) -> bool:
        """One node with a private rendezvous: whatever else was said about the rendezvous does not count."""
        return bool(self._of("standalone", False))

    @property
    def is_static(self) -> bool:
        """Whether the rendezvous is static at a known host and port; else torch's c10d or a plug-in leads it.

        torchrun's own rule (torch 2.13, run.py): one node without endpoint and port becomes c10d on a free port.
        Older releases fix port 29500 there; see `needs_port`.
        """
        if self.standalone or self.rdzv_backend != "static":
            return False
        return bool(self.rdzv_endpoint) or self.master_port is not None or self.max_nodes > 1

    @property
    def needs_port(self) -> bool:
        """Whether one node needs a free port from us, as the installed torch would take a fixed one for every job.

        So it is where `--master-port` has a default (torch 2.4 to 2.9, run.py: 29500). `--standalone` is no way out:
        its rendezvous hangs where the host's own name does not resolve (seen with torch 2.4), the static one does not.
        """
        fixed = any(row.dest == "master_port" and row.default is not None for row in self.rows)
        return fixed and self.rdzv_backend == "static" and not self.standalone and not self.is_static

    @property
    def master(self) -> tuple[str, int | None] | None:
        """Host and port that the user fixed for the rendezvous; null where torch takes this host and a free port."""
        if self.standalone:
            return None
        if self.rdzv_endpoint:
            return _or_none(values.read_endpoint, self.rdzv_endpoint)
        return (self.master_addr, 29500 if self.master_port is None else self.master_port) if self.is_static else None

    @property
    def restarts(self) -> int:
        """`--max-restarts`: how often the agent itself starts the ranks again."""
        return int(self._of("max_restarts", 0))

    @property
    def role(self) -> str:
        """Name of the ranks' role, part of torchrun's prefix."""
        return self._text("role", "default")

    @property
    def module(self) -> bool:
        """`-m`: the script is a module's name."""
        return bool(self._of("module", False))

    @property
    def no_python(self) -> bool:
        """The script is a program of its own."""
        return bool(self._of("no_python", False))

    @property
    def run_path(self) -> bool:
        """The script is run by runpy in a process that torch forks or spawns."""
        return bool(self._of("run_path", False))

    @property
    def log_dir(self) -> str | None:
        """The folder of all runs, null where none was given."""
        return self._optional("log_dir")

    @property
    def logs_specs(self) -> str | None:
        """The user's own entry point for the layout of logs."""
        return self._optional("logs_specs")

    @property
    def redirects(self) -> PerRank:
        """Streams that go to files only."""
        return values.read_streams(self._text("redirects", "0"))

    @property
    def tee(self) -> PerRank:
        """Streams that go to files and to the console."""
        return values.read_streams(self._text("tee", "0"))

    @property
    def local_ranks_filter(self) -> frozenset[int] | None:
        """Local ranks that reach the console, null for all."""
        return values.read_ranks(self._text("local_ranks_filter", ""))

    # --------------------------------------------------------------------------------- ddp-run's own

    @property
    def max_retries(self) -> int:
        """Further attempts at most."""
        return int(self._of("max_retries", 0))

    @property
    def retry(self) -> str:
        """by-cause, always or never."""
        return self._text("retry", "by-cause")

    @property
    def nccl_debug(self) -> str:
        """off, warn, info or trace."""
        return self._text("nccl_debug", "warn")

    @property
    def preflight(self) -> str:
        """auto, off or strict."""
        return self._text("preflight", "auto")

    @property
    def console(self) -> str:
        """all, rank0, failed or none."""
        return self._text("console", "all")

    @property
    def log_format(self) -> str:
        """console or json."""
        return self._text("log_format", "console")

    @property
    def hang_timeout_s(self) -> float | None:
        """Seconds without progress after which the job is ended; null: never."""
        value = self._of("hang_timeout", None)
        return None if value is None else float(value)

    @property
    def backend(self) -> str | None:
        """The process-group backend to use in place of the program's."""
        return self._optional("backend")

    @property
    def fallback_backend(self) -> str | None:
        """The one to use after an attempt in which the first failed to initialise."""
        return self._optional("fallback_backend")

    @property
    def ddp_debug(self) -> bool:
        """`[DDP-DEBUG]` lines at each step of initialisation."""
        return bool(self._of("ddp_debug", False))

    @property
    def dry_run(self) -> bool:
        """Show the plan and start nothing."""
        return bool(self._of("dry_run", False))

    @property
    def config(self) -> str | None:
        """The preset's path as given."""
        return self._optional("config")

    def _text(self, dest: str, default: str) -> str:
        return str(self._of(dest, default))

    def _optional(self, dest: str) -> str | None:
        value = self._of(dest, None)
        return None if value is None else str(value)

    def _of(self, dest: str, default: Any) -> Any:
        """The value; `default` where the installed torch has no such option."""
        setting = self.settings.get(dest)
        return default if setting is None else setting.value


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
    words, settings, problems = _settle(argv, environ, rows, read_file)
    settings, found, notes = _add_plain_variables(rows, settings, environ)
    problems += found
    grace_s, found = _grace(settings, environ)
    problems += found
    template = settings.get("log_line_prefix_template", Setting(None)).value or environ.get(_PREFIX_VARIABLE)
    options = Options(
        tuple(argv),
        rows,
        words.script or "",
        words.script_word or 0,
        words.script_args,
        settings,
        grace_s,
        None if template is None else str(template),
        notes,
    )
    problems += _check_values(options)
    if not problems:
        problems += _check_together(options)
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


# ---------------------------------------------------------------------------------------------- sources


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
            problems.append(_bad_value(row, raw, str(error)))
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
        return replace(raw, value=values.read_switch(raw.text or "")) if raw.source is Source.PET else raw
    text = raw.text or ""
    value = values.convert(text, row.type)
    # The agent's parser does not check choices in a PET_ variable either.
    if row.choices and raw.source is not Source.PET and str(value) not in row.choices:
        raise ValueError(f"{text!r} is none of {', '.join(row.choices)}")
    return replace(raw, value=value)


def _broken_earlier(given: Given) -> list[Problem]:
    """argparse converts every occurrence of an option, also those that a later one overrides."""
    raw = Setting(True, Source.OPTION, given.row.name, given.text, given.word)
    try:
        _converted(given.row, raw)
    except ValueError as error:
        return [_bad_value(given.row, raw, str(error))]
    return []


def _broken_switch(row: Row, environ: Mapping[str, str]) -> list[Problem]:
    """torchrun dies of a malformed PET_ switch even where the option was given."""
    text = environ.get(row.pet or "", "0")
    try:
        values.read_switch(text)
    except ValueError as error:
        return [_bad_value(row, Setting(None, Source.PET, row.pet or "", text), str(error))]
    return []


def _add_plain_variables(
    rows: Sequence[Row], settings: Mapping[str, Setting], environ: Mapping[str, str]
) -> tuple[dict[str, Setting], list[Problem], tuple[str, ...]]:
    """NNODES and its like, where nothing better is known and they are about this job's rendezvous.

    Such names are exported for other purposes too: a rendezvous that was chosen otherwise ignores them, and one node
    needs no port, so that a broken MASTER_PORT is no reason to refuse it there (Kubernetes gives every pod
    MASTER_PORT=tcp://… where a service is called "master").
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
        raw = Setting(True, Source.VARIABLE, row.variable, text)
        try:
            setting = _converted(row, raw)
            _check_one(row.dest, setting.value)
        except ValueError as error:
            if alone and row.dest == "master_port":
                notes.append(f"{row.variable}={text} not used: {error}")
            else:
                problems.append(_bad_value(row, raw, str(error)))
        else:
            result[row.dest] = setting
    return result, problems, tuple(notes)


def _has_own_rendezvous(settings: Mapping[str, Setting]) -> bool:
    def value(dest: str) -> object:
        return settings[dest].value if dest in settings else None

    return bool(value("standalone") or value("rdzv_endpoint") or value("rdzv_backend") not in (None, "static"))


def _one_node(settings: Mapping[str, Setting]) -> bool:
    nodes = _or_none(values.read_nnodes, str(settings["nnodes"].value)) if "nnodes" in settings else (1, 1)
    return nodes is not None and nodes[1] == 1


def _grace(settings: Mapping[str, Setting], environ: Mapping[str, str]) -> tuple[float, list[Problem]]:
    timeout = settings.get("shutdown_timeout")
    if timeout is not None and isinstance(timeout.value, int):
        return float(timeout.value), []
    text = environ.get(_GRACE_VARIABLE, "")
    if not text:
        return DEFAULT_GRACE_S, []
    try:
        return float(values.read_count(int(text))), []
    except ValueError:
        title = f"{_GRACE_VARIABLE}={text} is not a whole number of seconds"
        return DEFAULT_GRACE_S, [Problem("DDP101", title, origin=f"environment variable {_GRACE_VARIABLE}")]


# ---------------------------------------------------------------------------------------------- checks

_CHECKS: Mapping[str, Callable[..., object]] = {
    "nnodes": values.read_nnodes,
    "nproc_per_node": values.read_nproc,
    "master_port": values.read_port,
    "rdzv_endpoint": values.read_endpoint,
    "rdzv_conf": values.read_rdzv_conf,
    "redirects": values.read_streams,
    "tee": values.read_streams,
    "local_ranks_filter": values.read_ranks,
    "max_restarts": values.read_count,
    "max_retries": values.read_count,
    "shutdown_timeout": values.read_count,
    "monitor_interval": values.read_interval,
    "hang_timeout": values.read_deadline,
}

_HELPS: Mapping[str, tuple[str, ...]] = {
    "nnodes": ("--nnodes=2 for two nodes, --nnodes=1:4 for an elastic job",),
    "nproc_per_node": ("--nproc-per-node=2 for two ranks on this node, --nproc-per-node=gpu for one per GPU",),
    "rdzv_conf": ("--rdzv-conf=timeout=900,join_timeout=600",),
    "redirects": ("--redirects=3 for both streams of all ranks, --redirects=0:1,1:3 by local rank",),
    "tee": ("--tee=3 for both streams of all ranks, --tee=0:1,1:3 by local rank",),
    "local_ranks_filter": ("--local-ranks-filter=0,1",),
}


def _check_one(dest: str, value: object) -> None:
    """Raises `ValueError` for a value that torchrun would reject later."""
    check = _CHECKS.get(dest)
    nothing_given = value is None or (dest == "rdzv_endpoint" and value == "")
    if check is not None and not nothing_given:
        check(value)


def _check_values(options: Options) -> list[Problem]:
    problems = []
    for row in options.rows:
        setting = options.settings[row.dest]
        if setting.source is Source.DEFAULT or (row.dest in _RENDEZVOUS and not _counts(options, row.dest)):
            continue
        try:
            _check_one(row.dest, setting.value)
        except ValueError as error:
            problems.append(_bad_value(row, setting, str(error)))
    return problems


_RENDEZVOUS = ("master_port", "rdzv_endpoint")


def _counts(options: Options, dest: str) -> bool:
    """Whether torchrun would look at this part of the rendezvous; what it ignores may be anything."""
    if options.standalone:
        return False
    if dest == "rdzv_endpoint":
        return options.rdzv_backend in ("static", "c10d")
    return options.rdzv_backend == "static" and not options.rdzv_endpoint


def _check_together(options: Options) -> list[Problem]:
    checks = (_module_or_program, _standalone_nodes, _node_rank, _endpoint_port, _retries_of_one_node, _start_method)
    return [problem for check in checks for problem in check(options)]


def _module_or_program(options: Options) -> list[Problem]:
    # --run-path takes precedence over both.
    if not (options.module and options.no_python) or options.run_path:
        return []
    helps = ("-m is for a Python module, --no-python for a program that is none: leave one out",)
    return [_about(options, "module", "-m and --no-python exclude each other", helps=helps)]


def _standalone_nodes(options: Options) -> list[Problem]:
    if not options.standalone or options.min_nodes == 1:
        return []
    title = f"--standalone is one node, but {options.min_nodes} nodes are asked for"
    return [_about(options, "nnodes", title, helps=("leave --standalone out and give --master-addr",))]


def _node_rank(options: Options) -> list[Problem]:
    if not options.is_static or 0 <= options.node_rank < options.max_nodes:
        return []
    title = f"node rank {options.node_rank} is not among {options.max_nodes} nodes: 0 to {options.max_nodes - 1}"
    return [_about(options, "node_rank", title)]


def _endpoint_port(options: Options) -> list[Problem]:
    if not options.is_static or not options.rdzv_endpoint or (options.master or ("", None))[1] is not None:
        return []
    helps = (f"--rdzv-endpoint={options.rdzv_endpoint}:29500",)
    return [_about(options, "rdzv_endpoint", "a static rendezvous needs a port in its endpoint", helps=helps)]


def _retries_of_one_node(options: Options) -> list[Problem]:
    if options.max_retries == 0 or options.max_nodes == 1 or options.retry == "never":
        return []
    notes = ("several nodes must agree on a retry and its port, which this version cannot do yet",)
    title = f"{options.max_retries} retries of {options.max_nodes} nodes: retries are for one node"
    helps = ("--max-retries=0, and let the scheduler queue the job again",)
    return [_about(options, "max_retries", title, notes=notes, helps=helps)]


def _start_method(options: Options) -> list[Problem]:
    setting = options.settings.get("start_method")
    if not options.run_path or setting is None or setting.value in ("spawn", "fork", "forkserver"):
        return []
    return [_about(options, "start_method", f"no start method {setting.value}: spawn, fork or forkserver")]


# --------------------------------------------------------------------------------------------- problems


def _no_script(words: int) -> Problem:
    return Problem(
        "DDP101",
        "the script is missing",
        words,
        "a script must stand here",
        helps=("ddp-run --nproc-per-node=2 train.py", "ddp-run --help"),
    )


def _bad_value(row: Row, setting: Setting, reason: str) -> Problem:
    shown = row.name if setting.source is Source.OPTION else setting.origin.rpartition("/")[2]
    helps: tuple[str, ...] = _HELPS.get(row.dest, ())
    if row.choices and setting.text:
        close = nearest(setting.text, row.choices, 1)
        helps = tuple(f"{row.name}={name}" for name in close)
    label = "" if setting.word is None else "this value"
    notes: tuple[str, ...] = ()
    if setting.source is Source.CONFIG:
        shown = row.key
    elif setting.word is None and (setting.text or "").startswith("tcp://"):
        notes = ("likely Kubernetes' variable for a service called master, not meant for this job",)
    return Problem("DDP101", f"{shown}: {reason}", setting.word, label, _place(setting), notes, helps)


def _place(setting: Setting) -> str | None:
    if setting.source in (Source.PET, Source.VARIABLE):
        return f"environment variable {setting.origin}"
    return setting.origin if setting.source is Source.CONFIG else None


def _about(
    options: Options, dest: str, title: str, *, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
) -> Problem:
    setting = options.settings[dest]
    return Problem("DDP101", title, setting.word, "", _place(setting), notes, helps)


def _or_none(read: Callable[[str], T], text: str) -> T | None:
    try:
        return read(text)
    except ValueError:
        return None
