"""The shape of a check, and what it may look at. Each function in `checks/` marked with `@check(…)` is one."""

from __future__ import annotations

import importlib
import pkgutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import final

from ddp_run.doctor import checks
from ddp_run.doctor.findings import Finding, skipped
from ddp_run.doctor.reports import Reports
from ddp_run.plan import net
from ddp_run.settings.options import Options
from ddp_run.values import kernel_text
from ddp_run.values.addresses import Resolved
from ddp_run.values.typed_fields import frozen

_NVIDIA_SMI_S = 20.0
"""Without nvidia-persistenced, nvidia-smi first wakes every GPU, which takes seconds for each."""
_ONCE_S, _ONE_NODE_S, _SEVERAL_NODES_S = 0.6, 5.0, 120.0
"""How long to wait for a name's address: a share of what `--quick` may take, then the limits of a launch."""
_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


class Level(IntEnum):
    """How much to check; each level includes those below it."""

    QUICK = 0
    """Under 2 s, without torch."""
    DEFAULT = 1
    """Under 30 s with 2 ranks."""
    FULL = 2


class Group(StrEnum):
    """Checks that are shown together, in this order."""

    HOST = "host"
    GPUS = "GPUs"
    MEMORY = "memory and limits"
    DISK = "disk"
    NETWORK = "network"
    RANKS = "ranks"
    DATA = "data"
    NODES = "nodes"


class NoAnswer(Exception):
    """nvidia-smi is missing, failed, or didn't finish in time."""


class _Hangs(NoAnswer):
    """nvidia-smi didn't finish in time: don't ask it again."""


@final
@dataclass(slots=True)
class Surroundings:
    """The launch in question, this host, and what the ranks reported."""

    options: Options
    environ: Mapping[str, str]
    ranks: int
    """On this node."""
    log_dir: Path
    """Where a launch with these options would write."""
    words: tuple[str, ...] = ()
    """The launch's options on the command line, with a number of ranks."""
    level: Level = Level.DEFAULT
    data_paths: tuple[Path, ...] = ()
    say: Callable[[str], None] = lambda _line: None
    """Shows a line to the user."""
    doing: Callable[[str], None] = lambda _step: None
    """Shows what's going on now, until the next step."""
    driver_files: tuple[str, ...] = _DRIVER
    """If any exists, NVIDIA's driver is loaded."""
    reports: Reports = field(default_factory=Reports)
    """Empty until the ranks have ended."""
    _answers: dict[tuple[str, ...], str | NoAnswer] = field(default_factory=dict)
    _master: Resolved | net.Unresolvable | None = None

    @property
    def host(self) -> str:
        """This host's name."""
        return socket.gethostname()

    @property
    def one_of_several(self) -> str:
        """A name for this node among the job's nodes; empty for a job on one node."""
        if self.options.max_nodes == 1:
            return ""
        rank = self.options.own_node_rank
        return self.host if rank is None else f"node {rank}"

    @property
    def has_driver(self) -> bool:
        """Whether NVIDIA's driver is loaded here."""
        return any(Path(path).exists() for path in self.driver_files)

    def nvidia_smi(self, *words: str) -> str:
        """Return what nvidia-smi prints; each question is asked once. Raises NoAnswer with its own words."""
        if words not in self._answers:
            hung = next((each for each in self._answers.values() if isinstance(each, _Hangs)), None)
            self._answers[words] = hung or _nvidia_smi(words)
        answer = self._answers[words]
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    def master(self) -> Resolved | net.Unresolvable | None:
        """Return node 0's address, or why it has none; None if the launch names no node. Looks it up once."""
        if self._master is None and self.options.is_static and self.options.master is not None:
            host, port = self.options.master
            several = self.options.max_nodes > 1
            limit_s = _SEVERAL_NODES_S if several else _ONE_NODE_S
            try:
                self._master = self.address_of(host, port or 0, limit_s, several=several)
            except net.Unresolvable as error:
                self._master = error
        return self._master

    def known_master(self) -> Resolved | None:
        """Return node 0's address; None also if it has none, which the check `master_name` reports."""
        found = self.master()
        return found if isinstance(found, Resolved) else None

    def address_of(self, name: str, port: int, limit_s: float, *, several: bool = False) -> Resolved:
        """Look up a name: once for `--quick`, else for up to `limit_s` seconds. Raises net.Unresolvable."""
        if self.level is Level.QUICK:
            return net.resolve(name, port, _ONCE_S, several_nodes=several, once=True)
        return net.resolve(name, port, limit_s, several_nodes=several, say=self.say)


def _nvidia_smi(words: Sequence[str]) -> str | NoAnswer:
    command = ["nvidia-smi", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_NVIDIA_SMI_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _Hangs(f"nvidia-smi didn't answer in {_NVIDIA_SMI_S:.0f} s: a GPU or the driver hangs")
    except FileNotFoundError:
        return NoAnswer("the driver's tool nvidia-smi is not installed here")
    except OSError as error:
        return NoAnswer(f"cannot start nvidia-smi: {error.strerror}")
    if done.returncode != 0:
        said = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        return NoAnswer(said[0])
    return done.stdout


def kernel_value(path: Path) -> str:
    """Return the value in a file of /proc or /sys; empty if it can't be read."""
    return kernel_text.read(path).strip()


# ------------------------------------------------------------------------------------------------- checks

Look = Callable[[Surroundings], Iterable[Finding]]


@frozen
class Check:
    """One check; `@check` describes the fields."""

    name: str
    group: Group
    subject: str
    about: str
    look: Look
    level: Level
    of_ranks: bool
    ranks_need_it: bool


def check(
    group: Group, subject: str, level: Level = Level.QUICK, *, of_ranks: bool = False, ranks_need_it: bool = False
) -> Callable[[Look], Check]:
    """Make a check of a function. Its name is the check's; its docstring goes into docs/doctor.md.

    `subject`: what it checks, for the progress line. `level`: the lowest that includes it. `of_ranks`: it judges what
    the doctor's ranks reported. `ranks_need_it`: if it fails, ranks of one node cannot even meet, so none are started.
    """
    level = Level.DEFAULT if of_ranks else level

    def made(look: Look) -> Check:
        about = " ".join((look.__doc__ or "").split())
        return Check(look.__name__, group, subject, about, look, level, of_ranks, ranks_need_it)

    return made


def all_checks() -> list[Check]:
    """Return the checks of all files in `checks/`, in the order in which they run: those of ranks last."""
    files = [
        importlib.import_module(f"{checks.__name__}.{file.name}") for file in pkgutil.iter_modules(checks.__path__)
    ]
    found = [each for file in files for each in vars(file).values() if isinstance(each, Check)]
    order = list(Group)
    return sorted(found, key=lambda each: (each.of_ranks, order.index(each.group), each.level))


def asked(asking: Check, around: Surroundings) -> tuple[Finding, ...]:
    """Return what a check finds. A check that crashes says nothing about the host: it counts as skipped."""
    try:
        return tuple(asking.look(around))
    except Exception as error:
        return (skipped(asking.name, f"the check itself failed: {type(error).__name__}: {error}"),)
