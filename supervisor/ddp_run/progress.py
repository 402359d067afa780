"""From what the ranks show of themselves to who waits for whom: when to look closer, and what a closer look says. Pure.

A job makes progress while any rank's phase, steps or count of collectives changes. Where none does, `Watch` asks for a
closer look; two looks at the stacks, a few seconds apart, tell a rank that stands still from one that works. What only
takes long is said as what it is and never called a hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
BETWEEN_LOOKS_S = 1.6
"""Time between the two looks at the stacks."""
AGAIN_S = 30.0
"""When to look again while nothing changes."""
PATIENCE_LEFT_S = 5.0
"""The same once a rank has ended with 0: it does not come back."""
_SLOW_S = 120.0
"""What may end by itself (saving, data, network, a sleep) may stand this long before it is called a hang."""
STILL_S = 55.0
"""And its thread must have stood still, as far as was looked, for the last part of that."""
_STACK_LINES = 5
_BUSY = 0.2
"""CPU seconds per second from which a process counts as working."""
_SECOND = 1_000_000_000
_KEPT = 64


_ALIKE = frozenset({"all_reduce", "allreduce", "broadcast", "reduce"})
"""Operations whose tensors have the same shape and type on all ranks; others may differ (scatter, all_to_all)."""


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
    collectives: int = 0
    collective_at: int = 0
    left: bool = False

    @property
    def progress_at(self) -> int:
        """When it last did anything that counts, its steps apart: those carry no time."""
        return max(self.phase_at, self.collective_at)


@dataclass(frozen=True, slots=True)
class Collective:
    """The last collective that a rank entered, from torch's flight recorder. `group` is the process group's name."""

    group: str
    number: int
    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    pending: bool = False
    """It has not ended."""

    @property
    def name(self) -> str:
        """`all_reduce`."""
        return self.operation.rpartition(":")[2]

    @property
    def said(self) -> str:
        """`all_reduce of [4, 8]`."""
        shown = ", ".join(str(list(size)) for size in self.sizes[:2])
        return f"{self.name}{f' of {shown}' if shown else ''}"

    @property
    def kind(self) -> tuple[object, ...]:
        """What must be the same on all ranks."""
        return (self.name, self.sizes, self.types) if self.name in _ALIKE else (self.name,)


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
    current: Collective | None = None
    """The last collective that it entered, where that has not ended."""
    waits_on: str | None = None
    """What its main thread waits for in the kernel, where that can be read: `read of /data/x.bin`."""
    on_lock: bool = False
    """Its main thread waits for a lock (futex) without a time-out."""
    asleep: bool = False
    """Its main thread sleeps for a set time."""
    still_s: float = 0.0
    """For how long, over earlier looks, nothing of it has moved."""
    silent: bool = False
    """No Python thread of it has run lately: the interpreter's lock is held."""

    @property
    def stack(self) -> Stack | None:
        """Where it stands, null where it wrote no stack."""
        return self.second or self.first

    @property
    def doing(self) -> Doing | None:
        """What its main thread does, null without a stack."""
        if self.stack is None:
            return None
        doing = self.stack.doing
        if doing in (Doing.RUNNING, Doing.BACKWARD) and self.current is not None and not self._moved:
            return Doing.COLLECTIVE
        if doing is Doing.BACKWARD and self._computes:
            return Doing.RUNNING
        return doing

    @property
    def works(self) -> bool:
        """Whether it does anything: takes CPU time, moves bytes, or stands elsewhere than before."""
        return self._computes or self.io_bytes > 1 << 20 or self._moved

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.doing in (Doing.COLLECTIVE, Doing.MEETING, Doing.BACKWARD)

    @property
    def patient(self) -> bool:
        """Whether it is in what is never called a hang."""
        return self.doing in (Doing.COMPILING, Doing.DEBUGGER)

    @property
    def stuck(self) -> bool:
        """Whether it stands, in what does not end by itself as far as can be told.

        At once only in a lock that no time-out opens, with no thread that brings something from outside. All else
        (a file, a process, the network, a sleep, what cannot be read) is waited for.
        """
        if self.works or self.patient or (self.stack is None and self.state is not ProcessState.DISK):
            return False
        return self.deadlocked or self.still_s >= STILL_S

    @property
    def deadlocked(self) -> bool:
        """Whether its main thread waits for a lock that nobody seems about to open."""
        if self.stack is None or not self.on_lock or self.state is ProcessState.DISK or self.stack.helped:
            return False
        return self.doing is Doing.LOCK or (self.doing is Doing.RUNNING and self.stack.in_users_code)

    @property
    def _computes(self) -> bool:
        # On a crowded machine a thread that wants to run gets little time: then its state tells.
        return self.state is ProcessState.RUNNING or self.cpu_s >= _BUSY * self.apart_s

    @property
    def _moved(self) -> bool:
        return self.first is not None and self.second is not None and self.first.frames != self.second.frames

    @property
    def place(self) -> str | None:
        """Where in the user's code it stands."""
        return self.stack.users.place if self.stack and self.stack.users else None

    @property
    def operation(self) -> str | None:
        """The collective that it waits in."""
        named = self.stack.operation if self.stack else None
        if named is None and self.stack is not None and self.stack.doing is Doing.BACKWARD:
            return "backward"
        return named or (self.current.name if self.current is not None else None)


@dataclass(frozen=True, slots=True)
class Stall:
    """What is known of a job that makes no progress.

    `hung`: nothing that is known to end by itself; else it only takes long. `culprits` are the ranks that the others
    wait for; empty where that cannot be told. `cause` is a name of the catalogue. `patient`: not to be ended for its
    length: a debugger, a compilation, a job that somebody has stopped.
    """

    cause: str
    hung: bool
    said: str
    culprits: tuple[Rank, ...] = ()
    waiting: tuple[Rank, ...] = ()
    since: MonotonicNs | None = None
    quotes: tuple[str, ...] = ()
    patient: bool = False


@dataclass
class Watch:
    """When to take a closer look. Fed once a second; keeps only what it needs for that."""

    _seen_at: int = 0
    _steps: dict[Rank, tuple[int, int]] = field(default_factory=dict)
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _asked_at: int = 0
    _last_look: int = 0
    _someone_left: bool = False

    def look(self, at: int, ranks: Sequence[RankLook]) -> bool:
        """Whether a closer look is due now. `at` in nanoseconds of CLOCK_MONOTONIC."""
        if self._last_look and at - self._last_look > 10 * LOOK_S * _SECOND:
            self._seen_at = at  # this machine, or ddp-run, was suspended meanwhile
        self._last_look = at
        self._learn(at, ranks)
        at_work = any(each.phase in ("init", "after-init", "training") for each in ranks)
        self._someone_left = at_work and any(each.left for each in ranks)
        stepped = max((seen_at for _steps, seen_at in self._steps.values()), default=0)
        moved = max((each.progress_at for each in ranks), default=0)
        moved = max(moved, stepped)
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
        if self._someone_left:
            return PATIENCE_LEFT_S
        usual = median(self._durations) if self._durations else 0.0
        return max(PATIENCE_S, STEPS_OF_PATIENCE * usual)

    def _learn(self, at: int, ranks: Sequence[RankLook]) -> None:
        """Steps count from when they are seen; their usual time is that between two looks, shared among them."""
        for each in ranks:
            steps, seen_at = self._steps.get(each.rank, (0, 0))
            if each.steps == steps:
                continue
            if each.steps > steps > 0:
                self._durations.append((at - seen_at) / (each.steps - steps) / _SECOND)
            self._steps[each.rank] = (each.steps, at)


# ---------------------------------------------------------------------------------------- a closer look


def explain(
    looks: Sequence[CloseLook], left: Sequence[Rank], since: MonotonicNs, at: MonotonicNs, *, world_size: int = 0
) -> Stall | None:
    """What two looks say. `left`: ranks that ended with 0. Null where nobody waits and nobody is stuck.

    `world_size` above the number of ranks given here: the others are on other nodes.
    """
    seconds = (at - since) / _SECOND
    looks = sorted((each for each in looks if each.state is not ProcessState.GONE), key=lambda each: each.rank)
    held = [each for each in looks if each.state in (ProcessState.STOPPED, ProcessState.TRACED)]
    running = [each for each in looks if each not in held]
    waiting = [each for each in running if each.waits]
    others = [each for each in running if not each.waits]
    scene = _Scene(seconds, waiting, others, held, tuple(left), world_size <= len(looks) + len(left))
    if held:
        found: Stall | None = _held(scene)
    elif others:
        found = _elsewhere(scene) if waiting else _alone(scene)
    elif left and waiting:
        found = _left(scene)
    else:
        found = _apart(scene) if waiting else None
    return None if found is None else _dated(found, since, looks)


@dataclass(frozen=True, slots=True)
class _Scene:
    seconds: float
    waiting: Sequence[CloseLook]
    others: Sequence[CloseLook]
    held: Sequence[CloseLook]
    left: tuple[Rank, ...]
    whole: bool
    """All ranks of the job are here."""

    def stall(
        self, hung: bool, said: str, culprits: Sequence[Rank], *, cause: str = "hang", patient: bool = False
    ) -> Stall:
        waiting = tuple(each.rank for each in self.waiting if each.rank not in culprits)
        return Stall(cause, hung, f"{said}, {self.seconds:.0f} s", tuple(culprits), waiting, patient=patient)

    @property
    def who_waits(self) -> str:
        """`; ranks 0,2 wait in barrier`."""
        if not self.waiting:
            return ""
        return f"; {_ranks(_of(self.waiting))} wait{_s(self.waiting)}{_in(self.waiting)}"


def _in(looks: Sequence[CloseLook]) -> str:
    if all(each.doing is Doing.MEETING for each in looks):
        return " to join a process group"
    operations = sorted({each.operation for each in looks if each.operation})
    return f" in {' and '.join(operations)}" if operations else ""


def _dated(stall: Stall, since: MonotonicNs, looks: Sequence[CloseLook]) -> Stall:
    """With what the ranks do: each group in a line, the culprits' first and with the end of their stack."""
    grouped: dict[str, list[CloseLook]] = {}
    for each in looks:
        grouped.setdefault(_what(each), []).append(each)
    quotes = []
    for members in sorted(grouped.values(), key=lambda each: (each[0].rank not in stall.culprits, len(each))):
        quotes.append(f"{_ranks(_of(members))}: {_what(members[0], len(members))}")
        if members[0].rank in stall.culprits and members[0].stack is not None:
            quotes += _end_of(members[0].stack)
    return replace(stall, since=since, quotes=tuple(quotes))


def _end_of(stack: Stack) -> list[str]:
    """The innermost lines of a stack, and those of the user's own code."""
    first = next((index for index, frame in enumerate(stack.frames) if frame.own), 0)
    lines = [frame.printed for frame in stack.frames]
    if first < _STACK_LINES - 1:
        return lines[:_STACK_LINES]
    return [*lines[:2], "  …", *lines[first : first + 2]]


def _held(scene: _Scene) -> Stall:
    who = _of(scene.held)
    traced = all(each.state is ProcessState.TRACED for each in scene.held)
    how = "held by a tracer (a debugger, strace)" if traced else "stopped (SIGSTOP)"
    if not scene.waiting and not scene.others:
        return scene.stall(False, f"all ranks are {how}", (), patient=True)
    hung = not traced and not any(each.works for each in scene.others)
    return scene.stall(hung, f"{_ranks(who)} {_is(who)} {how}{scene.who_waits}", who, patient=traced)


def _left(scene: _Scene) -> Stall:
    """Whoever still runs waits, and a rank has ended."""
    said = f"{_ranks(scene.left)} ended with exit code 0{scene.who_waits}"
    return scene.stall(scene.whole, said, scene.left, cause="peer-died")


def _elsewhere(scene: _Scene) -> Stall:
    """Some wait; the others are somewhere else: those are what is waited for."""
    hung = all(each.stuck for each in scene.others)
    if hung and not all(each.deadlocked for each in scene.others):
        hung = scene.seconds >= _SLOW_S
    unseen = [each for each in scene.others if each.doing is None and each.state is not ProcessState.DISK]
    said = _groups(scene.others) + scene.who_waits
    if scene.left:
        said += f"; {_ranks(scene.left)} ended with exit code 0"
    # A rank that shows nothing of itself may well wait like the rest.
    culprits = () if unseen else _of(scene.others)
    return scene.stall(hung, said, culprits, patient=any(each.patient for each in scene.others))


def _groups(looks: Sequence[CloseLook]) -> str:
    """`rank 0 is saving at train.py:88 in save; ranks 1-2 stand at …`."""
    grouped: dict[str, list[CloseLook]] = {}
    for each in looks:
        grouped.setdefault(_what(each), []).append(each)
    return "; ".join(f"{_ranks(_of(members))} {_what(members[0], len(members))}" for members in grouped.values())


def _what(look: CloseLook, count: int = 1) -> str:
    """`waits for a lock at train.py:88 in step`, of so many ranks."""
    words = _conjugated(_does(look), count)
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
    if doing is None:
        return "shows no stack"
    if doing is Doing.COLLECTIVE and look.operation:
        return f"waits in {look.operation}"
    if doing is Doing.RUNNING and not look.works:
        if look.asleep:
            return "sleeps"
        return f"stands{on}" if look.waits_on else "waits for a lock or a thread" if look.on_lock else "stands"
    holds = " and holds the interpreter's lock" if doing is Doing.RUNNING and look.silent else ""
    return doing + holds + ("" if look.works or doing in (Doing.LOCK, Doing.DEBUGGER) else on)


_PLURAL = {"waits": "wait", "is": "are", "runs": "run", "stands": "stand", "sleeps": "sleep", "shows": "show"}


def _conjugated(words: str, count: int) -> str:
    verb, _, rest = words.partition(" ")
    mark = ":" if verb.endswith(":") else ""
    return words if count == 1 else " ".join(filter(None, (_PLURAL.get(verb.rstrip(":"), verb) + mark, rest)))


def _apart(scene: _Scene) -> Stall:
    """All wait for each other: in different collectives, or one has entered fewer."""
    found = _mismatch(scene) or _behind(scene) or _joining(scene)
    if found is not None:
        return found
    if not scene.whole:
        said = f"{_ranks(_of(scene.waiting))} wait{_s(scene.waiting)}{_in(scene.waiting)}: all of this node, for others"
        return scene.stall(False, said, ())
    return _places_apart(scene)


def _mismatch(scene: _Scene) -> Stall | None:
    """The same number in the same group, but another operation, shape or type."""
    entered: dict[tuple[str, int], dict[tuple[object, ...], list[CloseLook]]] = {}
    for each in scene.waiting:
        if each.current is not None:
            kinds = entered.setdefault((each.current.group, each.current.number), {})
            kinds.setdefault(each.current.kind, []).append(each)
    for (_, number), kinds in sorted(entered.items()):
        if len(kinds) < 2:
            continue
        sizes = sorted(kinds.values(), key=lambda members: (len(members), members[0].rank))
        few, many = sizes[0], sizes[-1]
        said = ", ".join(f"{_ranks(_of(members))} entered {_said(members[0])}" for members in sizes)
        clear = len(few) < len(many) and len(sizes) == 2
        said = f"{said}, as collective {number} of the process group"
        return scene.stall(True, said, _of(few) if clear else (), cause="collective-mismatch")
    return None


def _said(look: CloseLook) -> str:
    entered = look.current.said if look.current is not None else ""
    where = f" at {look.place}" if look.place else ""
    named = look.stack.operation if look.stack else None
    # The recorder calls gloo's barrier by other names.
    return (named if named and named not in entered and "coalesced" not in named else entered) + where


def _behind(scene: _Scene) -> Stall | None:
    """Ranks wait in a group for those that have entered fewer of its collectives: whom all the waiting leads to."""
    ranks = {each.rank: each for each in scene.waiting}
    waits_for: dict[Rank, set[Rank]] = {rank: set() for rank in ranks}
    for rank, each in ranks.items():
        if each.current is not None:
            group, number = each.current.group, each.current.number
            waits_for[rank] = {o for o, x in ranks.items() if group in x.last and x.last[group].number < number}
    if not any(waits_for.values()):
        return None
    reach = {rank: _reachable(rank, waits_for) for rank in ranks}
    waited_for = {other for others in waits_for.values() for other in others}
    ends = [rank for rank in ranks if rank in waited_for and all(rank in reach[other] for other in reach[rank])]
    last = [ranks[rank] for rank in ends]
    waiting = [each for each in scene.waiting if each.rank not in ends]
    if not waiting:
        return scene.stall(True, f"the ranks wait for each other: {_groups(scene.waiting)}", ())
    said = f"{_groups(last)}; {_ranks(_of(waiting))} {_is(waiting)} ahead and wait{_s(waiting)}{_in(waiting)}"
    return scene.stall(True, said, ends)


def _reachable(rank: Rank, edges: Mapping[Rank, set[Rank]]) -> set[Rank]:
    seen: set[Rank] = set()
    ahead = [rank]
    while ahead:
        for other in edges[ahead.pop()] - seen:
            seen.add(other)
            ahead.append(other)
    return seen


def _joining(scene: _Scene) -> Stall | None:
    """Some make a process group, the others are in a collective."""
    meeting = [each for each in scene.waiting if each.doing is Doing.MEETING]
    rest = [each for each in scene.waiting if each.doing is not Doing.MEETING]
    if not meeting or not rest:
        return None
    said = f"{_groups(rest)}; {_groups(meeting)}"
    few = rest if len(rest) < len(meeting) else meeting if len(meeting) < len(rest) else []
    return scene.stall(True, said, _of(few))


def _places_apart(scene: _Scene) -> Stall:
    """All wait and nobody has entered less, as far as was recorded."""
    waiting = scene.waiting
    recorded = any(each.last for each in waiting)
    places: dict[tuple[str | None, str | None], list[CloseLook]] = {}
    for each in waiting:
        places.setdefault((each.operation, each.place), []).append(each)
    if len({operation for operation, _ in places}) == 1:
        long = scene.seconds >= _SLOW_S and not any(each.works for each in waiting)
        where = f" at {waiting[0].place}" if len(places) == 1 and waiting[0].place else ""
        said = f"all ranks wait{_in(waiting)}{where} and none is missing: a slow network or device, or much to do"
        return scene.stall(long, said, ())
    few, *_, many = sorted(places.values(), key=lambda members: (len(members), members[0].rank))
    clear = len(few) < len(many) and len(places) == 2 and not recorded
    return scene.stall(True, _groups(waiting), _of(few) if clear else ())


def _alone(scene: _Scene) -> Stall | None:
    """Nobody waits for another rank: said only where nobody works either."""
    if any(each.works for each in scene.others):
        return None
    seen = [each for each in scene.others if each.stack is not None or each.state is ProcessState.DISK]
    if not seen:
        return None
    hung = scene.seconds >= _SLOW_S and all(each.stuck and each.deadlocked for each in scene.others)
    left = f"; {_ranks(scene.left)} ended with exit code 0" if scene.left else ""
    patient = any(each.patient for each in scene.others)
    return scene.stall(hung, _groups(scene.others) + left, (), patient=patient)


def _of(looks: Sequence[CloseLook]) -> tuple[Rank, ...]:
    return tuple(sorted(each.rank for each in looks))


def _ranks(ranks: Sequence[Rank]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_list(sorted(ranks))}"


def _is(many: Sequence[object]) -> str:
    return "is" if len(many) == 1 else "are"


def _s(many: Sequence[object]) -> str:
    return "s" if len(many) == 1 else ""
