"""Immutable values. That nobody changes one is checked by mypy, not at run time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A slotted dataclass that type checkers hold to be frozen.

    `dataclass(frozen=True)` compiles two more functions for each class and a slower `__init__`, which doubles the time
    that defining one takes; all of that time passes before the agent is started.
    """
    return dataclass(slots=True)(cls)
