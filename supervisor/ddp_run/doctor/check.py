"""What a check of the doctor is: each file in `checks/` has one, as `CHECK`, and is found by being there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum

from ddp_run.doctor import checks
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, skipped
from ddp_run.values.typed_fields import frozen


class Level(IntEnum):
    """How much is looked at; each level includes those below it."""

    QUICK = 0
    """Less than 2 s, no torch."""
    DEFAULT = 1
    """Less than 30 s with 2 ranks."""
    FULL = 2


class Group(StrEnum):
    """Which checks stand together; in this order."""

    HOST = "host"
    GPUS = "GPUs"
    MEMORY = "memory and limits"
    DISK = "disk"
    NETWORK = "network"
    RANKS = "ranks"
    DATA = "data"
    NODES = "nodes"


@frozen
class Check:
    """One check. `about`: what it looks at and when it warns or fails, for the documentation."""

    name: str
    group: Group
    about: str
    look: Callable[[Surroundings], Iterable[Finding]]
    level: Level = Level.QUICK
    of_ranks: bool = False
    """It judges what the ranks that the doctor starts have reported."""
    ranks_need_it: bool = False
    """Where it fails, the ranks of a job on one node cannot even meet: none are started."""
    place: int = 9
    """Among those of its group."""


def all_checks() -> list[Check]:
    """Those of `checks/`, in the order in which they are asked: those of ranks last."""
    names = [found.name for found in pkgutil.iter_modules(checks.__path__)]
    found: list[Check] = [importlib.import_module(f"{checks.__name__}.{name}").CHECK for name in names]
    order = list(Group)
    return sorted(found, key=lambda check: (check.of_ranks, order.index(check.group), check.place, check.name))


def asked(check: Check, around: Surroundings) -> tuple[Finding, ...]:
    """What it found. A check that itself fails says nothing about the host."""
    try:
        return tuple(check.look(around))
    except Exception as error:
        return (skipped(check.name, f"the check itself failed: {type(error).__name__}: {error}"),)
