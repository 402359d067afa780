"""Where the ranks of another ddp-run are: by their boards and the stacks that they write, or the last they left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_run.observe.boards import Boards
from ddp_run.observe.close_look import CloseLook
from ddp_run.observe.movement import close_look
from ddp_run.observe.stack_text import Stack, dumps
from ddp_run.rank.board import is_private
from ddp_run.record import file_names
from ddp_run.record.events import Rank, RankStarted, RunStarted
from ddp_run.record.journal import now
from ddp_run.record.run_folder import open_run_file
from ddp_run.values.lines import neutral
from ddp_run.values.words import conjugated, named_ranks

_END_BYTES = 1 << 20
_SHOWN = (24, 12)
"""How many of the innermost and of the outermost frames are shown."""
_IMPORTS = '  File "<frozen importlib'


def boards_of(run: RunStarted, run_folder: Path, *, may_ask: bool) -> Boards:
    """The boards of a run on this host. Anybody can write a journal: only this user's private folders count."""
    return Boards([Path(each) for each in run.boards if _is_ours(each)], run_folder, may_ask=may_ask)


def look_now(run: RunStarted, run_folder: Path, alive: Sequence[RankStarted]) -> list[CloseLook]:
    """What each of these ranks does, and its stack. Takes 0.2 s, and one second if some rank doesn't answer."""
    with closing(boards_of(run, run_folder, may_ask=True)) as boards:
        boards.open(alive)
        before, asked_at = boards.seen(alive), now()
        for pause_s in boards.ask_for_stacks(alive, now):
            time.sleep(pause_s)
        after, apart_s = boards.seen(alive), (now() - asked_at) / 1e9
        ranks, looks = {event.pid: event.rank for event in alive}, []
        for rank, seen in sorted(after.items()):
            look = close_look(rank, (None, before[rank][1]), seen, apart_s, ranks)
            board = boards.get(rank)
            looks.append(replace(look, unseen=board is None, silent=board is not None and board.is_silent(now())))
    return looks


def _is_ours(folder: str) -> bool:
    try:
        return is_private(folder)
    except (OSError, ValueError):
        return False


# -------------------------------------------------------------------------------- what they left


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks with one stack. `said`: what they do, in words. `notes`: what else is known, such as native frames."""

    ranks: tuple[Rank, ...]
    said: str
    stack: Stack | None
    notes: tuple[str, ...] = ()


def recorded(folder: Path, starts: Iterable[RankStarted]) -> tuple[int, list[StackGroup]]:
    """When the last of these files was written (nanoseconds since the epoch), and each rank's last stack in them.

    The fewest ranks come first: they are mostly the ones that matter.
    """
    newest, found = 0, dict[tuple[str, ...], StackGroup]()
    for start in sorted(starts, key=lambda start: start.rank):
        for name in (file_names.STACKS, file_names.LIVE_STACKS):
            try:
                with open_run_file(folder / start.folder, name) as file:
                    status = os.fstat(file.fileno())
                    file.seek(max(0, status.st_size - _END_BYTES))
                    stacks = dumps(file.read(_END_BYTES).decode("utf-8", "replace"), None)
            except OSError:
                continue
            if stacks:
                newest, stack, key = max(newest, status.st_mtime_ns), stacks[-1], tuple(frames(stacks[-1]))
                ranks = (*found[key].ranks, start.rank) if key in found else (start.rank,)
                place = f" at {stack.users.place}" if stack.users else ""
                said = f"{named_ranks(ranks)} {conjugated(stack.doing, len(ranks))}{place}"
                found[key] = StackGroup(ranks, said, stack)
                break
    return newest, sorted(found.values(), key=lambda group: (len(group.ranks), group.ranks))


def frames(stack: Stack) -> list[str]:
    """All frames as lines, the innermost first."""
    return [neutral(frame.printed) for frame in stack.frames]


def shown_frames(stack: Stack) -> Iterator[str]:
    """A long stack without its middle, and without the frames of an import that Python's tracebacks leave out too."""
    lines = [line for line in frames(stack) if not line.startswith(_IMPORTS)]
    left_out = len(lines) - sum(_SHOWN)
    yield from lines if left_out <= 1 else (*lines[: _SHOWN[0]], f"  … {left_out} more", *lines[-_SHOWN[1] :])


def said_and_frames(folder: Path, starts: Iterable[RankStarted]) -> Iterator[tuple[str, list[str]]]:
    """What ranks did in their last recorded stacks, in words, each with the frames to show."""
    for group in recorded(folder, starts)[1]:
        if group.stack is not None:
            yield group.said, [*shown_frames(group.stack)]
