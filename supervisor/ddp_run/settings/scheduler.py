"""What a scheduler gave a job: each file in `schedulers/` reads the variables of one; it is found by being there. Pure.

Such a file has `job_nodes(environ)`, which gives `JobNodes`, or null where this process is in no job of several
nodes of that scheduler's.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_run.settings import schedulers


@dataclass(frozen=True, slots=True)
class JobNodes:
    """The nodes of a job, seen from one of them."""

    nodes: int
    settings: Mapping[str, tuple[str, str]]
    """By destination (`nnodes`, `node_rank`, `master_addr`, `master_port`): the value's text and the variable that it
    comes from."""
    job: str
    """The job's name for people: "SLURM job 4711"."""


def job_nodes(environ: Mapping[str, str]) -> JobNodes | None:
    """What the first scheduler says that knows this job; null outside of any."""
    for found in pkgutil.iter_modules(schedulers.__path__):
        module = importlib.import_module(f"{schedulers.__name__}.{found.name}")
        nodes: JobNodes | None = module.job_nodes(environ)
        if nodes is not None:
            return nodes
    return None
