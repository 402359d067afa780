"""Where a job runs: each file in `schedulers/` knows one scheduler or cloud; it is found by being there. Pure.

Such a file has one of these functions, or both:

- `job_nodes(environ)` gives `JobNodes` from what the scheduler sets, null where this process is in no job of several
  nodes of its;
- `likely_mistakes(options, environ)` gives a line for each thing that works under torchrun too and is likely not meant
  there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_run.settings import schedulers
from ddp_run.settings.options import Options


@dataclass(frozen=True, slots=True)
class JobNodes:
    """The nodes of a job, seen from one of them."""

    nodes: int | None
    """How many; null where nothing that the scheduler sets says so."""
    settings: Mapping[str, tuple[str, str]]
    """By destination (`nnodes`, `node_rank`, `master_addr`, `master_port`): the value's text and the variable that it
    comes from."""
    job: str
    """The job's name for people: "SLURM job 4711"."""
    host_names: tuple[str, ...] = ()
    """A command that prints the hosts of all nodes, one a line, by node rank; empty where there is none."""


def job_nodes(environ: Mapping[str, str]) -> JobNodes | None:
    """What the first scheduler says that knows this job; null outside of any."""
    for ask in _functions("job_nodes"):
        nodes: JobNodes | None = ask(environ)
        if nodes is not None:
            return nodes
    return None


def host_names(options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command that prints the hosts of this job's nodes; empty where the job is not as the scheduler has it."""
    found = job_nodes(environ)
    if found is None or found.nodes != options.max_nodes or found.settings["node_rank"][0] != str(options.node_rank):
        return ()
    return found.host_names


def likely_mistakes(options: Options, environ: Mapping[str, str]) -> list[str]:
    """A line for each, of all schedulers and clouds."""
    return [line for ask in _functions("likely_mistakes") for line in ask(options, environ)]


def whole_number(environ: Mapping[str, str], name: str) -> int | None:
    """A variable's value; null where it is not set, or no number without a sign."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _functions(name: str) -> Iterator[Callable[..., Any]]:
    for found in pkgutil.iter_modules(schedulers.__path__):
        module = importlib.import_module(f"{schedulers.__name__}.{found.name}")
        if hasattr(module, name):
            yield getattr(module, name)
