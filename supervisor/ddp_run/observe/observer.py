"""Looks at the running ranks once a second, and closer when none of them makes progress.

Reads boards, /proc and the stacks that ranks write, and returns events. The decisions are made elsewhere:
`ddp_run.observe.stall_watch` says when to look closer, `ddp_run.observe.progress` what the looks mean.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from ddp_run.observe.boards import Boards
from ddp_run.observe.close_look import BETWEEN_LOOKS_S, CloseLook, GpuUse, LockFile, ProcessState
from ddp_run.observe.lateness import LateWatch, arrivals
from ddp_run.observe.movement import Movement, Seen, close_look
from ddp_run.observe.native_stack import NativeFrames
from ddp_run.observe.nccl_ras import NcclRas
from ddp_run.observe.picture import Gone, OtherNodes, Picture, explain_all
from ddp_run.observe.process_look import state
from ddp_run.observe.progress import Stall, come_apart
from ddp_run.observe.stall_watch import EARLY_S, LOOK_S, Due, RankLook, Watch
from ddp_run.observe.waited_paths import WaitedPaths, completed
from ddp_run.record.events import (
    SAMPLE_S,
    Event,
    MonotonicNs,
    ProgressSampled,
    Rank,
    RankStarted,
    StallEnded,
    StallSeen,
)
from ddp_run.values.helper_process import HelperProcesses

_RAS_S = 0.2
"""How often to look whether NCCL's RAS has answered."""
_FLIGHT_S = 0.6
"""How long a rank gets to write its flight recorder's entries."""
_OTHERS_S = 6.0
"""How long other nodes get to show their ranks: they notice the same stall within a second or two."""
_SECOND = 1_000_000_000


@final
class Observer:
    """One start of the ranks of this node.

    `boards`: folders that may hold their boards; `folder`: the attempt's; `environ`: the agent's, which the ranks
    inherit (reading theirs takes a lock that a rank may hold forever); `helpers`: gets the processes started here;
    `others`: the job's other nodes, if they can be asked; `end_after_s`: as in `Watch`.
    """

    def __init__(
        self,
        boards: Sequence[Path],
        run_folder: Path,
        folder: Path,
        environ: Mapping[str, str],
        helpers: HelperProcesses,
        others: OtherNodes | None = None,
        end_after_s: float | None = None,
    ) -> None:
        self.boards = Boards(boards, run_folder)
        self._watch = Watch(end_after_s)
        self._closer: Generator[float, None, list[Event]] | None = None
        """A closer look in progress: gives the seconds until each next turn, and ends with its events."""
        self._is_early = False
        self._at = MonotonicNs(0)
        """When the current look began."""
        self.stall: Stall | None = None
        """The stall that was reported last, while it lasts."""
        self._told: set[tuple[object, ...]] = set()
        """Keys of the current stall that were reported."""
        self._others = others
        self._shares = False
        """The other nodes have this node's picture of the current stall."""
        self._withheld: tuple[Stall, MonotonicNs] | None = None
        """What this node alone knows of it, and when that is reported unless all nodes together know more."""
        self._says_little: dict[Rank, int] = {}
        """The pids of ranks whose Python frames did not show why they stand still."""
        self._movement = Movement()
        self._alive: Sequence[RankStarted] = ()
        self._left_at: dict[Rank, int] = {}
        self._sampled_at = 0
        self._sampled: ProgressSampled | None = None
        self._compare_at = 0
        self._late_watch = LateWatch()
        self._answered = self._question
        """The last question of other nodes, who is late, that was answered."""
        self._gpus: Sequence[GpuUse] = ()
        self.paths = WaitedPaths(helpers)
        """The paths and lock files that ranks wait for."""
        self._native = NativeFrames(helpers)
        self._ras = NcclRas(environ, folder, helpers)

    def close(self) -> None:
        """Stop looking, and end what is still under way."""
        self._give_up()
        self._native.end()
        self.boards.close()

    def stalled_s(self, at: MonotonicNs) -> float:
        """Seconds since any rank made progress, or since any worked if none is known to wait. 0 before any progress."""
        since = self._watch.since
        if not since:
            return 0.0
        if self.stall is not None and not self.stall.waiting:
            since = MonotonicNs(max([since, *map(self._movement.last, self._alive)]))
        return (at - since) / _SECOND

    @property
    def looks_closer(self) -> bool:
        """Whether a closer look is under way."""
        return self._closer is not None

    def look(
        self, at: MonotonicNs, alive: Sequence[RankStarted], left: Sequence[Rank], gpus: Sequence[GpuUse] = ()
    ) -> tuple[list[Event], float]:
        """Events, and the seconds after which to look again. `left`: ranks that exited with 0."""
        self._at, self._gpus, self._alive = at, gpus, alive
        self._left_at = {rank: self._left_at.get(rank, at) for rank in left}
        self.boards.open(alive)
        if not self._watch.joined or at - self._watch.since > EARLY_S * _SECOND:
            self._movement.sample(at, alive)
        events: list[Event] = []
        before = self._watch.since
        due = self._watch.look(at, [*map(self._shown, alive), *(RankLook(rank, left=True) for rank in left)])
        if self._watch.since > before:
            self._give_up()
            self._movement.progressed()
            self._told.clear()
            self._withheld = None
            if self._shares and self._others is not None:
                self._others.share(None)
                self._shares = False
            if self.stall is not None:
                self.stall = None
                self._native.end()
                moved_at = self._watch.since if self._watch.joined else at
                events.append(StallEnded(at, (moved_at - before) / _SECOND))
        events += self._sample(at)
        if self._question not in (None, self._answered):
            self._answered = self._question
            self._ask_who_is_late(at)
        events += self._native.take(at)
        events += self._of_all_nodes()
        if self._native.holds_one or (due is Due.EARLY and self.boards.use_nccl):
            due = None
        if due is not None and (self._closer is None or (self._is_early and due is Due.CLOSER)):
            self._is_early = due is Due.EARLY
            self._closer = self._look_closer(self._watch.since, early=self._is_early)
        if self._closer is None:
            return [*events, *self._compare(at)], LOOK_S
        try:
            return events, next(self._closer)
        except StopIteration as judged:
            self._closer = None
            return [*events, *judged.value], LOOK_S

    def _shown(self, event: RankStarted) -> RankLook:
        board = self.boards.get(event.rank)
        look = board.look() if board is not None else RankLook(event.rank)
        return replace(look, worked_at=self._movement.last(event))

    def _sample(self, at: MonotonicNs) -> list[Event]:
        if at - self._sampled_at < SAMPLE_S * _SECOND:
            return []
        sample = self.boards.progress(at)
        if sample is None or (self._sampled is not None and replace(sample, at=self._sampled.at) == self._sampled):
            return []
        self._sampled_at, self._sampled = at, sample
        if self._question is None:
            self._ask_who_is_late(at)
        return [sample]

    @property
    def _question(self) -> int | None:
        """The number of the last question of other nodes, who is late; None if they don't ask."""
        return self._others.question if self._others is not None else None

    def _ask_who_is_late(self, at: MonotonicNs) -> None:
        trains = any(board.look().phase == "training" for board in self.boards)
        if trains and self.stall is None and self._closer is None and not self.boards.use_nccl:
            self.boards.ask_for_flights()
            self._compare_at = at + round(_FLIGHT_S * _SECOND)

    def _compare(self, at: MonotonicNs) -> list[Event]:
        """The rank that is late, once the flight recorders' entries have come. If other nodes ask, they compare."""
        if not 0 < self._compare_at <= at:
            return []
        self._compare_at = 0
        step_s = self._watch.step_s
        entered = {board.rank: board.entered() for board in self.boards}
        if self._others is not None and self._question is not None:
            self._others.answer(arrivals(entered, step_s))
            return []
        late = self._late_watch.compare(entered, step_s)
        return [] if late is None else [late.seen(at, step_s)]

    # --------------------------------------------------------------------------------- a closer look

    def _look_closer(self, since: MonotonicNs, *, early: bool) -> Generator[float, None, list[Event]]:
        """Ask for stacks, read them, wait, ask again, read again, judge.

        An early look first asks for the flight recorders, and ends if they show nothing.
        """
        self.boards.ask_for_flights()
        if early:
            yield _FLIGHT_S
            if not self._apart():
                return []
        elif self.boards.use_nccl:
            self._ras.ask()
        yield from self.boards.ask_for_stacks(self._alive, lambda: self._at)
        first, first_at = self.boards.seen(self._alive), self._at
        looks = (look for _, look in first.values())
        self.paths.ask(looks, self._lock_files(first), {event.pid: event.rank for event in self._alive})
        yield BETWEEN_LOOKS_S
        yield from self.boards.ask_for_stacks(self._alive, lambda: self._at)
        while not self._ras.over():
            yield _RAS_S
        return self._judge(since, first, first_at, early=early)

    def _lock_files(self, first: Mapping[Rank, Seen]) -> dict[str, list[int]]:
        """The lock files that ranks wait for: path and waiting pids."""
        found: dict[str, list[int]] = {}
        for event in self._alive:
            stack = first[event.rank][0]
            if stack is not None and stack.lock_file is not None:
                found.setdefault(stack.lock_file, []).append(event.pid)
        return found

    def _give_up(self) -> None:
        """Give up the closer look."""
        self._closer = None
        self._ras.end()
        self.paths.end()

    def _apart(self) -> bool:
        """Whether the flight recorders or a stopped rank call for a closer look."""
        stopped = [event.rank for event in self._alive if state(event.pid) is ProcessState.STOPPED]
        return come_apart({board.rank: board.flight()[1] for board in self.boards}, stopped)

    def _judge(
        self, since: MonotonicNs, first: Mapping[Rank, Seen], first_at: MonotonicNs, *, early: bool
    ) -> list[Event]:
        at = self._at
        self.paths.end()
        second = self.boards.seen(self._alive)
        ranks = {event.pid: event.rank for event in self._alive}
        looks = []
        for event in self._alive:
            stack, process = second[event.rank]
            seen = stack, completed(process, self.paths.known)
            look = close_look(event.rank, first.get(event.rank), seen, (at - first_at) / _SECOND, ranks)
            if look.works:
                self._movement.moved(event.pid, at)
            looks.append(self._with_more(look, event, seen))
        world_size = max((event.world_size for event in self._alive), default=0)
        ras = self._ras.says(at, self._alive, world_size)
        left = tuple(Gone(rank, (at - left_at) / _SECOND) for rank, left_at in self._left_at.items())
        quiet_s, joined = (at - since) / _SECOND, self._watch.joined
        picture = Picture(tuple(looks), left, quiet_s, joined, world_size, ras.missing)
        stall = explain_all([(picture, 0.0)], at, self._gpus)
        if stall is None and self.stall is not None and not self.stall.waiting:
            self.stall = None  # the rank works again: that isn't a step, but no reason to end the job either
        pids = {event.rank: event.pid for event in self._alive}
        self._says_little = {look.rank: pids[look.rank] for look in looks if look.says_little}
        if self._others is not None and not early and world_size > len(looks) + len(left):
            self._shares = self._others.share(picture)
        if stall is None or (early and not stall.certain):
            return list(ras.notes)
        self.stall = replace(stall, quotes=(*stall.quotes, *ras.quotes))
        if not self._shares:
            return [*ras.notes, *self._report(self.stall)]
        self._withheld = self.stall, MonotonicNs(at + round(_OTHERS_S * _SECOND))
        return list(ras.notes)

    def _of_all_nodes(self) -> list[Event]:
        """What all nodes together show of the current stall, else after a while what this node alone does."""
        if not self._shares or self._others is None:
            return []
        stall = self._others.stall_of_all
        if stall is not None:
            self.stall, self._withheld = stall, None
            return self._report(stall)
        if self._withheld is None or self._at < self._withheld[1]:
            return []
        (alone, _until), self._withheld = self._withheld, None
        return self._report(alone)

    def _report(self, stall: Stall) -> list[Event]:
        """The event about it, unless there was one."""
        if stall.key in self._told:
            return []
        self._told.add(stall.key)
        little = self._says_little
        self._native.want({rank: pid for rank, pid in little.items() if not stall.waiting or rank in stall.culprits})
        told = (stall.cause, stall.hung, stall.said, stall.culprits, stall.waiting, self._watch.since, stall.quotes)
        return [StallSeen(self._at, *told)]

    # ------------------------------------------------------------------------------ more of each rank

    def _with_more(self, look: CloseLook, event: RankStarted, seen: Seen) -> CloseLook:
        """The look with what the rank's board and flight recorder say and for how long it has stood still."""
        at = self._at
        since = self._movement.stands_since(look.rank, seen, at, at - round(look.apart_s * _SECOND))
        still_s = 0.0 if look.works else (at - since) / _SECOND
        look = replace(look, still_s=still_s, idle_s=(at - self._movement.last(event)) / _SECOND)
        board = self.boards.get(look.rank)
        if board is None:
            return replace(look, unseen=True)
        path = look.stack.lock_file if look.stack is not None else None
        last, current, history = board.collectives()
        shown = board.look()
        return replace(
            look,
            lock_file=self.paths.lock_files.get(path, LockFile(path)) if path is not None else None,
            last=last,
            current=current,
            history=history,
            silent=board.is_silent(at),
            steps=shown.steps,
            collectives=shown.collectives,
        )
