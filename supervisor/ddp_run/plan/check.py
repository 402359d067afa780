"""What a check is, before the start: each file in `checks/` has one, as `CHECK`, and is found by being there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ddp_run.plan import checks
from ddp_run.settings.options import Options, Setting
from ddp_run.values.problem import Problem


class Cost(IntEnum):
    """How long a check may take; cheap ones come first."""

    MILLISECONDS = 1
    WAITS = 2
    """It waits for others, a minute maybe: asked where the cheap ones have found no problem."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be checked. `say` takes a line for the user while a check waits."""

    options: Options
    environ: Mapping[str, str]
    cwd: Path
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check has found: a problem refuses the launch, a warning does not."""

    problems: tuple[Problem, ...] = ()
    suspicions: tuple[Problem, ...] = ()
    """Problems with `--preflight strict`; else a warning each, by title and label."""
    warnings: tuple[str, ...] = ()
    options: Options | None = None
    """What to launch, where this machine contradicts what was asked for; null: as asked."""
    master: str | None = None
    """IP address of the static rendezvous' host; null where none was given or torch is to take its default."""
    interface: str | None = None
    """That leads there, with several nodes; null where that is unknown, or this host's loopback."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `name` completes "check of …"."""

    name: str
    run: Callable[[Launch], Answer]
    cost: Cost = Cost.MILLISECONDS
    needed: bool = False
    """Asked with `--preflight off` too: where it finds something, nothing can start, or an option does nothing."""


def all_checks() -> list[Check]:
    """Those of `checks/`, in the order in which they are asked."""
    names = [found.name for found in pkgutil.iter_modules(checks.__path__)]
    found: list[Check] = [importlib.import_module(f"{checks.__name__}.{name}").CHECK for name in names]
    return sorted(found, key=lambda check: check.cost)


def origin(setting: Setting) -> str | None:
    """Where a value stands, for a problem that does not point at a word."""
    return None if setting.word is not None else setting.place or setting.origin
