"""What the ranks of a stall do, in lines to be quoted: how far each has come, their GPUs, the end of a stack. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddp_run.observe.close_look import CloseLook, GpuUse
from ddp_run.observe.stack_text import Stack
from ddp_run.record.events import Rank
from ddp_run.values.words import named_ranks

_STACK_LINES = 5
_MOST_GROUPS = 5


def _apart_by(looks: Sequence[CloseLook], shown: Callable[[CloseLook], str | None]) -> str:
    """`rank 1 12, ranks 0,2 13`: what each shows, those alike together; empty where nobody shows anything."""
    alike: dict[str, list[CloseLook]] = {}
    for each in looks:
        word = shown(each)
        if word is not None:
            alike.setdefault(word, []).append(each)
    groups = sorted(alike.items(), key=lambda pair: (len(pair[1]), pair[1][0].rank))
    words = [f"{named_ranks(ranks_of(members))} {word}" for word, members in groups[:_MOST_GROUPS]]
    return ", ".join(words + ["…"] * (len(groups) > _MOST_GROUPS))


def numbers(looks: Sequence[CloseLook]) -> list[str]:
    """How far each has come, where they differ, and how much of a core each uses."""
    lines = []
    if len({each.steps for each in looks}) > 1:
        lines.append(f"optimizer steps so far: {_apart_by(looks, lambda each: str(each.steps))}")
    groups = [group for group in looks[0].last if all(group in each.last for each in looks)] if looks else []
    if groups and len({each.last[groups[0]].number for each in looks}) > 1:

        def entered(look: CloseLook) -> str:
            last = look.last[groups[0]]
            return f"{last.number} ({last.name})"

        lines.append(f"last collective entered: {_apart_by(looks, entered)}")
    if any(each.second is not None for each in looks):
        lines.append(f"CPU: {_apart_by(looks, lambda each: f'{10 * round(10 * each.cpu_s / each.apart_s)} %')}")
    return lines


def busy(gpus: Sequence[GpuUse]) -> list[str]:
    """`GPU 0 at 100 % (rank 0), GPU 1 at 0 % (rank 1)`."""
    if not gpus:
        return []
    shares = []
    for number, share in sorted({(each.gpu, each.busy) for each in gpus}):
        ranks = sorted({each.rank for each in gpus if each.gpu == number})
        shares.append(f"GPU {number} at {share} % ({named_ranks(ranks)})")
    assumed = "" if all(each.sure for each in gpus) else " (GPUs assumed from local ranks)"
    return [", ".join(shares) + assumed]


def end_of(stack: Stack) -> list[str]:
    """The innermost lines of a stack, and those of the user's own code."""
    first = next((index for index, frame in enumerate(stack.frames) if frame.own), 0)
    lines = [frame.printed for frame in stack.frames]
    if first < _STACK_LINES - 1:
        return lines[:_STACK_LINES]
    return [*lines[:2], "  …", *lines[first : first + 2]]


def ranks_of(looks: Sequence[CloseLook]) -> tuple[Rank, ...]:
    """Whose looks they are, in order."""
    return tuple(sorted(each.rank for each in looks))
