"""From argv, environment and preset to the options of a launch. Pure.

A value comes from the first of these that has one: option, `PET_X`, variable, preset, scheduler, default. A new source
is a method of `Reading` and a line in `parse`; a scheduler or a cloud is a file in `schedulers/`. All mistakes are
reported at once, as `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddp_run.settings import values
from ddp_run.settings.checks import bad_value, check_one, check_together, check_values, retries_without_fixed_nodes
from ddp_run.settings.grammar import Given, Words, read_words
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.settings.preset import ConfigFile, read_config, read_project
from ddp_run.settings.schedulers import JobNodes, job_nodes
from ddp_run.settings.table import Row, all_rows
from ddp_run.values.problem import Problem, Refused

_DEFAULT_GRACE_S = 30.0
_GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"

Projects = Callable[[], Iterable[tuple[str, str]]]
"""Returns path and text of each pyproject.toml that may hold options, the nearest first."""


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    torch_rows: Sequence[Row],
    read_file: Callable[[str], str] | None = None,
    projects: Projects = tuple,
) -> Options:
    """Read a launch. `read_file` returns the text of a preset, or raises `OSError` or `ValueError`.

    `projects` is asked if no preset was named: the first with `[tool.ddp-run]` is the preset.

    Raises `Refused` with every problem found, and `HelpWanted` if `-h` stands before the script.
    """
    reading = Reading(all_rows(torch_rows), argv, environ)
    words, problems = reading.words, reading.problems
    reading.command_line()
    reading.pet_variables()
    reading.own_variables()
    config = _load_config(reading, read_file, projects)
    reading.preset(config)
    reading.plain_variables()
    reading.the_scheduler()
    swallowed = next((each for each in words.given if _took_the_script(each, argv, words)), None)
    if swallowed is not None:
        raise Refused((_script_as_value(swallowed),), tuple(argv))
    settings = reading.with_defaults()
    given = settings.get("log_line_prefix_template", Setting(None))
    template = environ.get(_PREFIX_VARIABLE) if given.source is Source.DEFAULT else given.value
    options = Options(
        tuple(argv),
        reading.rows,
        words.script or "",
        words.script_word or 0,
        words.script_args,
        settings,
        _grace_s(settings, environ, problems),
        None if template is None else str(template),
        tuple(reading.notes),
        tuple(each for each in config.variables if each.name not in environ),
    )
    problems += check_values(options)
    if not problems:
        # An exported MAX_RETRIES may not be meant for this job.
        if options.settings["max_retries"].source is Source.VARIABLE and retries_without_fixed_nodes(options):
            options = options.without(["max_retries"], "retries need a fixed number of nodes that meet at one endpoint")
        problems = list(check_together(options))
    if problems:
        raise Refused(tuple(problems), tuple(argv))
    return options


@dataclass(slots=True)
class Reading:
    """The words and variables of a launch, and what the sources asked so far have given."""

    rows: tuple[Row, ...]
    argv: Sequence[str]
    environ: Mapping[str, str]
    words: Words = field(init=False)
    settings: dict[str, Setting] = field(default_factory=dict)
    """By destination (`nproc_per_node`)."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = read_words(self.argv, self.rows)
        self.problems += self.words.problems
        if self.words.script is None and not self.problems:
            self.problems.append(_no_script(len(self.argv)))

    def command_line(self) -> None:
        """Read options. Like argparse, convert every occurrence, even if a later one overrides it."""
        for given in reversed(self.words.given):
            raw = Setting(True, Source.OPTION, given.row.name, given.text, given.word)
            setting = self._checked(given.row, raw)
            self.settings.setdefault(given.row.dest, setting)

    def pet_variables(self) -> None:
        """Read torchrun's variables. torchrun refuses a malformed switch even if the option was given."""
        for row in self.rows:
            if row.pet is None or row.pet not in self.environ:
                continue
            raw = Setting(True, Source.PET, row.pet, self.environ[row.pet])
            if row.takes_value or self._may_give(row, Source.PET):
                self._give(row, raw)
            else:
                self._checked(row, raw)

    def own_variables(self) -> None:
        """Read the variables of ddp-run's options."""
        for row, raw in self._variables(ours=True):
            reason = _why_not(row, raw)
            if reason is not None and row.dest == "max_retries":  # many programs read a variable called MAX_RETRIES
                self.notes.append(f"ignoring {raw.origin}={raw.text}: {reason}")
            else:
                self._give(row, raw)

    def preset(self, config: ConfigFile) -> None:
        """Read the TOML file of `--config`, or a project's."""
        self.problems += config.problems
        for row in self.rows:
            if row.dest in config.settings:
                self._give(row, config.settings[row.dest])

    def plain_variables(self) -> None:
        """Read NNODES and the like, if nothing stronger was given and they are about this job's rendezvous.

        Such names are exported for other purposes too. They win over a preset but are read after it, as it can show
        that they belong to another job. A rendezvous that was chosen otherwise ignores them. One node needs no port, so
        a broken MASTER_PORT is only a note there. (Kubernetes gives every pod MASTER_PORT=tcp://… if a service is
        called "master".) NNODES without a master doesn't start a job of several nodes: each of them would wait for the
        others at its own address.
        """
        own_rendezvous = self._has_own_rendezvous()
        for row, raw in self._variables(ours=False):
            if not self._may_give(row, Source.VARIABLE):
                continue
            alone = "nnodes" not in self.settings or _fixed_nodes(self.settings["nnodes"]) == 1
            if row.dest != "nproc_per_node" and (own_rendezvous or (alone and row.dest == "node_rank")):
                continue
            if row.dest == "nnodes" and not (self.environ.get("MASTER_ADDR") or "master_addr" in self.settings):
                if raw.text not in ("1", "1:1"):
                    self.notes.append(f"ignoring NNODES={raw.text}: no master address was given (--master-addr)")
                continue
            reason = _why_not(row, raw)
            if reason is None:
                if row.dest == "nnodes" and values.read_nnodes(raw.text or "")[1] > 1:
                    self.notes.append(f"{raw.text} nodes, from the variable NNODES")
                self._give(row, raw)
            elif alone and row.dest in ("master_addr", "master_port"):
                self.notes.append(f"ignoring {raw.origin}={raw.text}: {reason}")
            else:
                self.problems.append(bad_value(row, raw, reason))

    def the_scheduler(self) -> None:
        """Read the nodes that a scheduler gave the job, for whatever was not given, if nothing contradicts them."""
        found = job_nodes(self.environ)
        if found is None:
            return
        spares = self._spare_nodes(found)
        told = spares or (found.settings if self._may_meet_as(found) else {})
        fills = {row.dest: row for row in self.rows if row.dest in told and row.dest not in self.settings}
        for dest, row in fills.items():
            text, origin = told[dest]
            self._give(row, Setting(True, Source.SCHEDULER, origin, text))
        if fills and spares:
            self.notes.append(f"{found.nodes} nodes, {spares['spare_nodes'][0]} of them spare, from {found.job}")
        elif "nnodes" in fills:
            self.notes.append(f"{found.nodes} nodes, from {found.job}; --standalone makes each node a separate job")

    def _may_meet_as(self, found: JobNodes) -> bool:
        """Whether the nodes can meet as the scheduler says."""
        own_rank = self.settings.keys() & {"nnodes", "node_rank"} == {"node_rank"}
        return not (self._has_own_rendezvous() or own_rank) and _may_be(self.settings.get("nnodes"), found)

    def _spare_nodes(self, found: JobNodes) -> dict[str, tuple[str, str]]:
        """What follows from --spare-nodes, or from more nodes than --nnodes wants if there may be a retry: the others
        wait. Empty if nothing does. Torch numbers such nodes, so they meet at a c10d endpoint."""
        given = self.settings
        spare, retries = (given[dest].value if dest in given else None for dest in ("spare_nodes", "max_retries"))
        if found.nodes is None or not {"nnodes", "master_addr", "master_port"} <= found.settings.keys():
            return {}
        if given.keys() & {"node_rank", "master_addr", "master_port"}:
            return {}
        nodes = _fixed_nodes(given["nnodes"]) if "nnodes" in given else found.nodes - int(str(spare or 0))
        if nodes is None or not 2 <= nodes < found.nodes:
            return {}
        if spare not in (None, found.nodes - nodes) or not (spare or retries):
            return {}
        by = found.settings["nnodes"][1]
        spares = {"nnodes": (str(nodes), by), "spare_nodes": (str(found.nodes - nodes), by)}
        if self._has_own_rendezvous():
            return spares if "rdzv_endpoint" in given else {}
        (host, named_by), (port, _by) = found.settings["master_addr"], found.settings["master_port"]
        return spares | {"rdzv_backend": ("c10d", named_by), "rdzv_endpoint": (f"{host}:{port}", named_by)}

    def with_defaults(self) -> dict[str, Setting]:
        """The settings of all rows."""
        return {row.dest: self.settings.get(row.dest, Setting(row.default)) for row in self.rows}

    def _variables(self, *, ours: bool) -> list[tuple[Row, Setting]]:
        """Rows, ours or torch's, whose variable is set and not empty, with its value."""
        return [
            (row, Setting(True, Source.VARIABLE, row.variable, self.environ[row.variable]))
            for row in self.rows
            if row.is_ours is ours and row.variable and self.environ.get(row.variable)
        ]

    def _give(self, row: Row, raw: Setting) -> None:
        """Take a value as it was written, unless a source of higher precedence has given one."""
        if self._may_give(row, raw.source):
            self.settings[row.dest] = self._checked(row, raw)

    def _may_give(self, row: Row, source: Source) -> bool:
        known = self.settings.get(row.dest)
        return known is None or _PRECEDENCE[source] < _PRECEDENCE[known.source]

    def _checked(self, row: Row, raw: Setting) -> Setting:
        """The value of a text; if it has none, the default, and a problem."""
        try:
            return _converted(row, raw)
        except ValueError as error:
            self.problems.append(bad_value(row, raw, str(error)))
            return replace(raw, value=row.default)

    def _has_own_rendezvous(self) -> bool:
        standalone, endpoint, backend = (
            self.settings[dest].value if dest in self.settings else None
            for dest in ("standalone", "rdzv_endpoint", "rdzv_backend")
        )
        return bool(standalone or endpoint or backend not in (None, "static"))


_PRECEDENCE = {source: index for index, source in enumerate(Source)}


def _converted(row: Row, raw: Setting) -> Setting:
    """The value of a text. Raises `ValueError` with the reason."""
    text = raw.text or ""
    if not row.takes_value:
        match raw.source:
            case Source.VARIABLE:
                return replace(raw, value=not values.says_no(text))
            case Source.PET:
                return replace(raw, value=values.read_switch(text))
            case _:
                return raw
    # The agent's parser does not check choices in a PET_ variable either.
    value = values.convert(text, row.type)
    if row.choices and raw.source is not Source.PET and str(value) not in row.choices:
        raise ValueError(f"invalid choice {text!r} (choose from {', '.join(row.choices)})")
    return replace(raw, value=value)


def _why_not(row: Row, raw: Setting) -> str | None:
    """Why a text cannot be the option's value; None if it can."""
    try:
        check_one(row.dest, _converted(row, raw).value)
    except ValueError as error:
        return str(error)
    return None


def _fixed_nodes(nnodes: Setting) -> int | None:
    """How many nodes were requested; None for a range, or a text without a meaning."""
    try:
        fewest, most = values.read_nnodes(str(nnodes.value))
    except ValueError:
        return None
    return most if fewest == most else None


def _may_be(nnodes: Setting | None, found: JobNodes) -> bool:
    """Whether the requested nodes, if any, can be those that the scheduler gave."""
    if nnodes is None:
        return found.nodes is not None
    nodes = _fixed_nodes(nnodes)
    return nodes == found.nodes if found.nodes else (nodes or 1) > max(1, int(found.settings["node_rank"][0]))


def _took_the_script(given: Given, argv: Sequence[str], words: Words) -> bool:
    """Whether the option's value is a script: a variable between them was empty."""
    if given.text is None or argv[given.word] != given.text or not given.text.endswith((".py", ".sh")):
        return False
    return words.script is None or _why_not(given.row, Setting(True, Source.OPTION, text=given.text)) is not None


def _script_as_value(given: Given) -> Problem:
    title = f"{given.row.name} took the script {given.text} as its value"
    notes = (f"is the variable after {given.row.name} empty?",)
    helps = (f'with {given.row.name}="$NAME", an empty variable is reported as empty',)
    return Problem("DDP101", title, given.word, "the script", notes=notes, helps=helps)


def _no_script(words: int) -> Problem:
    helps = ("ddp-run --nproc-per-node=2 train.py", "ddp-run --help")
    return Problem("DDP101", "the script is missing", words, "expected the training script here", helps=helps)


def _load_config(reading: Reading, read_file: Callable[[str], str] | None, projects: Projects) -> ConfigFile:
    given = reading.settings.get("config")
    keys = [row for row in reading.rows if not row.prints_and_exits]
    if given is None and "DDP_RUN_CONFIG" not in reading.environ:
        found = (read_project(*project, keys) for project in projects())
        return next((each for each in found if each is not None), ConfigFile())
    if given is None or not given.text or given.text == "none" or read_file is None:
        return ConfigFile()
    try:
        return read_config(given.text, read_file(given.text), keys)
    except OSError as error:
        reason = error.strerror
    except ValueError:
        reason = "it is not UTF-8 text"
    title = f"cannot read {given.text}: {reason}"
    return ConfigFile(problems=(Problem("DDP101", title, given.word, "the preset", given.place),))


def _grace_s(settings: Mapping[str, Setting], environ: Mapping[str, str], problems: list[Problem]) -> float:
    timeout = settings["shutdown_timeout"].value
    if isinstance(timeout, int):
        return float(timeout)
    text = environ.get(_GRACE_VARIABLE)
    try:
        return float(values.read_count(int(text))) if text else _DEFAULT_GRACE_S
    except ValueError:
        title = f"{_GRACE_VARIABLE}={text} is not a whole number of seconds"
        problems.append(Problem("DDP101", title, origin=f"environment variable {_GRACE_VARIABLE}"))
        return _DEFAULT_GRACE_S
