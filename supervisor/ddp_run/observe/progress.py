"""From a closer look at ranks that make no progress to who waits for whom. Pure.

Two looks at the stacks, a few seconds apart, tell a rank that stands still from one that works. Work that only takes
long is reported as such and never called a hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_run.observe.close_look import CloseLook, GpuUse, ProcessState
from ddp_run.observe.collectives import Collective
from ddp_run.observe.ras_text import Missing
from ddp_run.observe.stack_text import Doing
from ddp_run.observe.stall_quotes import alike, busy, end_of, groups, numbers, ranks_of, to_remove, what
from ddp_run.observe.stall_watch import QUIET_S
from ddp_run.record.events import MonotonicNs, Rank
from ddp_run.values.words import is_or_are, named_ranks, verb_s

_SLOW_S = 120.0
"""How long something that may end without help (saving, data, network, a sleep) may last before it is a hang."""
_SECOND = 1_000_000_000
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})


@dataclass(frozen=True, slots=True)
class Stall:
    """What is known about a job that makes no progress.

    `hung`: it won't end without help, as opposed to only taking long. `culprits`: the ranks that the others wait for;
    empty if unknown. `cause`: a name from the catalogue. `patient`: it must not be ended for taking long (a debugger,
    a compilation, a job that a user has stopped). `certain`: waiting longer would not change it.
    """

    cause: str
    hung: bool
    said: str
    culprits: tuple[Rank, ...] = ()
    waiting: tuple[Rank, ...] = ()
    quotes: tuple[str, ...] = ()
    patient: bool = False
    certain: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Changes when the stall is worth reporting again. Its duration doesn't count."""
        return self.cause, self.hung, self.culprits, self.waiting, self.patient


def come_apart(entered: Mapping[Rank, Collective | None], stopped: Sequence[Rank]) -> bool:
    """Whether a closer look is worth taking early: all ranks wait, but in different collectives, or some are stopped.

    `entered`: the collective that each rank of this node waits in, or None.
    """
    if stopped:
        return len(stopped) < len(entered)
    waits = [(each.group, each.number, each.kind) for each in entered.values() if each is not None]
    return len(waits) == len(entered) and len(set(waits)) > 1


def explain(
    looks: Sequence[CloseLook],
    left: Mapping[Rank, float],
    since: MonotonicNs,
    at: MonotonicNs,
    *,
    world_size: int = 0,
    gpus: Sequence[GpuUse] = (),
    ras: Missing | None = None,
    joined: bool = True,
) -> Stall | None:
    """The stall that two looks show; None if no rank waits and none is stuck.

    `left`: ranks that exited with 0, and how many seconds ago. `joined`: some rank has begun to join the process group.
    `world_size`: if larger than the number of ranks given, the others are on other nodes. `ras`: the ranks that NCCL
    shows to be missing, on any node.
    """
    seconds = (at - since) / _SECOND
    looks = sorted((each for each in looks if each.state is not ProcessState.GONE), key=lambda each: each.rank)
    held = [each for each in looks if each.state in (ProcessState.STOPPED, ProcessState.TRACED)]
    running = [each for each in looks if each not in held]
    waiting = [each for each in running if each.waits]
    others = [each for each in running if not each.waits]
    scene = _Scene(seconds, waiting, others, held, left, world_size <= len(looks) + len(left), ras, joined)
    if held:
        found: Stall | None = _held(scene)
    elif others:
        found = _elsewhere(scene) if waiting else _alone(scene)
    elif left and waiting:
        found = _left(scene)
    else:
        found = _apart(scene) if waiting else None
    if found is None:
        return None
    sure = found.certain and all(each.waits_for_certain for each in running) and scene.whole
    return replace(found, certain=sure, quotes=_quotes(found, looks, gpus))


@dataclass(frozen=True, slots=True)
class _Scene:
    seconds: float
    waiting: Sequence[CloseLook]
    others: Sequence[CloseLook]
    held: Sequence[CloseLook]
    left: Mapping[Rank, float]
    whole: bool
    """All ranks of the job are here."""
    ras: Missing | None = None
    joined: bool = True

    def stall(
        self,
        hung: bool,
        said: str,
        culprits: Sequence[Rank],
        *,
        cause: str = "hang",
        patient: bool = False,
        certain: bool = False,
    ) -> Stall:
        waiting = tuple(each.rank for each in self.waiting if each.rank not in culprits)
        said = f"{said}, {self.seconds:.0f} s"
        return Stall(cause, hung, said, tuple(culprits), waiting, patient=patient, certain=certain)

    @property
    def gone(self) -> str:
        """`rank 1 exited with code 0 (8 s ago)`."""
        last = "the last " if len(self.left) > 1 else ""
        return f"{named_ranks(self.left)} exited with code 0 ({last}{min(self.left.values()):.0f} s ago)"

    def who_waits(self, culprits: Sequence[Rank]) -> str:
        """`; ranks 0,2 wait for it in barrier`; without "for it" if there are no culprits."""
        if not self.waiting:
            return ""
        whom = "" if not culprits else " for it" if len(culprits) == 1 else " for them"
        return f"; {named_ranks(ranks_of(self.waiting))} wait{verb_s(self.waiting)}{whom}{_in(self.waiting)}"


def _in(looks: Sequence[CloseLook]) -> str:
    if all(each.doing is Doing.MEETING for each in looks):
        return " to join a process group"
    operations = sorted({each.operation for each in looks if each.operation})
    return f" in {' and '.join(operations)}" if operations else ""


def _quotes(stall: Stall, looks: Sequence[CloseLook], gpus: Sequence[GpuUse]) -> tuple[str, ...]:
    """A line for each group of ranks, the culprits first and with the end of their stack; then the ranks' numbers and
    their GPUs'."""
    quotes = []
    groups_of_ranks = alike(looks, what).values()
    for members in sorted(groups_of_ranks, key=lambda each: (each[0].rank not in stall.culprits, len(each))):
        quotes.append(f"{named_ranks(ranks_of(members))}: {what(members[0], len(members))}")
        if members[0].rank in stall.culprits and members[0].stack is not None:
            quotes += end_of(members[0].stack)
    return (*quotes, *to_remove(looks), *numbers(looks), *busy(gpus))


def _held(scene: _Scene) -> Stall:
    who = ranks_of(scene.held)
    traced = all(each.state is ProcessState.TRACED for each in scene.held)
    how = "held by a tracer (a debugger, strace)" if traced else "stopped (SIGSTOP)"
    if not scene.waiting and not scene.others:
        return scene.stall(False, f"all ranks are {how}", (), patient=True)
    hung = not traced and not any(each.works for each in scene.others)
    said = f"{named_ranks(who)} {is_or_are(who)} {how}{scene.who_waits(who)}"
    return scene.stall(hung, said, who, patient=traced, certain=hung and not scene.others)


def _left(scene: _Scene) -> Stall:
    """All running ranks wait, and a rank has exited."""
    ranks = tuple(scene.left)
    return scene.stall(scene.whole, f"{scene.gone}{scene.who_waits(ranks)}", ranks, cause="peer-died")


def _elsewhere(scene: _Scene) -> Stall:
    """Some ranks wait; the others are elsewhere, and are the ones waited for."""
    entered = max(each.collectives for each in scene.waiting)
    missing = [each for each in scene.others if not each.may_have_entered(entered)]
    hung = all(each.stuck for each in scene.others)
    if hung and not (missing and all(each.deadlocked for each in missing)):
        hung = scene.seconds >= _SLOW_S
    unseen = [each for each in scene.others if each.doing is None and each.state is not ProcessState.DISK]
    # A rank about which nothing is known may be waiting like the rest.
    culprits = () if unseen else ranks_of(missing)
    # "it" refers to the ranks named first, so they must be exactly the culprits.
    said = groups(scene.others) + scene.who_waits(culprits if len(culprits) == len(scene.others) else ())
    if scene.left:
        said += f"; {scene.gone}"
    return scene.stall(hung, said, culprits, patient=any(each.patient for each in scene.others))


def _apart(scene: _Scene) -> Stall:
    """All ranks wait for each other: in different collectives, or one has entered fewer."""
    found = _mismatch(scene) or _behind(scene) or _joining(scene) or _seen_by_nccl(scene)
    if found is not None:
        return found
    if not scene.whole:
        who = named_ranks(ranks_of(scene.waiting))
        said = f"{who} (all ranks of this node) wait{verb_s(scene.waiting)}{_in(scene.waiting)} for other nodes"
        return scene.stall(False, said, ())
    return _places_apart(scene)


def _mismatch(scene: _Scene) -> Stall | None:
    """Ranks entered the same collective of a group with different operations, shapes or types.

    Some may be past it: NCCL lets a rank go on from an all_reduce that the others never completed (seen with 2.28: a
    barrier met by all_reduce of another size).
    """
    pending = {each.current.key: each.current.number for each in scene.waiting if each.current is not None}
    for key, number in sorted(pending.items()):
        kinds: dict[tuple[object, ...], list[tuple[CloseLook, Collective]]] = {}
        for each in scene.waiting:
            current = each.current
            entered = current if current is not None and current.key == key else each.history.get(key)
            if entered is not None:
                kinds.setdefault(entered.kind, []).append((each, entered))
        if len(kinds) < 2:
            continue
        sizes = sorted(kinds.values(), key=lambda members: (len(members), members[0][0].rank))
        ranks = [ranks_of([look for look, _ in members]) for members in sizes]
        said = ", ".join(
            f"{named_ranks(who)} entered {_said(*members[0])}" for who, members in zip(ranks, sizes, strict=True)
        )
        clear = len(ranks[0]) < len(ranks[-1]) and len(sizes) == 2
        said = f"{said}, as collective {number} of the process group"
        return scene.stall(True, said, ranks[0] if clear else (), cause="collective-mismatch", certain=True)
    return None


def _said(look: CloseLook, entered: Collective) -> str:
    here = entered is look.current
    place = entered.place or (look.place if here else None)
    where = f" at {place}" if place else ""
    named = look.stack.operation if look.stack and here else None
    # The recorder calls gloo's barrier by other names.
    return (named if named and named not in entered.said and "coalesced" not in named else entered.said) + where


def _behind(scene: _Scene) -> Stall | None:
    """Ranks wait for others that have entered fewer collectives of a group: find those that all waiting leads to."""
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
        return scene.stall(True, f"the ranks wait for each other: {groups(scene.waiting)}", (), certain=True)
    ahead = f"{named_ranks(ranks_of(waiting))} {is_or_are(waiting)} ahead"
    said = f"{groups(last)}; {ahead} and wait{verb_s(waiting)}{_in(waiting)}"
    # A large message may be in transit between two of them, and waiting for a GPU looks like work.
    sends = any(each.current is None and each.operation in _POINT_TO_POINT and each.works for each in last)
    # An NCCL collective that all ranks have entered, with the others behind it, may just be slow too.
    slow = sends or (len(last) == 1 and last[0].current is not None and last[0].current.nccl)
    return scene.stall(not slow or scene.seconds >= _SLOW_S, said, ends, certain=not slow)


def _reachable(rank: Rank, edges: Mapping[Rank, set[Rank]]) -> set[Rank]:
    seen: set[Rank] = set()
    ahead = [rank]
    while ahead:
        for other in edges[ahead.pop()] - seen:
            seen.add(other)
            ahead.append(other)
    return seen


def _joining(scene: _Scene) -> Stall | None:
    """Some ranks create a process group, the others are in a collective."""
    meeting = [each for each in scene.waiting if each.doing is Doing.MEETING]
    rest = [each for each in scene.waiting if each.doing is not Doing.MEETING]
    if not meeting or not rest:
        return None
    said = f"{groups(rest)}; {groups(meeting)}"
    few = rest if len(rest) < len(meeting) else meeting if len(meeting) < len(rest) else []
    return scene.stall(True, said, ranks_of(few))


def _seen_by_nccl(scene: _Scene) -> Stall | None:
    """NCCL shows which ranks are missing: on another node, or here if torch's records don't contradict it."""
    ras = scene.ras
    if ras is None:
        return None
    waiting = [each for each in scene.waiting if each.rank not in ras.ranks]
    if not waiting or (len(waiting) < len(scene.waiting) and any(each.last for each in scene.waiting)):
        return None
    # What a rank on another node does isn't visible here: it may only take long.
    hung = ras.gone or (scene.whole and scene.seconds >= _SLOW_S)
    return scene.stall(hung, f"{ras.said}{replace(scene, waiting=waiting).who_waits(ras.ranks)}", ras.ranks)


def _places_apart(scene: _Scene) -> Stall:
    """All ranks wait, and no record shows one that is behind."""
    waiting = scene.waiting
    recorded = any(each.last for each in waiting)
    places: dict[tuple[str | None, str | None], list[CloseLook]] = {}
    for each in waiting:
        places.setdefault((each.operation, each.place), []).append(each)
    if len({operation for operation, _ in places}) == 1:
        long = scene.seconds >= _SLOW_S and not any(each.works for each in waiting)
        where = f" at {waiting[0].place}" if len(places) == 1 and waiting[0].place else ""
        said = f"all ranks wait{_in(waiting)}{where} and none is missing: a slow network or device, or a long operation"
        return scene.stall(long, said, ())
    if all(each.current is not None for each in waiting):  # in different groups, none of which lacks a rank
        return scene.stall(scene.seconds >= _SLOW_S, groups(waiting), ())
    few, *_, many = sorted(places.values(), key=lambda members: (len(members), members[0].rank))
    clear = len(few) < len(many) and len(places) == 2 and not recorded
    return scene.stall(True, groups(waiting), ranks_of(few) if clear else ())


def _alone(scene: _Scene) -> Stall | None:
    """No rank is known to wait for another. That is a stall if no rank works; before the ranks join a process group
    also if some work, as a rank that has long stood still may wait for them."""
    working = [each for each in scene.others if each.works or not (scene.joined or each.idle_s >= QUIET_S)]
    standing = [each for each in scene.others if each not in working]
    if not standing or (working and scene.joined):
        return None
    if scene.joined and all(each.stack is None and each.state is not ProcessState.DISK for each in standing):
        return None
    hung = not working and scene.seconds >= _SLOW_S and all(each.stuck and each.deadlocked for each in standing)
    left = f"; {scene.gone}" if scene.left else ""
    patient = bool(working) or any(each.patient for each in standing)
    return scene.stall(hung, groups([*standing, *working]) + left, (), patient=patient)
