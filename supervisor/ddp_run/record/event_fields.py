"""From a recorded event's fields to an event: of its types, or none. A journal may come from anybody. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from pathlib import PurePosixPath
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ddp_run.record import events
from ddp_run.record.events import Event, ExceptionInfo

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event)}
_Reader = Callable[[Any], Any]

_PARALLEL: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "MemorySampled": (("ranks", "own", "children"),),
    "GpuSampled": (
        ("gpus", "uuids", "used", "free", "total", "busy"),
        ("pids", "on", "held", "names", "members"),
        ("ranks", "visible"),
    ),
    "ProgressSampled": (("ranks", "phases", "steps", "collectives"), ("ranks", "calls")),
}
"""Fields with an entry for each other's; one that is empty by default may be so."""
_LEAST: Mapping[str, int] = {
    "rank": 0,
    "local_rank": 0,
    "attempt": 0,
    "restart": 0,
    "pid": 1,
    "code": -127,
    "signum": 1,
}


def event_of(recorded: object) -> Event | None:
    """The event; null for a kind that this version does not know. Fields of a newer version are passed over.

    Raises ValueError where a field is missing, of another type, out of any range, or fits no other field.
    """
    if not isinstance(recorded, dict):
        raise ValueError("not an event")
    kind = _KINDS.get(_text(recorded.get("event")))
    if kind is None:
        return None
    event: Event = _of(kind, recorded)
    for group in _PARALLEL.get(kind.__name__, ()):
        counts = {len(getattr(event, name)) for name in group if name != "calls" or getattr(event, name)}
        if len(counts) > 1:
            raise ValueError(f"{', '.join(group)} are not of one length")
    if isinstance(event, events.RankStarted):
        _check_folder(event.folder)
    return event


def _of(kind: type[Any], recorded: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for name, (read, required) in _readers(kind.__name__).items():
        if name in recorded:
            values[name] = read(recorded[name])
            if isinstance(values[name], int) and values[name] < _LEAST.get(name, values[name]):
                raise ValueError(f"{name} is {values[name]}")
        elif required:
            raise ValueError(f"{name} is missing")
    return kind(**values)


@cache
def _readers(name: str) -> dict[str, tuple[_Reader, bool]]:
    """By field of a type: what reads it, and whether it must be there."""
    kind = _KINDS.get(name, ExceptionInfo)
    hints = get_type_hints(kind)
    return {each.name: (_reader(hints[each.name]), each.default is MISSING) for each in fields(kind)}


def _reader(hint: Any) -> _Reader:
    hint = getattr(hint, "__supertype__", hint)  # Rank and its like are numbers
    if get_origin(hint) in (Union, UnionType):
        (other,) = (each for each in get_args(hint) if each is not NoneType)
        read = _reader(other)
        return lambda value: None if value is None else read(value)
    if get_origin(hint) is tuple:
        of_each = _reader(get_args(hint)[0])
        return lambda value: tuple(map(of_each, _list(value)))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(_text(value))
    return _SINGLE[hint]


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")
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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _exception(value: object) -> ExceptionInfo:
    if not isinstance(value, dict):
        raise ValueError("not an exception")
    raised: ExceptionInfo = _of(ExceptionInfo, value)
    return raised


_SINGLE: Mapping[Any, _Reader] = {
    int: _whole,
    float: _number,
    bool: _switch,
    str: _text,
    ExceptionInfo: _exception,
}


def _check_folder(folder: str) -> None:
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts or "\0" in folder or len(folder) > 1024:
        raise ValueError("the rank's folder is not within the run's")
