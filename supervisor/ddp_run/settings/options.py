"""Options of one launch and where each value came from: values that answer what a launch is like. Pure.

They are valid by construction: `ddp_run.settings.parse` makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ddp_run.settings import values
from ddp_run.settings.rank_variables import RankVariable
from ddp_run.settings.table import Owner, Row
from ddp_run.settings.values import PerRank


class Source(StrEnum):
    """Where a value came from; the order is that of precedence."""

    OPTION = "option"
    PET = "PET_ variable"
    VARIABLE = "variable"
    CONFIG = "configuration file"
    SCHEDULER = "scheduler"
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

    @property
    def place(self) -> str | None:
        """Where a value stands that is not on the command line, for a message; null for a default."""
        if self.source in (Source.PET, Source.VARIABLE, Source.SCHEDULER):
            return f"environment variable {self.origin}"
        return self.origin if self.source is Source.CONFIG else None


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
    """torchrun's own template of the console's line prefix, where the user set one; empty: no prefix."""
    notes: tuple[str, ...] = ()
    """What was given and is not used, with the reason."""
    rank_variables: tuple[RankVariable, ...] = ()
    """What a preset's `[env]` sets for the ranks; the user has set none of them."""

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
        return setting.source not in (Source.PET, Source.DEFAULT) and setting.value is not False

    def without(self, dests: Collection[str], reason: str, *, quietly: bool = False) -> Options:
        """These options with the default again, and a note that says why; `quietly`: only their origin does."""
        rows = {row.dest: row for row in self.rows}
        note = f"ignoring {' and '.join(self.settings[dest].origin for dest in dests)}: {reason}"
        origin = f"default, {note}" if quietly else "default"
        settings = {**self.settings, **{dest: Setting(rows[dest].default, origin=origin) for dest in dests}}
        return replace(self, settings=settings, notes=self.notes if quietly else (*self.notes, note))

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
    def has_fixed_nodes(self) -> bool:
        """Whether the job has several nodes of which each knows its number from the start, and where node 0 is.

        torch keeps the node ranks of a static rendezvous; every other one numbers the nodes anew at each start.
        """
        return self.is_static and self.min_nodes == self.max_nodes > 1

    @property
    def rendezvous_s(self) -> float:
        """How long a static rendezvous waits for all nodes: 900 s, as torch's launcher/api.py says, or `timeout`."""
        try:
            return float(values.read_rdzv_conf(self._text("rdzv_conf", "")).get("timeout", "900"))
        except ValueError:
            return 900.0

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
            try:
                return values.read_endpoint(self.rdzv_endpoint)
            except ValueError:
                return None
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
        """all, rank0, failed, none or raw."""
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
    def control_port(self) -> int | None:
        """The port where nodes agree, null where it follows from the master's."""
        value = self._of("control_port", None)
        return None if value is None else int(value)

    @property
    def has_hooks(self) -> bool:
        """Whether commands of the user's run after the job."""
        return any((self.on_success, self.on_failure, self.on_end))

    @property
    def on_success(self) -> str | None:
        """Shell command after a run that succeeded; null for none."""
        return self._optional("on_success")

    @property
    def on_failure(self) -> str | None:
        """Shell command after a run that did not succeed."""
        return self._optional("on_failure")

    @property
    def on_end(self) -> str | None:
        """Shell command after every run."""
        return self._optional("on_end")

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
