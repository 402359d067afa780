"""Where the time of a run's ranks went, by its events, and what was lost with each failure. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

from ddp_run.record.events import (
    SAMPLE_S,
    AgentExited,
    AttemptEnded,
    AttemptStarted,
    CheckpointSeen,
    Event,
    HangTimedOut,
    PeerFailed,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    SignalReceived,
    StallEnded,
    StallSeen,
    StragglerSeen,
)
from ddp_run.values.lines import neutral
from ddp_run.values.signals import STOP_SIGNALS
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import duration_in_words

_SECOND = 1_000_000_000
_LEAST_TOLD_S = 1.0


@frozen
class RankSeconds:
    """Seconds of all ranks of this node together, by what they were spent on."""

    start: float = 0.0
    """From the agent's start to `init_process_group`; without that to the first optimizer step, or the end."""
    init: float = 0.0
    """From there to the end of the first optimizer step: the process group, the model, the first batch."""
    steps: float = 0.0
    """Optimizer steps, and what the program does between them."""
    other: float = 0.0
    """After `init_process_group` in a program that makes no optimizer step; all time of one that can't be watched."""
    waiting: float | None = None
    """Optimizer steps in which ranks waited for one that was reported as slow; null if none was."""
    stalled: float = 0.0
    """No rank made progress, and it seemed that none would."""
    after_failure: float = 0.0
    """From the first failure, or the signal to stop, to the end of each rank."""
    shutdown: float = 0.0
    """From `destroy_process_group`, or the program's end, to the end of the process."""
    between_attempts: float = 0.0


@frozen
class Lost:
    """Work that a failure threw away: what ranks of this node did after the last checkpoint that was written."""

    seconds: float
    """Of one rank; `rank_seconds`: of all together."""
    rank_seconds: float
    attempts: int
    """How many attempts lost it."""
    since: str | None
    """The checkpoint in the last of them; null: that one had written none."""


@frozen
class TimeSpent:
    """`ranks` of this node: the most that ran at a time. `lost`: null if nobody knows when checkpoints were written."""

    ranks: int
    rank_seconds: RankSeconds
    lost: Lost | None = None

    @property
    def lost_words(self) -> str | None:
        """`lost 14m02s of 8 ranks since checkpoint step_4000.pt`; None if nothing was, or it's unknown."""
        lost = self.lost
        if lost is None or lost.seconds < _LEAST_TOLD_S:
            return None
        took = duration_in_words(lost.seconds)
        whose = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        if lost.attempts > 1:
            return f"lost {took} of {whose} in {lost.attempts} attempts"
        since = ", as no checkpoint was written" if lost.since is None else f" since checkpoint {_end_of(lost.since)}"
        return f"lost {took} of {whose}{since}"


def _end_of(path: str) -> str:
    """A checkpoint is a file, or a folder with files of the same names in each."""
    return neutral("/".join(path.rsplit("/", 2)[-2:]))


def time_spent(events: Sequence[Event]) -> TimeSpent | None:
    """Where the time went, up to the last event. None if no rank of this node has started."""
    account = _Account()
    for event in events:
        account.take(event)
    return account.result()


@final
@dataclass(slots=True)
class _Life:
    """A rank in one start: stamps of what it did, in ns."""

    begin: int
    watched: bool = False
    """It reports its phases."""
    phases: dict[str, int] = field(default_factory=dict)
    """When it entered each phase first."""
    done: int | None = None
    """Its program ended with 0."""
    end: int | None = None

    def parts(self, end: int) -> Iterator[tuple[str, int, int]]:
        """Its time until `end`: what it was spent on, from, to."""
        training = self.phases.get("training")
        marks = (
            ("start" if self.watched else "other", self.begin),
            ("init", self.phases.get("init")),
            ("other", self.phases.get("after-init") if training is None else None),
            ("steps", training),
            ("shutdown", self.phases.get("shutdown", self.done)),
        )
        known = [(what, at) for what, at in marks if at is not None and at <= end]
        for (what, begin), (_next, until) in pairwise([*known, ("", end)]):
            yield what, begin, max(begin, until)


@dataclass(slots=True)
class _Start:
    """One start of this node's ranks, in an attempt or after the agent's restart."""

    lives: dict[Rank, _Life] = field(default_factory=dict)
    restart: int = 0
    failed: int | None = None
    stalls: list[tuple[int, int | None]] = field(default_factory=list)
    """From, to; the last one may last."""
    slow: list[tuple[int, int, tuple[Rank, ...], float]] = field(default_factory=list)
    """From, to; the slow rank; the share of a step that others wait for it."""
    checkpoint: CheckpointSeen | None = None


@final
class _Account:
    """Takes a run's events in order."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._start: _Start | None = None
        self._begin: int | None = None
        """When the attempt began."""
        self._ranks = 0
        self._before: tuple[int, int] | None = None
        """When the last rank of the attempt before ended, and how many it had."""
        self._lost: list[Lost | None] = []
        """Of each failure of ranks that had begun to train."""
        self._at = 0

    def take(self, event: Event) -> None:
        """The next event."""
        self._at = max(self._at, event.at)
        match event:
            case AttemptStarted():
                self._close()
                self._begin, self._start = event.at, _Start()
                if self._before is not None:
                    self._add("between_attempts", self._before[0], event.at, share=self._before[1])
                    self._before = None
            case AttemptEnded():
                self._close()
                self._start = None
            case RankStarted():
                self._rank_starts(event)
            case _ if self._start is not None:
                self._take(self._start, event)
            case _:
                pass

    def _rank_starts(self, event: RankStarted) -> None:
        start = self._start
        if start is None or self._begin is None:
            return
        begin = self._begin
        if event.restart > start.restart:
            ended = max((life.end or event.at for life in start.lives.values()), default=begin)
            self._close()
            self._start = start = _Start(restart=event.restart)
            self._begin = begin = ended
        life = start.lives.setdefault(event.rank, _Life(begin))
        life.watched = life.watched or event.watched
        self._ranks = max(self._ranks, len(start.lives))

    def _take(self, start: _Start, event: Event) -> None:
        match event:
            case RankPhase() if (life := self._life(start, event)) is not None:
                life.phases.setdefault(event.phase, event.at)
            case RankFinished() if (life := self._life(start, event)) is not None:
                life.done = event.at
            case RankExited() if (life := self._life(start, event)) is not None:
                life.end = event.at
                if event.code != 0:
                    self._fails(start, event)
            case RankFailed(restart=restart) if restart == start.restart:
                self._fails(start, event)
            case PeerFailed() | HangTimedOut():
                self._fails(start, event)
            case AgentExited() if event.code != 0:
                self._fails(start, event)
            case SignalReceived() if event.signum in STOP_SIGNALS:
                self._fails(start, event)
            case StallSeen() if event.hung and (not start.stalls or start.stalls[-1][1] is not None):
                start.stalls.append((event.since, None))
            case StallEnded() if start.stalls and start.stalls[-1][1] is None:
                start.stalls[-1] = start.stalls[-1][0], event.at
            case StragglerSeen() if event.step_s > 0:
                begin = event.at - round(SAMPLE_S * _SECOND)
                start.slow.append((begin, event.at, event.late, min(1.0, event.waited_s / event.step_s)))
            case CheckpointSeen():
                start.checkpoint = event
            case _:
                pass

    @staticmethod
    def _life(start: _Start, event: RankPhase | RankFinished | RankExited) -> _Life | None:
        return start.lives.get(event.rank) if event.restart == start.restart else None

    @staticmethod
    def _fails(start: _Start, event: Event) -> None:
        start.failed = event.at if start.failed is None else min(start.failed, event.at)

    # ------------------------------------------------------------------------------- the end of a start

    def _close(self) -> None:
        start = self._start
        if start is None or not start.lives:
            return
        lives = start.lives.values()
        for rank, life in start.lives.items():
            self._add_life(start, rank, life)
        self._before = max(life.end or self._at for life in lives), len(lives)
        trained = [life.phases["training"] for life in lives if "training" in life.phases]
        if start.failed is not None and trained:
            self._lost.append(_lost(start, start.failed, min(trained)))

    def _add_life(self, start: _Start, rank: Rank, life: _Life) -> None:
        end = life.end or self._at
        until = end if start.failed is None else max(life.begin, min(end, start.failed))
        for what, begin, part_end in life.parts(until):
            self._add(what, begin, part_end)
            for stall_begin, stall_end in start.stalls:
                self._move(what, "stalled", max(begin, stall_begin), min(part_end, stall_end or until))
            if what == "steps":
                for slow_begin, slow_end, late, share in start.slow:
                    counts = 0.0 if rank in late else share
                    self._move(what, "waiting", max(begin, slow_begin), min(part_end, slow_end), share=counts)
        self._add("after_failure", until, end)

    def _add(self, what: str, begin: int, end: int, *, share: float = 1.0) -> None:
        self._spent[what] = self._spent.get(what, 0.0) + share * max(0, end - begin) / _SECOND

    def _move(self, what: str, to: str, begin: int, end: int, *, share: float = 1.0) -> None:
        self._add(to, begin, end, share=share)
        self._add(what, begin, end, share=-share)

    def result(self) -> TimeSpent | None:
        """What all events so far show."""
        self._close()
        self._start = None
        if not self._ranks:
            return None
        spent = RankSeconds(**{what: round(seconds, 3) for what, seconds in self._spent.items()})
        known = [lost for lost in self._lost if lost is not None]
        if not known or len(known) < len(self._lost):
            return TimeSpent(self._ranks, spent)
        seconds, in_all = sum(lost.seconds for lost in known), sum(lost.rank_seconds for lost in known)
        losses = sum(lost.seconds > 0 for lost in known)
        return TimeSpent(self._ranks, spent, Lost(round(seconds, 3), round(in_all, 3), losses, known[-1].since))


def _lost(start: _Start, failed: int, trained: int) -> Lost | None:
    """What one failure cost. `trained`: when the first step of the ranks was done. None if it's unknown."""
    seen = start.checkpoint
    if seen is None:
        return None
    is_of_this_start = seen.written is not None and seen.written >= trained
    since = max(trained, seen.written) if is_of_this_start and seen.written is not None else trained
    lost_s = max(0, failed - since) / _SECOND
    return Lost(lost_s, lost_s * len(start.lives), 1, seen.path if is_of_this_start else None)
