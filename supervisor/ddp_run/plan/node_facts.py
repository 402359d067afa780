"""Facts of this node that should be the same on all nodes of a job.

Cheap: torch isn't imported and no process is started. Facts that can't be read are left out.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddp_run.plan import net
from ddp_run.plan.installed_torch import find_torch_run, torch_versions
from ddp_run.plan.launch_plan import LaunchPlan
from ddp_run.settings.options import Options
from ddp_run.values.node_fact import LONGEST_NAME, MOST_FACTS, Fact, Known
from ddp_run.values.redaction import redact_mapping

_T = TypeVar("_T")

_LARGEST_SCRIPT = 10_000_000
_SHOWN = 120
"""Longer values are cut to this many characters, and a hash is added."""
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "TORCHINDUCTOR_", "CUDA_")
_OF_EACH_NODE = frozenset(
    {"CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_COMM_ID", "NCCL_RAS_ADDR"}
)
_NAMES_OF_EACH_NODE = ("_IFNAME", "_FILE", "_DIR", "_DIRECTORY", "_PATH", "_HOME", "_ROOT", "_CERT", "_PKEY")
"""Interfaces and local paths, which may differ between nodes."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """This node's facts, and its route to node 0, whose name or address is `to`; None without a route."""

    facts: tuple[Fact, ...]
    to: str
    route: net.Route | None


def of_plan(plan: LaunchPlan, environ: Mapping[str, str]) -> NodeFacts | None:
    """Return what this node would tell the others, for display; None if nodes aren't compared, or on errors."""
    options, master = plan.options, plan.options.master
    if not options.meets_others or options.preflight == "off" or master is None:
        return None
    return _or_none(lambda: collect(options, environ, plan.master or master[0]))


def collect(options: Options, environ: Mapping[str, str], address: str) -> NodeFacts:
    """Collect this node's facts. `address`: node 0's."""
    route = _or_none(lambda: net.route_to(address))
    facts = list(_host(options, route))
    shown = _variables(environ)
    if len(facts) + len(shown) < MOST_FACTS:  # all or none: missing ones would look unset
        facts += [Fact(Known.VARIABLES, str(len(shown))), *shown]
    printable = (Fact(each.name, "".join(c if c.isprintable() else "?" for c in each.value)) for each in facts)
    return NodeFacts(tuple(printable), address, route)


def _host(options: Options, route: net.Route | None) -> Iterator[Fact]:
    torch_run = _or_none(find_torch_run)
    torch, cuda = _or_none(torch_versions) or (None, None)
    mtu = _or_none(lambda: net.mtu_of(route.interface)) if route is not None else None
    found: tuple[tuple[Known, str | None], ...] = (
        (Known.PYTHON, platform.python_version()),
        (Known.TORCH, torch),
        (Known.CUDA, cuda),
        (Known.NCCL, _or_none(lambda: _nccl(torch_run.parents[2])) if torch_run is not None else None),
        (Known.DRIVER, _or_none(_driver)),
        (Known.GPUS, _or_none(lambda: str(len([*Path("/proc/driver/nvidia/gpus").iterdir()])))),
        (Known.SCRIPT, script_hash(options)),
        (Known.ARGUMENTS, _hash_of(options.script_args)),
        (Known.RANKS, options.nproc),
        (Known.INTERFACE, route.interface if route is not None else None),
        (Known.MTU, str(mtu) if mtu is not None else None),
        (Known.OPEN_FILES, _or_none(lambda: _limit(resource.RLIMIT_NOFILE))),
        (Known.LOCKED_MEMORY, _or_none(lambda: _limit(resource.RLIMIT_MEMLOCK))),
        (Known.SHM, _or_none(_shm)),
    )
    yield from (Fact(name, value) for name, value in found if value)


def _or_none(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except Exception:  # a missing fact does no harm
        return None


def _nccl(site_packages: Path) -> str | None:
    """Version of the NCCL package that torch's wheels depend on."""
    folders = sorted(site_packages.glob("nvidia_nccl_cu*-*.dist-info"))
    versions = {folder.name.removesuffix(".dist-info").partition("-")[2] for folder in folders}
    return versions.pop() if len(versions) == 1 else None


def _driver() -> str | None:
    loaded = Path("/sys/module/nvidia/version")  # absent in some containers
    if loaded.exists():
        return loaded.read_text(encoding="ascii").strip()
    text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    words = text.partition("Kernel Module")[2].split()
    return next((word for word in words if re.fullmatch(r"\d+(?:\.\d+)+", word)), None)


def script_hash(options: Options) -> str | None:
    """Return a hash of the script's text; None for a module or a program, and if it can't be read."""
    return _or_none(lambda: _script(options))


def _script(options: Options) -> str | None:
    if options.module or options.no_python:
        return None
    with open(os.open(options.script, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST_SCRIPT:
            return None
        return hashlib.sha256(file.read(_LARGEST_SCRIPT)).hexdigest()[:12]


def _hash_of(words: Sequence[str]) -> str:
    """A hash shows that words differ without showing them: they may hold secrets."""
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:12]


def _limit(kind: int) -> str:
    soft, _hard = resource.getrlimit(kind)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _shm() -> str:
    found = os.statvfs("/dev/shm")  # noqa: S108 - its size is what is asked for
    return str(found.f_frsize * found.f_blocks)


def _variables(environ: Mapping[str, str]) -> list[Fact]:
    chosen = {name: value for name, value in environ.items() if _is_compared(name)}
    shown = redact_mapping(chosen)
    return [Fact(name, _shortened(shown[name])) for name in sorted(shown)]


def _is_compared(name: str) -> bool:
    if not (name.isascii() and name.isupper() and name.replace("_", "").isalnum()) or len(name) > LONGEST_NAME:
        return False
    if name in _OF_EACH_NODE or name.endswith(_NAMES_OF_EACH_NODE):
        return False
    return name.startswith(_PREFIXES) or name == "OMP_NUM_THREADS"


def _shortened(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}… ({_hash_of((value,))})"
