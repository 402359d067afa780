"""Names of torch's plug-ins, known from the metadata of installed packages: none of them is imported."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ddp_run.plan.check import Answer, Check, Launch
from ddp_run.plan.installed_torch import find_torch_run
from ddp_run.settings.options import Options, Setting
from ddp_run.values.problem import Problem, nearest

_GROUP_BACKENDS = frozenset({"nccl", "gloo", "mpi", "ucc", "xccl", "hccl"})
"""Backends of process groups, which people give as that of the rendezvous."""


def _check(launch: Launch) -> Answer:
    """Names that the installed torch does not know; the agent would fail over them after it has imported torch."""
    torch_run = find_torch_run([entry for entry in sys.path if entry])
    return Answer(problems=(*_rendezvous_backend(launch.options, torch_run), *_logs_specs(launch.options)))


def _logs_specs(options: Options) -> list[Problem]:
    """torch/distributed/run.py, _get_logs_specs_class: an entry point of the group `torchrun.logs_specs`."""
    name = options.logs_specs
    if name is None:
        return []
    known = _entry_points("torchrun.logs_specs")
    if name in known:
        return []
    notes = ("names come from torchrun.logs_specs entry points of installed packages; is the package installed?",)
    helps = tuple(f"--logs-specs={each}" for each in nearest(name, known, 1)) or ("omit --logs-specs",)
    return [_problem(options.settings["logs_specs"], f"unknown logs specs {name}", "unknown name", notes, helps)]


def _rendezvous_backend(options: Options, torch_run: Path | None) -> list[Problem]:
    """`torch_run`: torch/distributed/run.py, beside which torch keeps the names of its own.

    torch/distributed/elastic/rendezvous/registry.py: its own names, and entry points of `torchrun.handlers`.
    """
    name = options.rdzv_backend
    if options.standalone or name in ("static", "c10d") or torch_run is None:
        return []
    own = _own_backends(torch_run)
    if not own or name in own:
        return []
    known = {*own, *_entry_points("torchrun.handlers")}
    if name in known:
        return []
    if name in _GROUP_BACKENDS:
        notes: tuple[str, ...] = (
            f"{name} is a process-group backend: the script chooses it, in init_process_group({name!r})",
        )
        helps: tuple[str, ...] = ("omit --rdzv-backend, or use --rdzv-backend=c10d",)
    else:
        notes = (f"known rendezvous backends: {', '.join(sorted(known))}",)
        helps = tuple(f"--rdzv-backend={each}" for each in nearest(name, known, 1)) or ("--rdzv-backend=c10d",)
    title = f"unknown rendezvous backend {name}"
    return [_problem(options.settings["rdzv_backend"], title, "unknown name", notes, helps)]


def _own_backends(torch_run: Path) -> frozenset[str]:
    """What torch registers itself, from its source; empty where that is written in another way."""
    path = torch_run.parent / "elastic" / "rendezvous" / "registry.py"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return frozenset()
    return frozenset(re.findall(r"""(?m)^\s*handler_registry\.register\(\s*["']([^"']+)["']""", text))


def _entry_points(group: str) -> frozenset[str]:
    from importlib.metadata import entry_points

    return frozenset(each.name for each in entry_points(group=group))


def _problem(setting: Setting, title: str, label: str, notes: tuple[str, ...], helps: tuple[str, ...]) -> Problem:
    return Problem("DDP101", title, setting.word, label, setting.place, notes, helps)


CHECK = Check("plug-ins", _check, needed=True)
