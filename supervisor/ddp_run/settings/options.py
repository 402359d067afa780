"""The options of one launch, and where each value came from. Pure. `ddp_run.settings.parse` makes valid ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from ddp_run.settings import values
from ddp_run.settings.table import Row
from ddp_run.values.problem import Problem

_T = TypeVar("_T")


class Source(StrEnum):
    """Where a value came from, in order of precedence."""

    OPTION = "option"
    PET = "PET_ variable"
    VARIABLE = "variable"
    CONFIG = "configuration file"
    SCHEDULER = "scheduler"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one option. `origin` names its place: "--nnodes", "PET_NNODES", "preset.toml:3", "default".

    `word` is the index of the command line's word that holds it; `text` is the value as written.
    """

    value: object
    source: Source = Source.DEFAULT
    origin: str = "default"
    text: str | None = None
    word: int | None = None

    @property
    def place(self) -> str | None:
        """Where the value stands, for a message; None if it stands on the command line."""
        if self.source in (Source.PET, Source.VARIABLE, Source.SCHEDULER):
            return f"environment variable {self.origin}"
        return None if self.source is Source.OPTION else self.origin


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable to set. `origin`: where it comes from ("slurm.toml:7"), or why it is set."""

    name: str
    value: str
    origin: str


class _Value(Generic[_T]):
    """An option's value as an attribute of `Options`. `missing`: the value if the installed torch has no such option.

    `dest`: the option, if the attribute has another name. `read`: what the value's text means.
    """

    def __init__(self, missing: _T, dest: str = "", *, read: Callable[[str], _T] | None = None) -> None:
        self._missing, self._dest, self._read = missing, dest, read

    def __set_name__(self, _owner: type, name: str) -> None:
        self._dest = self._dest or name

    def __get__(self, options: Options, _owner: type) -> _T:
        setting = options.settings.get(self._dest)
        value: Any = self._missing if setting is None else setting.value
        return value if setting is None or self._read is None else self._read(value)


@dataclass(frozen=True, slots=True)
class Options:
    """One launch."""

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
    """torchrun's template of the console's line prefix, if the user set one; empty: no prefix."""
    notes: tuple[str, ...] = ()
    """What was given and is ignored, with the reason."""
    rank_variables: tuple[Variable, ...] = ()
    """What a preset's `[env]` sets for the ranks; the user has set none of them."""

    # ------------------------------------------------------------------------------ torchrun's options

    _nnodes = _Value((1, 1), "nnodes", read=values.read_nnodes)
    nproc = _Value("1", "nproc_per_node")
    """Ranks on this node as written: a number, auto, cpu, gpu, xpu or a plug-in's name."""
    nproc_count = _Value[int | None](1, "nproc_per_node", read=values.read_nproc)
    """Ranks on this node; None if the number of devices decides."""
    node_rank = _Value(0)
    """Index of this node; counts only for a static rendezvous."""
    master_addr = _Value("127.0.0.1", read=lambda text: text.strip("[]"))
    """Name or address of the static rendezvous' host; IPv6 without brackets."""
    rdzv_backend = _Value("static")
    rdzv_endpoint = _Value("")
    """HOST:PORT, or empty."""
    rdzv_id = _Value("none")
    _rdzv_conf = _Value[Mapping[str, str]]({}, "rdzv_conf", read=values.read_rdzv_conf)
    standalone = _Value(False)
    """One node with a private rendezvous; everything else about the rendezvous is ignored."""
    restarts = _Value(0, "max_restarts")
    """How often the agent itself may start the ranks again."""
    role = _Value("default")
    module = _Value(False)
    no_python = _Value(False)
    run_path = _Value(False)
    """The script is run by runpy in a process that torch forks or spawns."""
    log_dir = _Value[str | None](None)
    logs_specs = _Value[str | None](None)
    redirects = _Value[int | Mapping[int, int]](0, read=values.read_streams)
    """Streams that go only to files: 1 stdout, 2 stderr, 3 both; for all local ranks, or by local rank."""
    tee = _Value[int | Mapping[int, int]](0, read=values.read_streams)
    """Streams that go to files and to the console, as in `redirects`."""
    local_ranks_filter = _Value[frozenset[int]](frozenset(), read=values.read_ranks)
    """Local ranks that reach the console; empty: all."""

    # --------------------------------------------------------------- ddp-run's options, as in the table

    max_retries = _Value(0)
    retry = _Value("by-cause")
    spare_nodes = _Value(0)
    """How many nodes wait besides those that the job runs on."""
    nccl_debug = _Value("warn")
    preflight = _Value("auto")
    console = _Value("all")
    report = _Value("failed")
    log_format = _Value("console")
    status = _Value(False)
    hang_timeout_s = _Value[float | None](None, "hang_timeout")
    checkpoint_dir = _Value[str | None](None)
    backend = _Value[str | None](None)
    fallback_backend = _Value[str | None](None)
    ddp_debug = _Value(False)
    warm = _Value(False)
    control_port = _Value[int | None](None)
    on_success = _Value[str | None](None)
    on_failure = _Value[str | None](None)
    on_end = _Value[str | None](None)
    metrics = _Value[str | None](None)
    _log_size_cap = _Value[str | None](None, "log_size_cap")
    dry_run = _Value(False)

    # ------------------------------------------------------------------------------- what follows

    @property
    def given(self) -> frozenset[str]:
        """Destinations whose value is not the default."""
        return frozenset(dest for dest, each in self.settings.items() if each.source is not Source.DEFAULT)

    @property
    def min_nodes(self) -> int:
        """The fewest nodes that the job starts with."""
        return self._nnodes[0]

    @property
    def max_nodes(self) -> int:
        """The most nodes that the job can have."""
        return self._nnodes[1]

    @property
    def master_port(self) -> int | None:
        """Port of the static rendezvous; None if it was not given (older releases of torch have a default)."""
        setting = self.settings.get("master_port")
        if setting is None or setting.source is Source.DEFAULT or setting.value is None:
            return None
        return int(str(setting.value))

    @property
    def is_static(self) -> bool:
        """Whether the rendezvous is static, at a known host and port; else torch's c10d or a plug-in leads it.

        torchrun's rule (torch 2.13, run.py): one node without endpoint and port becomes c10d on a free port.
        Older releases use port 29500 there; see `needs_port`.
        """
        if self.standalone or self.rdzv_backend != "static":
            return False
        return bool(self.rdzv_endpoint) or self.master_port is not None or self.max_nodes > 1

    @property
    def meets_at_c10d(self) -> bool:
        """Whether the nodes meet at an endpoint that the user chose for torch's c10d."""
        return self.rdzv_backend == "c10d" and not self.standalone and bool(self.rdzv_endpoint)

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs (`--nnodes MIN:MAX`)."""
        return self.min_nodes < self.max_nodes

    @property
    def meets_others(self) -> bool:
        """Whether the job may have several nodes, and each knows where they meet."""
        if self.max_nodes == 1 or not (self.meets_at_c10d or (self.is_static and not self.is_elastic)):
            return False
        return self.master is not None and self.master[1] != 0

    @property
    def has_fixed_nodes(self) -> bool:
        """Whether the job has several nodes, always as many, and each knows where they meet."""
        return self.meets_others and not self.is_elastic

    @property
    def own_node_rank(self) -> int | None:
        """This node's number; None if torch numbers the nodes at each start, as every rendezvous but a static one does.

        Source: torch 2.13, elastic/rendezvous/dynamic_rendezvous.py, `_mark_rendezvous_complete`.
        """
        return self.node_rank if self.is_static or self.max_nodes == 1 else None

    @property
    def hosts_store(self) -> bool | None:
        """`is_host` of --rdzv-conf: this node has the store of a c10d rendezvous. None: its address decides."""
        said = self._rdzv_conf.get("is_host", "").lower()
        return True if said in ("1", "true", "t", "yes", "y") else False if said else None

    @property
    def rendezvous_s(self) -> float:
        """Seconds that the rendezvous waits for all nodes, by --rdzv-conf or torch's default.

        900 s is the default of a static one (torch 2.13, launcher/api.py), 600 s of c10d (dynamic_rendezvous.py).
        """
        return self._conf_s("timeout", 900.0) if self.is_static else self._conf_s("join_timeout", 600.0)

    @property
    def store_s(self) -> float:
        """Seconds that a node waits for the store before that: c10d_rendezvous_backend.py; a static one's are in it."""
        return 0.0 if self.is_static else self._conf_s("read_timeout", 60.0)

    def _conf_s(self, name: str, default: float) -> float:
        try:
            return float(self._rdzv_conf.get(name, default))
        except ValueError:
            return default

    @property
    def needs_port(self) -> bool:
        """Whether ddp-run must choose a free port for one node, as the installed torch would always use the same one.

        That is so if `--master-port` has a default (torch 2.4 to 2.9, run.py: 29500). `--standalone` does not help:
        its rendezvous hangs if the host's own name does not resolve (seen with torch 2.4); the static one does not.
        """
        fixed = any(row.dest == "master_port" and row.default is not None for row in self.rows)
        return fixed and self.rdzv_backend == "static" and not self.standalone and not self.is_static

    @property
    def master(self) -> tuple[str, int | None] | None:
        """Host and port that the user chose for the rendezvous; None if torch takes this host and a free port."""
        if self.standalone:
            return None
        if self.rdzv_endpoint:
            try:
                return values.read_endpoint(self.rdzv_endpoint)
            except ValueError:
                return None
        return (self.master_addr, 29500 if self.master_port is None else self.master_port) if self.is_static else None

    @property
    def log_cap_bytes(self) -> int | None:
        """How large the file of a rank's stream may get; None: as large as it gets."""
        return None if self._log_size_cap is None else values.read_size(self._log_size_cap)

    # ------------------------------------------------------------------------------------- what to do

    def torch_arguments(self) -> tuple[str, ...]:
        """The agent's options, `--name=value`, without those from `PET_` variables: the agent reads these itself."""
        return tuple(
            f"{row.name}={self.settings[row.dest].text}" if row.takes_value else row.name
            for row in self.rows
            if not row.is_ours and self._handed_on(row)
        )

    def _handed_on(self, row: Row) -> bool:
        setting = self.settings[row.dest]
        return setting.source not in (Source.PET, Source.DEFAULT) and setting.value is not False

    def without(self, dests: Collection[str], reason: str, *, quietly: bool = False) -> Options:
        """Reset options to their defaults, with a note that gives the reason; `quietly`: only their origin gives it."""
        rows = {row.dest: row for row in self.rows}
        note = f"ignoring {' and '.join(self.settings[dest].origin for dest in dests)}: {reason}"
        origin = f"default, {note}" if quietly else "default"
        settings = {**self.settings, **{dest: Setting(rows[dest].default, origin=origin) for dest in dests}}
        return replace(self, settings=settings, notes=self.notes if quietly else (*self.notes, note))

    def problem(
        self,
        dest: str,
        title: str,
        label: str = "",
        *,
        code: str = "DDP101",
        notes: tuple[str, ...] = (),
        helps: tuple[str, ...] = (),
    ) -> Problem:
        """A problem of one option, at the place where its value stands."""
        setting = self.settings[dest]
        return Problem(code, title, setting.word, label, setting.place, notes, helps)
