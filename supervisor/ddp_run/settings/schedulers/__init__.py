"""Where a job runs: each file here knows one scheduler or cloud, and is found by being here. Pure.

Such a file has one or both of these functions:

- `job_nodes(environ)` returns `JobNodes` from the scheduler's variables; None if this process is not in a job of
  several of its nodes;
- `likely_mistakes(options, environ)` returns a line for each thing that torchrun allows too, but that is likely wrong
  there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_run.settings.options import Options


@dataclass(frozen=True, slots=True)
class JobNodes:
    """The nodes of a job, seen from one of them."""

    nodes: int | None
    """How many; None if the scheduler does not say."""
    settings: Mapping[str, tuple[str, str]]
    """By destination (`nnodes`, `node_rank`, `master_addr`, `master_port`): the value's text, and its variable."""
    job: str
    """The job's name for people: "SLURM job 4711"."""
    host_names: tuple[str, ...] = ()
    """A command that prints the hosts of all nodes, one per line, by node rank; empty if there is none."""


def job_nodes(environ: Mapping[str, str]) -> JobNodes | None:
    """Ask each scheduler about this job; returns the first answer, None outside of any."""
    answers = (ask(environ) for ask in _functions("job_nodes"))
    return next((nodes for nodes in answers if nodes is not None), None)


def host_names(options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command that prints the hosts of this job's nodes; empty if the options differ from the scheduler's job."""
    found = job_nodes(environ)
    if found is None or found.nodes != options.max_nodes + options.spare_nodes:
        return ()
    same = options.own_node_rank is None or found.settings["node_rank"][0] == str(options.node_rank)
    return found.host_names if same else ()


def likely_mistakes(options: Options, environ: Mapping[str, str]) -> list[str]:
    """A line for each likely mistake, from all schedulers and clouds."""
    return [line for ask in _functions("likely_mistakes") for line in ask(options, environ)]


def whole_number(environ: Mapping[str, str], name: str) -> int | None:
    """A variable's value; None unless it is 1 to 18 digits."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _functions(name: str) -> Iterator[Callable[..., Any]]:
    for found in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{found.name}")
        if hasattr(module, name):
            yield getattr(module, name)
