"""Looks at the running ranks once a second, and closer when none of them makes progress.

Reads boards, /proc and the stacks that ranks write; decides nothing itself: `ddp_run.progress` does. What it learns
leaves as events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from ddp_run.boards import Board, ProcessLook, process
from ddp_run.events import Event, MonotonicNs, ProgressSampled, Rank, RankStarted, StallEnded, StallSeen
from ddp_run.progress import BETWEEN_LOOKS_S, LOOK_S, CloseLook, ProcessState, RankLook, Stall, Watch, explain
from ddp_run.stack_text import Stack

_STACKS_S = 0.2
"""How long a rank mostly takes to write its stacks, and how long it gets."""
_STACKS_AT_MOST_S = 0.8
_ANSWERING = (ProcessState.RUNNING, ProcessState.SLEEPING)
_SAMPLE_S = 60.0
"""How often the ranks' progress goes into the journal."""
_SECOND = 1_000_000_000


@dataclass(slots=True)
class _Closer:
    """A closer look in progress: what was seen at its first and second half. `step` counts its turns."""

    since: MonotonicNs
    step: int = 0
    asked_at: int = 0
    first: dict[Rank, tuple[Stack | None, ProcessLook]] = field(default_factory=dict)
    first_at: int = 0


@dataclass(frozen=True, slots=True)
class _Still:
    """How a rank stood at the end of a closer look, and since when it has stood so."""

    stack: Stack | None
    process: ProcessLook
    at: int
    since: int

    def same(self, other: _Still) -> bool:
        """Whether nothing has moved since; looking itself wakes a thread a few times and writes some kilobytes."""
        one, two, seconds = self.process, other.process, (other.at - self.at) / _SECOND
        frames = None if self.stack is None else self.stack.frames
        return (
            frames == (None if other.stack is None else other.stack.frames)
            and one.state == two.state
            and two.cpu_s - one.cpu_s < 0.02 * seconds + 0.1
            and two.io_bytes - one.io_bytes < 1 << 18
            and two.switches - one.switches < 0.4 * seconds + 4
        )


@final
class Observer:
    """One start of the ranks of this node. `boards`: the folder that holds their boards."""

    def __init__(self, boards: Path, run_folder: Path) -> None:
        self._boards_folder = boards
        self._run_folder = run_folder
        self._boards: dict[Rank, Board] = {}
        self._watch = Watch()
        self._closer: _Closer | None = None
        self._said: Stall | None = None
        self._still: dict[Rank, _Still] = {}
        self._sampled_at = 0
        self._sampled: ProgressSampled | None = None

    def forget(self, rank: Rank) -> None:
        """A rank has ended, or another one takes its place."""
        board = self._boards.pop(rank, None)
        if board is not None:
            board.close()

    def progress(self, at: MonotonicNs) -> ProgressSampled | None:
        """What the boards show now, as an event; null where there are none."""
        looks = [board.look() for board in self._boards.values()]
        if not looks:
            return None
        return ProgressSampled(
            at,
            tuple(look.rank for look in looks),
            tuple(look.phase or "" for look in looks),
            tuple(look.steps for look in looks),
            tuple(look.collectives for look in looks),
        )

    def stalled_s(self, at: MonotonicNs) -> float:
        """For how long nobody has made progress, where there was any."""
        since = self._watch.since
        return (at - since) / _SECOND if since else 0.0

    @property
    def stall(self) -> Stall | None:
        """What was said last of a job that still stands."""
        return self._said

    def look(self, at: MonotonicNs, alive: Sequence[RankStarted], left: Sequence[Rank]) -> tuple[list[Event], float]:
        """Events, and the seconds after which to look again. `left`: ranks that ended with 0."""
        self._open(alive)
        events: list[Event] = []
        looks = [board.look() for board in self._boards.values()]
        before = self._watch.since
        due = self._watch.look(at, [*looks, *(RankLook(rank, left=True) for rank in left)])
        if self._watch.since > before:
            self._still = {}
            if self._said is not None:
                events.append(StallEnded(at, (self._watch.since - before) / _SECOND))
                self._said = None
        events += self._sample(at)
        if self._closer is not None and self._closer.since != self._watch.since:
            self._closer = None
        if due and self._closer is None:
            self._closer = _Closer(self._watch.since)
        if self._closer is None:
            return events, LOOK_S
        more, after_s = self._look_closer(self._closer, at, alive, left)
        return [*events, *more], after_s

    def _open(self, alive: Sequence[RankStarted]) -> None:
        for event in alive:
            if event.rank not in self._boards:
                folder = self._run_folder / event.folder
                board = Board.open(self._boards_folder, event.restart, event.rank, event.pid, folder)
                if board is not None:
                    self._boards[event.rank] = board

    def _sample(self, at: MonotonicNs) -> list[Event]:
        if at - self._sampled_at < _SAMPLE_S * _SECOND:
            return []
        sample = self.progress(at)
        if sample is None or (self._sampled is not None and replace(sample, at=self._sampled.at) == self._sampled):
            return []
        self._sampled_at, self._sampled = at, sample
        return [sample]

    # --------------------------------------------------------------------------------- a closer look

    def _look_closer(
        self, closer: _Closer, at: MonotonicNs, alive: Sequence[RankStarted], left: Sequence[Rank]
    ) -> tuple[list[Event], float]:
        """Ask for stacks, read them, wait, ask again, read again, judge."""
        if closer.step in (1, 3) and at - closer.asked_at < _STACKS_AT_MOST_S * _SECOND and not self._answered(alive):
            return [], _STACKS_S / 2
        closer.step += 1
        match closer.step:
            case 1:
                self._ask(closer, at)
                for board in self._boards.values():
                    board.ask_for_flight()
                return [], _STACKS_S
            case 2:
                closer.first = self._seen(alive)
                closer.first_at = at
                return [], BETWEEN_LOOKS_S
            case 3:
                self._ask(closer, at)
                return [], _STACKS_S
            case _:
                self._closer = None
                return self._judge(closer, at, alive, left), LOOK_S

    def _ask(self, closer: _Closer, at: MonotonicNs) -> None:
        closer.asked_at = at
        for board in self._boards.values():
            board.ask_for_stacks()

    def _answered(self, alive: Sequence[RankStarted]) -> bool:
        """Whether all have written their stacks that can."""
        boards = [(self._boards.get(event.rank), event.pid) for event in alive]
        return all(
            board is None or board.stack() is not None or process(pid).state not in _ANSWERING for board, pid in boards
        )

    def _seen(self, alive: Sequence[RankStarted]) -> dict[Rank, tuple[Stack | None, ProcessLook]]:
        seen = {}
        for event in alive:
            board = self._boards.get(event.rank)
            seen[event.rank] = (board.stack() if board is not None else None, process(event.pid))
        return seen

    def _judge(
        self, closer: _Closer, at: MonotonicNs, alive: Sequence[RankStarted], left: Sequence[Rank]
    ) -> list[Event]:
        second = self._seen(alive)
        apart_s = (at - closer.first_at) / _SECOND
        looks = [_close_look(rank, closer.first.get(rank), seen, apart_s) for rank, seen in second.items()]
        looks = [self._with_more(look, second[look.rank], at) for look in looks]
        world_size = max((event.world_size for event in alive), default=0)
        stall = explain(looks, left, closer.since, at, world_size=world_size)
        if stall is None or (self._said is not None and _same(stall, self._said)):
            return []
        self._said = stall
        return [
            StallSeen(
                at,
                stall.cause,
                stall.hung,
                stall.said,
                stall.culprits,
                stall.waiting,
                closer.since,
                stall.quotes,
            )
        ]

    def _with_more(self, look: CloseLook, seen: tuple[Stack | None, ProcessLook], at: MonotonicNs) -> CloseLook:
        """With what its flight recorder says, and for how long it has stood."""
        still = _Still(seen[0], seen[1], at, at - round(look.apart_s * _SECOND))
        before = self._still.get(look.rank)
        if before is not None and before.same(still):
            still = replace(still, since=before.since)
        self._still[look.rank] = still
        look = replace(look, still_s=0.0 if look.works else (at - still.since) / _SECOND)
        board = self._boards.get(look.rank)
        if board is None:
            return look
        last, current = board.flight()
        return replace(look, last=last, current=current, silent=board.is_silent(at))


def _close_look(
    rank: Rank,
    first: tuple[Stack | None, ProcessLook] | None,
    second: tuple[Stack | None, ProcessLook],
    apart_s: float,
) -> CloseLook:
    before = first[1] if first is not None else second[1]
    ran = before.state is ProcessState.RUNNING and second[1].state is ProcessState.SLEEPING
    return CloseLook(
        rank=rank,
        state=ProcessState.RUNNING if ran else second[1].state,
        first=first[0] if first is not None else None,
        second=second[0],
        cpu_s=second[1].cpu_s - before.cpu_s,
        io_bytes=second[1].io_bytes - before.io_bytes,
        apart_s=max(apart_s, 0.1),
        waits_on=second[1].waits_on,
        on_lock=second[1].on_lock and before.on_lock,
        asleep=second[1].asleep,
    )


def _same(one: Stall, other: Stall) -> bool:
    """Whether nothing worth saying has changed; how long it lasts is not."""
    return (one.cause, one.hung, one.culprits, one.waiting) == (other.cause, other.hung, other.culprits, other.waiting)
