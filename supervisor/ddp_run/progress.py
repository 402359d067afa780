"""From what the ranks show of themselves to who waits for whom: when to look closer, and what a closer look says. Pure.

A job makes progress while any rank's phase, steps or count of collectives changes. Where none does, `Watch` asks for a
closer look; two looks at the stacks, a few seconds apart, tell a rank that stands still from one that works. What only
takes long is said as what it is and never called a hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from ddp_run.events import MonotonicNs, Rank
from ddp_run.lines import rank_list
from ddp_run.stack_text import Doing, Stack

LOOK_S = 1.0
"""How often boards are read."""
PATIENCE_S = 15.0
"""Without progress for this long, or for STEPS_OF_PATIENCE times the usual step, a closer look is taken."""
STEPS_OF_PATIENCE = 3.0
BETWEEN_LOOKS_S = 2.0
"""Time between the two looks at the stacks."""
AGAIN_S = 30.0
"""When to look again while nothing changes."""
_SLOW_S = 120.0
"""Saving, loading, data and network may stand still this long, without a byte moved, before it is called a hang."""
_BUSY = 0.2
"""CPU seconds per second from which a process counts as working."""
_SECOND = 1_000_000_000
_KEPT = 64


class ProcessState(StrEnum):
    """As in /proc/PID/stat."""

    RUNNING = "R"
    SLEEPING = "S"
    DISK = "D"
    STOPPED = "T"
    TRACED = "t"
    GONE = "X"


@dataclass(frozen=True, slots=True)
class RankLook:
    """What a rank's board shows. `left`: it ended with 0."""

    rank: Rank
    phase: str | None = None
    phase_at: int = 0
    steps: int = 0
    step_at: int = 0
    collectives: int = 0
    collective_at: int = 0
    left: bool = False

    @property
    def progress_at(self) -> int:
        """When it last did anything that counts."""
        return max(self.phase_at, self.step_at, self.collective_at)


@dataclass(frozen=True, slots=True)
class Collective:
    """The last collective that a rank entered, from torch's flight recorder. `group` is the process group's name."""

    group: str
    number: int
    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """`all_reduce of [4, 8]`."""
        shown = ", ".join(str(list(size)) for size in self.sizes[:2])
        return f"{self.operation.rpartition(':')[2]}{f' of {shown}' if shown else ''}"


@dataclass(frozen=True, slots=True)
class CloseLook:
    """One rank, looked at twice. CPU in seconds and bytes of input and output between the two."""

    rank: Rank
    state: ProcessState
    first: Stack | None = None
    second: Stack | None = None
    cpu_s: float = 0.0
    io_bytes: int = 0
    apart_s: float = BETWEEN_LOOKS_S
    last: Mapping[str, Collective] = field(default_factory=dict)
    """The last collective in each process group."""
    waits_on: str | None = None
    """What the kernel says it waits for (wchan), or the file, where that is known."""

    @property
    def doing(self) -> Doing | None:
        """What its main thread does, null without a stack."""
        stack = self.second or self.first
        return stack.doing if stack else None

    @property
    def works(self) -> bool:
        """Whether it does anything: takes CPU time, moves bytes, or stands elsewhere than before."""
        moved = self.first is not None and self.second is not None and self.first.frames != self.second.frames
        return self.cpu_s >= _BUSY * self.apart_s or self.io_bytes > 1 << 20 or moved

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.doing in (Doing.COLLECTIVE, Doing.MEETING) or (self.doing is Doing.BACKWARD and not self._computes)

    @property
    def _computes(self) -> bool:
        return self.cpu_s >= _BUSY * self.apart_s

    @property
    def place(self) -> str | None:
        """Where in the user's code it stands."""
        stack = self.second or self.first
        return stack.users.place if stack and stack.users else None


@dataclass(frozen=True, slots=True)
class Stall:
    """What is known of a job that makes no progress.

    `hung`: nothing that is known to end by itself; else it only takes long. `culprits` are the ranks that the others
    wait for; empty where that cannot be told. `cause` is a name of the catalogue.
    """

    cause: str
    hung: bool
    said: str
    culprits: tuple[Rank, ...] = ()
    waiting: tuple[Rank, ...] = ()
    since: MonotonicNs | None = None
    quotes: tuple[str, ...] = ()


@dataclass
class Watch:
    """When to take a closer look. Fed once a second; keeps only what it needs for that."""

    _seen_at: int = 0
    _steps: dict[Rank, tuple[int, int]] = field(default_factory=dict)
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _asked_at: int = 0
    _paused: int = 0
    _last_look: int = 0

    def look(self, at: int, ranks: Sequence[RankLook]) -> bool:
        """Whether a closer look is due now. `at` in nanoseconds of CLOCK_MONOTONIC."""
        if self._last_look and at - self._last_look > 10 * LOOK_S * _SECOND:
            self._seen_at = at  # this machine, or ddp-run, was suspended meanwhile
        self._last_look = at
        self._learn(ranks)
        moved = max((each.progress_at for each in ranks), default=0)
        if moved > self._seen_at:
            self._seen_at, self._asked_at = moved, 0
        if not any(each.phase in ("init", "after-init", "training", "shutdown") for each in ranks):
            return False
        if at - self._seen_at < self.patience_s * _SECOND:
            return False
        if self._asked_at and at - self._asked_at < AGAIN_S * _SECOND:
            return False
        self._asked_at = at
        return True

    @property
    def since(self) -> MonotonicNs:
        """When the last progress was."""
        return MonotonicNs(self._seen_at)

    @property
    def patience_s(self) -> float:
        """Seconds without progress after which a closer look is due."""
        usual = median(self._durations) if self._durations else 0.0
        return max(PATIENCE_S, STEPS_OF_PATIENCE * usual)

    def _learn(self, ranks: Sequence[RankLook]) -> None:
        for each in ranks:
            steps, step_at = self._steps.get(each.rank, (0, 0))
            if each.steps > steps > 0 and each.step_at > step_at:
                self._durations.append((each.step_at - step_at) / (each.steps - steps) / _SECOND)
            if each.steps != steps:
                self._steps[each.rank] = (each.steps, each.step_at)


# ---------------------------------------------------------------------------------------- a closer look


def explain(looks: Sequence[CloseLook], left: Sequence[Rank], since: MonotonicNs, at: MonotonicNs) -> Stall | None:
    """What two looks say. `left`: ranks that ended with 0. Null where nobody waits and nobody is stuck."""
    seconds = (at - since) / _SECOND
    stopped = [each for each in looks if each.state in (ProcessState.STOPPED, ProcessState.TRACED)]
    running = [each for each in looks if each not in stopped]
    if stopped and not running:
        return Stall("hang", False, f"all ranks are stopped (SIGSTOP), {seconds:.0f} s", since=since)
    waiting = [each for each in running if each.waits]
    others = [each for each in running if not each.waits]
    for found in (
        _stopped(stopped, waiting, seconds),
        _left(left, waiting, seconds),
        _elsewhere(others, waiting, seconds),
        _apart(waiting, seconds) if not others and not stopped else None,
        _alone(others, seconds) if not waiting else None,
    ):
        if found is not None:
            return _dated(found, since, looks)
    return None


def _dated(stall: Stall, since: MonotonicNs, looks: Sequence[CloseLook]) -> Stall:
    grouped: dict[str, list[Rank]] = {}
    for each in looks:
        what = f"{each.doing}" if each.doing else "shows no stack"
        where = f" at {each.place}" if each.place else ""
        grouped.setdefault(f"{what}{where}", []).append(each.rank)
    quotes = tuple(f"{_ranks(ranks)}: {text}" for text, ranks in sorted(grouped.items(), key=lambda item: len(item[1])))
    return Stall(stall.cause, stall.hung, stall.said, stall.culprits, stall.waiting, since, quotes)


def _stopped(stopped: Sequence[CloseLook], waiting: Sequence[CloseLook], seconds: float) -> Stall | None:
    if not stopped:
        return None
    who = [each.rank for each in stopped]
    traced = all(each.state is ProcessState.TRACED for each in stopped)
    how = "held by a tracer" if traced else "stopped (SIGSTOP)"
    said = f"{_ranks(who)} {_is(who)} {how}{_wait_for(waiting)}, {seconds:.0f} s"
    return Stall("hang", not traced, said, tuple(who), _of(waiting))


def _left(left: Sequence[Rank], waiting: Sequence[CloseLook], seconds: float) -> Stall | None:
    if not left or not waiting:
        return None
    said = f"{_ranks(left)} ended with exit code 0{_wait_for(waiting)}, {seconds:.0f} s"
    return Stall("peer-died", True, said, tuple(left), _of(waiting))


def _elsewhere(others: Sequence[CloseLook], waiting: Sequence[CloseLook], seconds: float) -> Stall | None:
    """Some wait; the others are somewhere else: those are what is waited for."""
    if not others or not waiting:
        return None
    who = [each.rank for each in others]
    works = [each for each in others if each.works]
    one = others[0]
    slow = all(each.doing in _SLOW for each in others)
    hung = not works and not (slow and seconds < _SLOW_S) and all(each.doing not in _PATIENT for each in others)
    what = _what(one)
    stands = "" if works or slow else " and does not move"
    said = f"{_ranks(who)} {what}{stands}{_wait_for(waiting)}, {seconds:.0f} s"
    return Stall("hang", hung, said, tuple(who), _of(waiting))


def _what(look: CloseLook) -> str:
    doing = look.doing or "shows no stack"
    if look.state is ProcessState.DISK:
        on = f" for {look.waits_on}" if look.waits_on else ""
        return f"waits in the kernel (state D){on}" + (f" at {look.place}" if look.place else "")
    return f"{'stands' if doing is Doing.RUNNING and not look.works else doing}" + (
        f" at {look.place}" if look.place else ""
    )


_SLOW = (Doing.SAVING, Doing.LOADING, Doing.DATA, Doing.FETCHING, Doing.PROCESS)
_PATIENT = (Doing.COMPILING, Doing.DEBUGGER)


def _apart(waiting: Sequence[CloseLook], seconds: float) -> Stall | None:
    """All wait for each other: in different collectives, or one has entered fewer."""
    if len(waiting) < 2:
        return None
    meeting = [each for each in waiting if each.doing is Doing.MEETING]
    if meeting and len(meeting) < len(waiting):
        who = [each.rank for each in waiting if each.doing is not Doing.MEETING]
        said = f"{_ranks(who)} {_is(who)} in a collective, the others still join the process group, {seconds:.0f} s"
        return Stall("hang", True, said, tuple(who), _of(meeting))
    return _mismatch(waiting, seconds) or _behind(waiting, seconds) or _places_apart(waiting, seconds)


def _mismatch(waiting: Sequence[CloseLook], seconds: float) -> Stall | None:
    """The same number in the same group, but another operation, shape or type."""
    for group in {name for each in waiting for name in each.last}:
        members = [each for each in waiting if group in each.last]
        numbers = {each.last[group].number for each in members}
        kinds: dict[Collective, list[Rank]] = {}
        for each in members:
            kinds.setdefault(each.last[group], []).append(each.rank)
        if len(numbers) == 1 and len(kinds) > 1:
            odd, who = min(kinds.items(), key=lambda item: (len(item[1]), -min(item[1])))
            usual, rest = max(kinds.items(), key=lambda item: (len(item[1]), -min(item[1])))
            said = f"{_ranks(who)} entered {odd.said}, {_ranks(rest)} {usual.said}, as collective {odd.number}"
            culprits = () if len(who) == len(rest) and len(kinds) == 2 and len(who) > 1 else tuple(who)
            return Stall("collective-mismatch", True, f"{said}, {seconds:.0f} s", culprits, tuple(rest))
    return None


def _behind(waiting: Sequence[CloseLook], seconds: float) -> Stall | None:
    """A rank has entered fewer collectives of a group: it waits in another group, or elsewhere."""
    for group in sorted({name for each in waiting for name in each.last}):
        numbers = {each.rank: each.last[group].number for each in waiting if group in each.last}
        low, high = min(numbers.values()), max(numbers.values())
        if low == high:
            continue
        who = [rank for rank, number in numbers.items() if number == low]
        ahead = [rank for rank, number in numbers.items() if number > low]
        look = next(each for each in waiting if each.rank == who[0])
        said = (
            f"{_ranks(who)} {_is(who)} behind: {low} collectives, {_ranks(ahead)} {high}; {_ranks(who)} {_what(look)}"
        )
        return Stall("hang", True, f"{said}, {seconds:.0f} s", tuple(who), tuple(ahead))
    return None


def _places_apart(waiting: Sequence[CloseLook], seconds: float) -> Stall | None:
    """All wait, at different lines: the few are named, the many are taken for right."""
    places: dict[str, list[Rank]] = {}
    for each in waiting:
        stack = each.second or each.first
        places.setdefault(f"{stack.operation if stack else ''} at {each.place}", []).append(each.rank)
    if len(places) == 1:
        place = next(iter(places)).strip()
        said = f"all ranks wait in {place} and none is missing: the network or a device, {seconds:.0f} s"
        return Stall("hang", True, said, (), _of(waiting))
    where, who = min(places.items(), key=lambda item: (len(item[1]), -min(item[1])))
    usual, rest = max(places.items(), key=lambda item: (len(item[1]), -min(item[1])))
    tied = len(who) == len(rest) and len(who) > 1
    said = f"{_ranks(who)} wait{'s' if len(who) == 1 else ''} in {where}, {_ranks(rest)} in {usual}"
    return Stall("hang", True, f"{said}, {seconds:.0f} s", () if tied else tuple(who), tuple(rest))


def _alone(others: Sequence[CloseLook], seconds: float) -> Stall | None:
    """Nobody waits for another rank: said only where nobody works either."""
    if not others or any(each.works for each in others):
        return None
    stuck = [each for each in others if each.doing not in _PATIENT]
    if not stuck:
        return None
    who = [each.rank for each in stuck]
    # Asleep in its own code, a program may be waiting for anything; a lock that nobody opens is another matter.
    hung = seconds >= _SLOW_S and all(each.doing is Doing.LOCK for each in stuck)
    return Stall("hang", hung, f"{_ranks(who)} {_what(stuck[0])} and does not move, {seconds:.0f} s", tuple(who))


def _wait_for(waiting: Sequence[CloseLook]) -> str:
    if not waiting:
        return ""
    stack = waiting[0].second or waiting[0].first
    operation = (stack.operation if stack else None) or ("backward" if waiting[0].doing is Doing.BACKWARD else None)
    where = f" in {operation}" if operation else ""
    return f"; {_ranks(_of(waiting))} wait{'s' if len(waiting) == 1 else ''}{where}"


def _of(looks: Sequence[CloseLook]) -> tuple[Rank, ...]:
    return tuple(each.rank for each in looks)


def _ranks(ranks: Sequence[Rank]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_list(list(ranks))}"


def _is(ranks: Sequence[Rank]) -> str:
    return "is" if len(ranks) == 1 else "are"
