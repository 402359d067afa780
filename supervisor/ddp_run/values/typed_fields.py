"""Dataclasses: immutable ones, and reading one from JSON, field by field. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, dataclass_transform, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A slotted dataclass that type checkers treat as frozen.

    `dataclass(frozen=True)` compiles two more functions for each class and a slower `__init__`, which doubles the time
    that defining one takes; all of that time passes before the agent is started.
    """
    return dataclass(slots=True)(cls)


_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
_MANY = 16


def read(kind: type[_T], given: object) -> _T:
    """A dataclass of numbers, texts, switches, enums, tuples, mappings by text, and dataclasses of these.

    Unknown fields are ignored.

    Raises ValueError if a field is missing or has another type.
    """
    values: dict[str, Any] = {}
    found = _mapping(given)
    for name, (reader, required) in _readers(cast(Hashable, kind)).items():
        if name in found:
            values[name] = reader(found[name])
        elif required:
            raise ValueError(f"{name} is missing")
    return kind(**values)


@cache
def _readers(kind: Any) -> dict[str, tuple[_Reader, bool]]:
    """For each field of a type: what reads it, and whether it is required."""
    hints = get_type_hints(kind)
    return {
        each.name: (_reader(hints[each.name]), each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
    }


def _reader(hint: Any) -> _Reader:
    hint = getattr(hint, "__supertype__", hint)  # Rank and its like are numbers
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        (other,) = (each for each in get_args(hint) if each is not NoneType)
        reader = _reader(other)
        return lambda value: None if value is None else reader(value)
    if origin is tuple:
        of_each = _reader(get_args(hint)[0])
        return lambda value: tuple(map(of_each, _list(value)) if not _is_alike(value, of_each) else value)
    if origin is Mapping:
        of_each = _reader(get_args(hint)[1])
        return lambda value: {text(key): of_each(each) for key, each in _mapping(value).items()}
    if origin is Literal:
        return lambda value: _one_of(value, get_args(hint))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(text(value))
    if is_dataclass(hint):
        return lambda value: read(cast(type[Any], hint), value)
    return _SINGLE[hint]


def _is_alike(value: object, of_each: _Reader) -> bool:
    """Whether it's a long list of numbers or texts that need no look at each: samples of many ranks have such ones."""
    if not isinstance(value, list) or len(value) < _MANY:
        return False
    kinds = {*map(type, value)}
    return (of_each is text and kinds == {str}) or (
        of_each is _whole and kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("not an object")
    return value


def _one_of(value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"none of {', '.join(known)}")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError("not a whole number of 64 bits")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def text(value: object) -> str:
    """A text. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


_SINGLE: Mapping[Any, _Reader] = {int: _whole, float: _number, bool: _switch, str: text}
