"""`[env]` of a preset: variables for the ranks, where nobody has set them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_run.values.problem import Problem

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTIONS = ("PET_", "DDP_RUN_")
_LAUNCH = frozenset({"NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "MAX_RETRIES", "DDP_DEBUG"})
_LAUNCHERS = ("TORCHELASTIC_", "TORCH_ELASTIC_", "GROUP_", "ROLE_")
_RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})


@dataclass(frozen=True, slots=True)
class RankVariable:
    """One variable, and the place where it stands: "slurm.toml:7"."""

    name: str
    value: str
    origin: str


def read_variable(name: str, value: object, origin: str) -> RankVariable:
    """One entry of the table. Raises `ValueError` with what is allowed."""
    if not _NAME.fullmatch(name):
        raise ValueError("expected a variable's name: letters, digits and _")
    if name in _RANKS or name.startswith(_LAUNCHERS):
        raise ValueError("set by the launcher for each rank")
    if name in _LAUNCH or name.startswith(_OPTIONS):
        raise ValueError("an option's variable: write the option's own key in the preset")
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
        raise ValueError("expected a string or a number")
    return RankVariable(name, str(value), origin)


def unset(variables: tuple[RankVariable, ...], environ: Mapping[str, str]) -> tuple[RankVariable, ...]:
    """Those that the user has not set; an empty value is a value."""
    return tuple(each for each in variables if each.name not in environ)


def wrong_variable(name: str, reason: str, origin: str) -> Problem:
    """Its name alone: the value may be a secret."""
    return Problem("DDP101", f"[env] {name}: {reason}", origin=origin)
