"""From a recorded event's fields to an event: of its types, or none. A journal may come from anybody. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, get_args

from ddp_run.record import events
from ddp_run.record.events import Event
from ddp_run.values import typed_fields

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event)}

_PARALLEL: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "MemorySampled": (("ranks", "own", "children"),),
    "GpuSampled": (
        ("gpus", "uuids", "used", "free", "total", "busy"),
        ("pids", "on", "held", "names", "members"),
        ("ranks", "visible"),
    ),
    "NodeReported": (("finished", "finished_at"),),
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
    kind = _KINDS.get(typed_fields.text(recorded.get("event")))
    if kind is None:
        return None
    event: Event = typed_fields.read(kind, recorded)
    for name, least in _LEAST.items():
        value = getattr(event, name, None)
        if isinstance(value, int) and value < least:
            raise ValueError(f"{name} is {value}")
    for group in _PARALLEL.get(kind.__name__, ()):
        counts = {len(getattr(event, name)) for name in group if name != "calls" or getattr(event, name)}
        if len(counts) > 1:
            raise ValueError(f"{', '.join(group)} are not of one length")
    if isinstance(event, events.RankStarted):
        _check_folder(event.folder)
    return event


def _check_folder(folder: str) -> None:
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts or "\0" in folder or len(folder) > 1024:
        raise ValueError("the rank's folder is not within the run's")
