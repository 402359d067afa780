"""Describes the ranks of a stall in words and in lines to quote: their progress, the end of a stack. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from ddp_run.observe.close_look import INPUT, CloseLook, GpuUse, ProcessState
from ddp_run.observe.stack_text import Doing, Stack
from ddp_run.record.events import Rank
from ddp_run.values.words import conjugated, named_ranks

_STACK_LINES = 5
_MOST_GROUPS = 5


def alike(looks: Sequence[CloseLook], shown: Callable[[CloseLook], str]) -> dict[str, list[CloseLook]]:
    """The looks that show the same, by what they show."""
    found: dict[str, list[CloseLook]] = {}
    for each in looks:
        found.setdefault(shown(each), []).append(each)
    return found


def _apart_by(looks: Sequence[CloseLook], shown: Callable[[CloseLook], str]) -> str:
    """`rank 1 12, ranks 0,2 13`: what each rank shows, equal ones together."""
    groups = sorted(alike(looks, shown).items(), key=lambda pair: (len(pair[1]), pair[1][0].rank))
    words = [f"{named_ranks(ranks_of(members))} {word}" for word, members in groups[:_MOST_GROUPS]]
    return ", ".join(words + ["…"] * (len(groups) > _MOST_GROUPS))


def numbers(looks: Sequence[CloseLook]) -> list[str]:
    """How far each rank has come, if they differ, and how much of a core each uses."""
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


def to_remove(looks: Sequence[CloseLook]) -> list[str]:
    """A command for each lock file that no process seems to hold anymore."""
    paths = dict.fromkeys(path for each in looks if (path := each.left_behind) is not None)
    return [f"if no build is running elsewhere, remove it: rm {shlex.quote(path)}" for path in paths]


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
    """Their ranks, sorted."""
    return tuple(sorted(each.rank for each in looks))


def groups(looks: Sequence[CloseLook]) -> str:
    """`rank 0 is saving at train.py:88 in save; ranks 1-2 stand at …`."""
    members = alike(looks, what).values()
    return "; ".join(f"{named_ranks(ranks_of(each))} {what(each[0], len(each))}" for each in members)


def what(look: CloseLook, count: int = 1) -> str:
    """`waits for a lock at train.py:88 in step`, conjugated for `count` ranks."""
    words = conjugated(_does(look), count)
    return words + (f" at {look.place}" if look.place else "")


def _does(look: CloseLook) -> str:
    on = f": {look.waits_on}" if look.waits_on else ""
    if look.state is ProcessState.STOPPED:
        return "is stopped"
    if look.state is ProcessState.TRACED:
        return "is held by a tracer"
    if look.state is ProcessState.DISK and not look.works:
        return f"waits in the kernel (state D){on}"
    doing = look.doing
    if look.waits_on == INPUT and doing in (None, Doing.RUNNING):
        return "waits for input"
    if look.child is not None and not look.works:
        return f"waits for a child process {look.child}"
    if doing is Doing.LOCK_FILE and look.lock_file is not None and not look.works:
        return f"waits for the lock file {look.lock_file.said}"
    if doing is Doing.COLLECTIVE and look.operation:
        return f"waits in {look.operation}"
    if doing is None or (doing is Doing.RUNNING and not look.works):
        return _stands(look)
    holds = " and holds the GIL" if doing is Doing.RUNNING and look.silent else ""
    return doing + holds + ("" if look.works or doing in (Doing.LOCK, Doing.DEBUGGER) else on)


def _stands(look: CloseLook) -> str:
    """What a rank does whose stack shows only where it is, or that has no stack."""
    if look.works:
        return "works" if look.unseen else "shows no stack"
    if look.naps or look.asleep:
        return "sleeps in a loop" if look.naps else "sleeps"
    if look.waits_on:
        return f"is blocked: {look.waits_on}"
    if look.on_lock:
        return "waits for a lock or a thread"
    return "is blocked" if look.doing is not None or look.unseen else "shows no stack"
