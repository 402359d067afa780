"""What a closer look shows of one node's ranks, and what those of several nodes show together. Pure.

The rank that all others wait for is mostly on one node, and its own look shows only a rank that does something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ddp_run.observe.close_look import CloseLook, GpuUse
from ddp_run.observe.lateness import Arrivals
from ddp_run.observe.progress import Stall, explain
from ddp_run.observe.ras_text import Missing
from ddp_run.observe.stack_text import Stack
from ddp_run.record.events import MonotonicNs, Rank

_SECOND = 1_000_000_000
_MOST_FRAMES = 40
"""Of a stack: what a thread does shows within them (`stack_text.Doing`)."""
_MOST_OTHERS = 8
_MOST_COLLECTIVES = 16


@dataclass(frozen=True, slots=True)
class Gone:
    """A rank that exited with 0, this many seconds before the look."""

    rank: Rank
    for_s: float


@dataclass(frozen=True, slots=True)
class Picture:
    """One node's ranks. `quiet_s`: for how long none of them had made progress. `joined`, `ras`: as in `explain`."""

    looks: tuple[CloseLook, ...] = ()
    left: tuple[Gone, ...] = ()
    quiet_s: float = 0.0
    joined: bool = True
    world_size: int = 0
    ras: Missing | None = None

    def for_others(self) -> Picture:
        """Short enough to be sent: a node with eight ranks takes some 60 kB."""
        return replace(self, looks=tuple(map(_short, self.looks)))


def _short(look: CloseLook) -> CloseLook:
    first, second = look.first, look.second
    if first is not None and second is not None and first.frames == second.frames:
        first = None  # it has not moved
    last = sorted(look.history.items(), key=lambda each: each[1].number)[-_MOST_COLLECTIVES:]
    return replace(look, first=_cut(first), second=_cut(second), history=dict(last))


def _cut(stack: Stack | None) -> Stack | None:
    if stack is None:
        return None
    others = tuple(frames[:_MOST_FRAMES] for frames in stack.others[:_MOST_OTHERS])
    return replace(stack, frames=stack.frames[:_MOST_FRAMES], others=others)


def explain_all(
    pictures: Sequence[tuple[Picture, float]], at: MonotonicNs, gpus: Sequence[GpuUse] = ()
) -> Stall | None:
    """What the pictures of nodes show, each with its age in seconds; None if no rank waits and none is stuck.

    `gpus`: of one node, as GPUs have the same numbers on all.
    """
    since_s = min(picture.quiet_s + age_s for picture, age_s in pictures)
    return explain(
        [look for picture, _ in pictures for look in picture.looks],
        {gone.rank: gone.for_s + age_s for picture, age_s in pictures for gone in picture.left},
        MonotonicNs(at - round(since_s * _SECOND)),
        at,
        world_size=max(picture.world_size for picture, _ in pictures),
        gpus=gpus,
        ras=next((picture.ras for picture, _ in pictures if picture.ras is not None), None),
        joined=any(picture.joined for picture, _ in pictures if picture.looks),
    )


class OtherNodes(Protocol):
    """Where what all nodes see is put together."""

    def share(self, picture: Picture | None) -> bool:
        """Give this node's, or take it back since its ranks make progress again. Whether there may be an answer."""

    @property
    def stall_of_all(self) -> Stall | None:
        """What the pictures of all nodes show, while all are there."""

    @property
    def question(self) -> int | None:
        """The number of the last question who is late, asked of all nodes at once. None: nobody asks."""

    def answer(self, arrivals: Arrivals) -> None:
        """Answer it."""
