"""The collectives that ranks entered, from torch's flight recorder (`rank/flight.py`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddp_run.observe.stack_text import Frame

Entered = Mapping[tuple[str, int], int]
"""When a rank entered a collective, in nanoseconds of the host's clock, by process group and number."""

_ALIKE = frozenset({"all_reduce", "allreduce", "broadcast", "reduce"})
"""Operations whose tensors have the same shape and type on all ranks; others may differ (scatter, all_to_all)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that a rank entered. `group`: `nccl:0`, library and name of the process group."""

    group: str
    number: int
    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    pending: bool = False
    """It has not ended."""
    place: str | None = None
    """Where the user's code entered it, if that was recorded."""

    @property
    def key(self) -> str:
        """The same on all ranks for what they do together."""
        return f"{self.group} {self.number}"

    @property
    def nccl(self) -> bool:
        """Whether NCCL does it: ranks enter without waiting, and NCCL keeps the order."""
        return self.operation.partition(":")[0].startswith("nccl")

    @property
    def name(self) -> str:
        """`all_reduce`; NCCL's barrier is an all_reduce of one element, and recorded as `all_reduce_barrier`."""
        return self.operation.rpartition(":")[2].removeprefix("all_reduce_")

    @property
    def said(self) -> str:
        """`all_reduce of [4, 8]`."""
        shown = ", ".join(str(list(size)) for size in self.sizes[:2])
        return f"{self.name}{f' of {shown}' if shown and self.name != 'barrier' else ''}"

    @property
    def kind(self) -> tuple[object, ...]:
        """What must be the same on all ranks."""
        return (self.name, self.sizes, self.types) if self.name in _ALIKE else (self.name,)


def last_collectives(recorded: Mapping[str, Any]) -> tuple[dict[str, Collective], Collective | None]:
    """The last collective in each process group, and the one that this rank waits for.

    It waits for the last of all, if that has not ended. NCCL's collectives are entered without waiting and done in
    order, so of those it waits for the first that has not ended. Gloo's `state` stays `scheduled` (torch 2.13); its
    collectives have ended once they are `retired`. Raises AttributeError, TypeError, KeyError or ValueError if
    `recorded` is not in that form.
    """
    last: dict[str, Collective] = {}
    latest: Collective | None = None
    waiting: dict[str, Collective] = {}
    """The first of NCCL's that has not ended, by group."""
    for _, collective in _collectives(recorded):
        group, latest = collective.group, collective
        if group not in last or last[group].number <= collective.number:
            last[group] = collective
        if not collective.pending:
            waiting.pop(group, None)
        elif collective.nccl:
            waiting.setdefault(group, collective)
    if waiting:
        return last, next(iter(waiting.values()))
    return last, latest if latest is not None and latest.pending else None


def times_entered(recorded: Mapping[str, Any]) -> Entered:
    """When this rank entered each collective that its recorder still holds. Raises as `last_collectives`."""
    return {(each.group, each.number): created for created, each in _collectives(recorded) if created}


def all_entered(recorded: Mapping[str, Any]) -> dict[str, Collective]:
    """What this rank's recorder still holds, by its `key`. Raises as `last_collectives`."""
    return {each.key: each for _, each in _collectives(recorded)}


def _collectives(recorded: Mapping[str, Any]) -> list[tuple[int, Collective]]:
    """Those of all recorders with the time of each, in order. Older forms lack the time; then their order counts."""
    entries = [entry for each in recorded.get("recorders") or () for entry in each["entries"]]
    timed = sorted(((entry.get("time_created_ns") or 0, entry) for entry in entries), key=lambda each: each[0])
    return [(created, collective) for created, entry in timed if (collective := _collective(entry)) is not None]


def _collective(entry: Mapping[str, Any]) -> Collective | None:
    number = entry.get("collective_seq_id")
    if not isinstance(number, int) or entry.get("is_p2p"):
        return None
    operation = str(entry.get("profiling_name") or "")
    names = entry.get("process_group") or ("", "")
    frames = (Frame(str(each["filename"]), each["line"], str(each["name"])) for each in entry.get("frames") or ())
    return Collective(
        # Each library of a group counts its own collectives.
        f"{operation.partition(':')[0]}:{names[0] if isinstance(names, list) else names}",
        number,
        operation,
        tuple(tuple(int(n) for n in size) for size in entry.get("input_sizes") or ()),
        tuple(str(kind) for kind in entry.get("input_dtypes") or ()),
        pending=entry.get("retired") is False and entry.get("state") != "completed",
        place=next((frame.place for frame in frames if frame.own), None),
    )
