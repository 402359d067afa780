"""Options that torch would refuse only after its import or that have no effect, and words that are likely a mistake.

No plug-in is imported. Likely mistakes work under torchrun too, so they are reported at the start, never refused.
"""

from __future__ import annotations

import re
from pathlib import Path

from ddp_run.plan.installed_torch import find_torch_run
from ddp_run.plan.launch_plan import dist_timeout_s
from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.settings import schedulers
from ddp_run.settings.checks import slip_in
from ddp_run.settings.options import Options
from ddp_run.values.problem import Problem, nearest

_GROUP_BACKENDS = frozenset({"nccl", "gloo", "mpi", "ucc", "xccl", "hccl"})
"""Process-group backends, often mistaken for rendezvous backends."""
_UNMISTAKABLE = ("nproc_per_node", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "max_restarts", "standalone")
"""Options that hardly any script has."""


def _check_options(launch: Launch) -> Answer:
    options = launch.options
    problems = (_logs_specs(options), _rendezvous_backend(options, find_torch_run()))
    return Answer(options, tuple(each for each in problems if each is not None), warnings=_without_effect(launch))


def _without_effect(launch: Launch) -> tuple[str, ...]:
    """Options that need ddp-run's hooks in torch, if each rank is another program."""
    options = launch.options
    asked = {
        "--backend": options.backend is not None,
        "--fallback-backend": options.fallback_backend is not None,
        "--ddp-debug": options.ddp_debug,
        "TORCH_DIST_TIMEOUT": dist_timeout_s(launch.environ) is not None,
    }
    named = [name for name, given in asked.items() if given]
    if not options.no_python or not named:
        return ()
    have = "has" if len(named) == 1 else "have"
    return (f"{', '.join(named)} {have} no effect with --no-python: ddp-run can't hook into the program",)


def _logs_specs(options: Options) -> Problem | None:
    """torch/distributed/run.py, _get_logs_specs_class: an entry point of the group `torchrun.logs_specs`."""
    name = options.logs_specs
    known = _names("torchrun.logs_specs") if name is not None else frozenset()
    if name is None or name in known:
        return None
    notes = ("names come from torchrun.logs_specs entry points of installed packages; is the package installed?",)
    helps = tuple(f"--logs-specs={each}" for each in nearest(name, known, 1)) or ("omit --logs-specs",)
    return options.problem("logs_specs", f"unknown logs specs {name}", "unknown name", notes=notes, helps=helps)


def _rendezvous_backend(options: Options, torch_run: Path | None) -> Problem | None:
    """torch/distributed/elastic/rendezvous/registry.py: its own names, and entry points of `torchrun.handlers`."""
    name = options.rdzv_backend
    if options.standalone or name in ("static", "c10d") or torch_run is None:
        return None
    own = _own_backends(torch_run)
    known = own | _names("torchrun.handlers")
    if not own or name in known:
        return None
    if name in _GROUP_BACKENDS:
        notes = (f"{name} is a process-group backend: the script chooses it, in init_process_group({name!r})",)
        helps: tuple[str, ...] = ("omit --rdzv-backend, or use --rdzv-backend=c10d",)
    else:
        notes = (f"known rendezvous backends: {', '.join(sorted(known))}",)
        helps = tuple(f"--rdzv-backend={each}" for each in nearest(name, known, 1)) or ("--rdzv-backend=c10d",)
    title = f"unknown rendezvous backend {name}"
    return options.problem("rdzv_backend", title, "unknown name", notes=notes, helps=helps)


def _own_backends(torch_run: Path) -> frozenset[str]:
    """Read the names that torch registers from its source; empty if its source has changed."""
    path = torch_run.parent / "elastic" / "rendezvous" / "registry.py"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return frozenset()
    return frozenset(re.findall(r"""(?m)^\s*handler_registry\.register\(\s*["']([^"']+)["']""", text))


def _names(group: str) -> frozenset[str]:
    from importlib.metadata import entry_points

    return frozenset(each.name for each in entry_points(group=group))


# ------------------------------------------------------------------------------------------ likely mistakes


def _check_words(launch: Launch) -> Answer:
    options = launch.options
    found = (*_after_the_script(options), *_line_ends(options), *schedulers.likely_mistakes(options, launch.environ))
    return Answer(options, warnings=found)


def _after_the_script(options: Options) -> list[str]:
    names = {flag: row.dest for row in options.rows if row.dest in _UNMISTAKABLE for flag in row.flags}
    for word in options.script_args:
        dest = names.get(word.partition("=")[0])
        if dest is not None and dest not in options.given:
            return [f"{word} comes after the script, so the script gets it; ddp-run's options go before the script"]
    return []


def _line_ends(options: Options) -> list[str]:
    last = options.script_args[-1] if options.script_args else ""
    slip = slip_in(last) if last.endswith("\r") else None
    return [f"the last word, {last!r}, has {slip[0]}: {slip[1]}"] if slip else []


OPTIONS = Check("torch's options", _check_options, needed=True)
WORDS = Check("the words", _check_words)
