"""Where options come from, in order: each source reads what it has been given, knowing what those before it gave. Pure.

A new place for options is a function here, and a line in `SOURCES`; a scheduler or a cloud is a file in `schedulers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddp_run.settings import values
from ddp_run.settings.checks import bad_value, check_one
from ddp_run.settings.grammar import Words
from ddp_run.settings.options import Setting, Source
from ddp_run.settings.preset import ConfigFile
from ddp_run.settings.scheduler import JobNodes, job_nodes
from ddp_run.settings.table import PLAIN_VARIABLES, Owner, Row
from ddp_run.values.problem import Problem

Settings = Mapping[str, Setting]
"""By destination (`nproc_per_node`); what nobody has given is not in it."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a launch was given."""

    rows: Sequence[Row]
    words: Words
    environ: Mapping[str, str]
    config: ConfigFile


@dataclass(slots=True)
class Reading:
    """What sources have given so far."""

    settings: dict[str, Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def give(self, row: Row, raw: Setting) -> None:
        """A value as it was written; it counts where no source of higher precedence has given one."""
        if self.may_give(row.dest, raw.source):
            self.settings[row.dest] = self.checked(row, raw)

    def checked(self, row: Row, raw: Setting) -> Setting:
        """The value of a text; the default, and a problem, where it has none."""
        try:
            return converted(row, raw)
        except ValueError as error:
            self.problems.append(bad_value(row, raw, str(error)))
            return replace(raw, value=row.default)

    def may_give(self, dest: str, source: Source) -> bool:
        """Whether a value from there would count."""
        known = self.settings.get(dest)
        return known is None or _PRECEDENCE[source] < _PRECEDENCE[known.source]


_PRECEDENCE = {source: index for index, source in enumerate(Source)}


def converted(row: Row, raw: Setting) -> Setting:
    """The value of a text. Raises `ValueError` with the reason."""
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


# ------------------------------------------------------------------------------------------- the sources


def command_line(inputs: Inputs, reading: Reading) -> None:
    """Options. argparse converts every occurrence, also those that a later one overrides."""
    for given in reversed(inputs.words.given):
        raw = Setting(True, Source.OPTION, given.row.name, given.text, given.word)
        setting = reading.checked(given.row, raw)
        reading.settings.setdefault(given.row.dest, setting)


def pet_variables(inputs: Inputs, reading: Reading) -> None:
    """torchrun's own variables. It dies of a malformed switch even where the option was given."""
    for row in inputs.rows:
        if row.pet is None or row.pet not in inputs.environ:
            continue
        raw = Setting(True, Source.PET, row.pet, inputs.environ[row.pet])
        if row.takes_value or reading.may_give(row.dest, Source.PET):
            reading.give(row, raw)
        else:
            reading.checked(row, raw)


def own_variables(inputs: Inputs, reading: Reading) -> None:
    """The variables of ddp-run's options."""
    for row in inputs.rows:
        if row.owner is Owner.DDP_RUN and row.variable and inputs.environ.get(row.variable):
            reading.give(row, Setting(True, Source.VARIABLE, row.variable, inputs.environ[row.variable]))


def preset(inputs: Inputs, reading: Reading) -> None:
    """The TOML file of `--config`."""
    reading.problems += inputs.config.problems
    for row in inputs.rows:
        if row.dest in inputs.config.values:
            value, line = inputs.config.values[row.dest]
            text = None if isinstance(value, bool) else value
            reading.give(row, Setting(value, Source.CONFIG, f"{inputs.config.path}:{line}", text))


def plain_variables(inputs: Inputs, reading: Reading) -> None:
    """NNODES and its like, where nothing better is known and they are about this job's rendezvous.

    Such names are exported for other purposes too: a rendezvous that was chosen otherwise ignores them, and one node
    needs no port, so that a broken MASTER_PORT is no reason to refuse it there (Kubernetes gives every pod
    MASTER_PORT=tcp://… where a service is called "master"). NNODES alone, without a master, makes no job of several
    nodes: each of them would wait at its own address for the others.
    """
    own_rendezvous = _has_own_rendezvous(reading.settings)
    for row in inputs.rows:
        text = inputs.environ.get(row.variable or "")
        if row.owner is not Owner.TORCH or not text or not row.variable:
            continue
        if not reading.may_give(row.dest, Source.VARIABLE):
            continue
        alone = _one_node(reading.settings)
        if row.dest != "nproc_per_node" and (own_rendezvous or (alone and row.dest == "node_rank")):
            continue
        if row.dest == "nnodes" and not _names_a_master(inputs, reading.settings):
            if text not in ("1", "1:1"):
                reading.notes.append(f"ignoring {row.variable}={text}: no master address was given (--master-addr)")
            continue
        raw = Setting(True, Source.VARIABLE, row.variable, text)
        try:
            check_one(row.dest, converted(row, raw).value)
        except ValueError as error:
            if alone and row.dest in ("master_addr", "master_port"):
                reading.notes.append(f"ignoring {row.variable}={text}: {error}")
            else:
                reading.problems.append(bad_value(row, raw, str(error)))
            continue
        if row.dest == "nnodes" and values.read_nnodes(text)[1] > 1:
            reading.notes.append(f"{text} nodes, from the variable {row.variable}")
        reading.give(row, raw)


def the_scheduler(inputs: Inputs, reading: Reading) -> None:
    """The nodes that a scheduler gave the job: what of them was not said otherwise, where nothing contradicts them."""
    given = reading.settings
    if _has_own_rendezvous(given) or given.keys() & {"nnodes", "node_rank"} == {"node_rank"}:
        return
    found = job_nodes(inputs.environ)
    if found is None or not _are_nodes(given.get("nnodes"), found):
        return
    fills = {row.dest: row for row in inputs.rows if row.dest in found.settings and row.dest not in given}
    for dest, row in fills.items():
        text, origin = found.settings[dest]
        reading.give(row, Setting(True, Source.SCHEDULER, origin, text))
    if "nnodes" in fills:
        reading.notes.append(f"{found.nodes} nodes, from {found.job}; --standalone makes each node a separate job")


SOURCES: tuple[Callable[[Inputs, Reading], None], ...] = (
    command_line,
    pet_variables,
    own_variables,
    preset,
    plain_variables,
    the_scheduler,
)
"""In the order in which they are asked. Which value counts is said by `Source`: plain variables win over a preset, and
look at all that it says to know whether they are about this job."""

TORCHRUNS = (command_line, pet_variables)
"""What torchrun itself looks at."""


def _are_nodes(nnodes: Setting | None, found: JobNodes) -> bool:
    """Whether the nodes that were asked for, if any were, can be those that the scheduler gave."""
    if nnodes is None:
        return found.nodes is not None
    try:
        fewest, most = values.read_nnodes(str(nnodes.value))
    except ValueError:
        return False
    if found.nodes is not None:
        return fewest == most == found.nodes
    return fewest == most > max(1, int(found.settings["node_rank"][0]))


def _names_a_master(inputs: Inputs, settings: Settings) -> bool:
    return bool(inputs.environ.get(PLAIN_VARIABLES["master_addr"])) or "master_addr" in settings


def _has_own_rendezvous(settings: Settings) -> bool:
    def value(dest: str) -> object:
        return settings[dest].value if dest in settings else None

    return bool(value("standalone") or value("rdzv_endpoint") or value("rdzv_backend") not in (None, "static"))


def _one_node(settings: Settings) -> bool:
    if "nnodes" not in settings:
        return True
    try:
        return values.read_nnodes(str(settings["nnodes"].value))[1] == 1
    except ValueError:
        return False
