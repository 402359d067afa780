"""What each rank did when, attempt by attempt. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from ddp_run.judge.verdict import Verdict
from ddp_run.record.attempt_events import attempts_made, of_attempt
from ddp_run.record.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Next,
    NodeReported,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    RunStarted,
    StallEnded,
    StallSeen,
)
from ddp_run.tell.told import failed_words
from ddp_run.values.lines import neutral
from ddp_run.values.signals import in_words
from ddp_run.values.words import duration_in_words, named_ranks, node_name

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "launch": ("L", "agent and interpreter start"),
    "before-init": ("S", "script, before init_process_group"),
    "init": ("I", "in init_process_group"),
    "after-init": ("G", "in the process group, no optimizer step yet"),
    "training": ("T", "training"),
    "shutdown": ("D", "destroying the process group"),
    "replaced": ("R", "another program, which isn't watched"),
    "ending": ("E", "program over, process ending"),
    "waits": ("W", "waits for other ranks"),
    "stall": ("H", "no progress"),
}
"""What a rank can be seen doing: a letter, and words. The last two are drawn over the others."""
_MOST_LANES: Final = 40
_MOST_ATTEMPTS: Final = 8
_LONGEST: Final = 48
"""Characters of a list of ranks."""
_ALIKE: Final = 100
"""Ranks are alike if their times differ by less than this part of an attempt."""
_SHORT: Final = 0.1
"""If all failures are within this part of an attempt, they are also shown enlarged."""
_SECOND: Final = 1e9


@dataclass(frozen=True, slots=True)
class Journal:
    """The events of one node, on its own clock; `zero` is the job's start on that clock, in nanoseconds."""

    events: Sequence[Event]
    zero: int
    node: str = ""
    """Its name, if the job has several."""
    clock: str = ""
    """How well its clock is known to agree with that of the others; empty if it is alone."""

    def seconds(self, at: int) -> float:
        """Seconds since the job's start."""
        return (at - self.zero) / _SECOND


@dataclass(frozen=True, slots=True)
class Span:
    """`kind` is a key of KINDS; times are seconds since the job's start."""

    begin: float
    end: float
    kind: str

    @property
    def said(self) -> str:
        """In words, with its length."""
        return f"{KINDS[self.kind][1]}, {duration_in_words(self.end - self.begin)}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A failure. `first`: that of the rank that the verdict names, however it ended."""

    at: float
    said: str
    first: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """A rank, or ranks that are alike."""

    node: str
    ranks: tuple[int, ...]
    spans: tuple[Span, ...]
    over: tuple[Span, ...] = ()
    """Waiting and stalls."""
    marks: tuple[Mark, ...] = ()

    @property
    def label(self) -> str:
        """`node 1: ranks 8-15`."""
        return (f"{self.node}: " if self.node else "") + some_ranks(self.ranks)


@dataclass(frozen=True, slots=True)
class View:
    """Lanes between two times, in seconds since the job's start. `left_out`: how many ranks aren't shown."""

    said: str
    begin: float
    end: float
    lanes: tuple[Lane, ...]
    left_out: int
    origin: float = 0.0
    """Times on its axis are since then."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, counted from 0: the whole, and its failures enlarged, if the whole can't tell them apart."""

    number: int
    said: str
    views: tuple[View, ...]


def some_ranks(ranks: Sequence[int]) -> str:
    """`ranks 0,2,5-7`; of a list that would be too long, how many they are and the first."""
    text = named_ranks(ranks)
    return (
        text
        if len(text) <= _LONGEST
        else f"{len(ranks)} ranks: {text.partition(' ')[2][:_LONGEST].rpartition(',')[0]},…"
    )


def journals(parts: Iterable[Sequence[Event]]) -> tuple[Journal, ...]:
    """The parts of a job's nodes with one start; a part without RunStarted has its own.

    What node 0 has measured of the other nodes' clocks counts, else the hosts' wall clocks.
    """
    given = [(part, next((each for each in part if isinstance(each, RunStarted)), None)) for part in parts]
    if len(given) == 1:
        return tuple(Journal(part, (started or part[0]).at if part else 0) for part, started in given)
    start = min((started.wall_ns for _, started in given if started is not None), default=0)
    asked = {(e.node_rank, e.host): (part, e) for part, _ in given for e in part if isinstance(e, NodeReported)}
    zeros = {id(part): started.at - (started.wall_ns - start) for part, started in given if started is not None}
    found = []
    for part, started in given:
        number = next((e.group_rank for e in reversed(part) if isinstance(e, RankStarted)), None)
        host = started.host if started is not None else ""
        number = started.node_rank if number is None and started is not None else number
        of, report = asked.get((number, host), (part, None))
        zero = zeros.get(id(of), part[0].at if part else 0)
        name = neutral(node_name(number, host))
        if report is not None:
            found.append(Journal(part, zero + report.offset_ns, name, f"clocks ± {report.error_ns / 1e6:.1f} ms"))
        else:
            base = any(of is part for of, _ in asked.values())
            found.append(Journal(part, zero, name, "" if base else "clocks as the hosts have them"))
    return tuple(found)


# ---------------------------------------------------------------------------------------------- lanes


@final
@dataclass(slots=True)
class _Open:
    """A lane that is being made."""

    spans: list[Span] = field(default_factory=list)
    over: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    kind: str | None = None
    since: float = 0.0
    failed: bool = False

    def enter(self, kind: str | None, at: float) -> None:
        if kind == self.kind:  # a start may be told twice
            return
        if self.kind is not None and at > self.since:
            self.spans.append(Span(self.since, at, self.kind))
        self.kind, self.since = kind, at


def attempts(parts: Sequence[Journal], verdict: Verdict) -> tuple[Attempt, ...]:
    """The last attempts, the newest last."""
    numbers = sorted({number for part in parts for number in attempts_made(part.events)})
    return tuple(_attempt(parts, number, verdict, number == numbers[-1]) for number in numbers[-_MOST_ATTEMPTS:])


def _attempt(parts: Sequence[Journal], number: int, verdict: Verdict, last: bool) -> Attempt:
    first = verdict.first_failure.rank if last and verdict.first_failure is not None else None
    lanes, ends, begins, said = list[Lane](), list[float](), list[float](), ""
    for part in parts:
        found = of_attempt(part.events, number)
        if found.started is None or not found.events:
            continue
        over = next((e for e in part.events if isinstance(e, AttemptEnded) and e.attempt == number), None)
        begins.append(part.seconds(found.started.at))
        ends.append(part.seconds(found.events[-1].at if over is None else over.at))
        said = said or _said(over)
        lanes += _lanes(part, found.events, ends[-1], first)
    begin, end = min(begins, default=0.0), max(ends, default=0.0)
    name = f"Attempt {number + 1}"
    views = [_view(f"{name}, from its start to its end", lanes, begin, end)] if lanes else []
    failed = [mark.at for lane in lanes for mark in lane.marks]
    if max(failed, default=0.0) > min(failed, default=0.0) and not (
        last and verdict.outcome in ("hung", "interrupted")
    ):  # ended from outside, all at once
        around = max(0.2, 0.5 * (max(failed) - min(failed)))
        near = max(begin, min(failed) - around), min(end, max(failed) + around)
        if near[1] - near[0] < _SHORT * (end - begin):
            title = f"{name}, its failures enlarged: seconds before and after the first one"
            views.append(replace(_view(title, lanes, *near), origin=min(failed)))
    return Attempt(number, said, tuple(views))


def _view(said: str, lanes: Sequence[Lane], begin: float, end: float) -> View:
    shown = _grouped([_within(lane, begin, end) for lane in lanes], max(end - begin, 1e-3))
    left_out = sum(len(lane.ranks) for lane in shown[_MOST_LANES:])
    return View(said, begin, end, tuple(shown[:_MOST_LANES]), left_out)


def _within(lane: Lane, begin: float, end: float) -> Lane:
    def cut(spans: Iterable[Span]) -> tuple[Span, ...]:
        pieces = (replace(span, begin=max(span.begin, begin), end=min(span.end, end)) for span in spans)
        return tuple(span for span in pieces if span.end > span.begin)

    marks = tuple(mark for mark in lane.marks if begin <= mark.at <= end)
    return replace(lane, spans=cut(lane.spans), over=cut(lane.over), marks=marks)


def _said(over: AttemptEnded | None) -> str:
    if over is None:
        return "how it ended was not recorded"
    cause = f" ({over.cause})" if over.cause else ""
    follows = "retried" if over.decision is Next.RETRY else "not retried"
    return neutral(f"{over.outcome}{cause}, exit code {over.exit_code}; {follows}: {over.reason}")


def _lanes(part: Journal, events: Sequence[Event], end: float, first: Rank | None) -> list[Lane]:
    lanes: dict[Rank, _Open] = {}
    stall: StallSeen | None = None
    began = 0.0
    for event in events:
        at = part.seconds(event.at)
        match event:
            case AttemptStarted():
                began = at
            case RankStarted():
                lane = lanes.setdefault(event.rank, _Open(kind="launch", since=began))
                lane.enter("before-init", at)
                lane.failed = False
            case RankPhase() if event.rank in lanes and event.phase in KINDS:
                lanes[event.rank].enter(event.phase, at)
            case RankFailed() | RankFinished() | RankExited() if event.rank in lanes:
                lane, named = lanes[event.rank], event.rank == first
                lane.enter(None if isinstance(event, RankExited) else "ending", at)
                if not lane.failed and (named or (not isinstance(event, RankFinished) and event.code)):
                    lane.failed = True
                    lane.marks.append(Mark(at, _end_of(event), named))
            case StallSeen():
                stall = event
            case StallEnded() if stall is not None:
                _draw(stall, part.seconds(stall.since), at, lanes)
                stall = None
            case _:
                pass
    if stall is not None:
        _draw(stall, part.seconds(stall.since), end, lanes)
    for lane in lanes.values():
        lane.enter(None, max(end, lane.since))
    return [
        Lane(part.node, (rank,), tuple(each.spans), tuple(each.over), tuple(each.marks))
        for rank, each in sorted(lanes.items())
    ]


def _end_of(event: RankFailed | RankFinished | RankExited) -> str:
    if isinstance(event, RankFailed):
        return failed_words(event)
    code = 0 if isinstance(event, RankFinished) else event.code
    return f"rank {event.rank}: " + ("ended" if code is None else in_words(code))


def _draw(stall: StallSeen, begin: float, end: float, lanes: Mapping[Rank, _Open]) -> None:
    for rank, lane in lanes.items():
        until = min(end, lane.since) if lane.kind is None else end
        if until > begin:
            kind = "waits" if rank in stall.waiting and rank not in stall.culprits else "stall"
            lane.over.append(Span(begin, until, kind))


def _grouped(lanes: Sequence[Lane], length: float) -> list[Lane]:
    """Ranks whose times are alike as one lane; if these are too many, those that did the same. Failed ones first."""

    def alike(lane: Lane) -> object:
        unit = length / _ALIKE
        times = [(s.kind, round(s.begin / unit), round(s.end / unit)) for s in (*lane.spans, *lane.over)]
        return times, [round(mark.at / unit) for mark in lane.marks]

    shown = _merged(lanes, alike)
    if len(shown) > _MOST_LANES:
        shown = _merged(lanes, lambda lane: [span.kind for span in (*lane.spans, *lane.over)])
    if len(shown) > _MOST_LANES:
        shown.sort(key=lambda lane: (not any(mark.first for mark in lane.marks), not lane.marks))
    return shown


def _merged(lanes: Sequence[Lane], key: Callable[[Lane], object]) -> list[Lane]:
    groups: dict[str, list[Lane]] = {}
    for lane in lanes:
        first = any(mark.first for mark in lane.marks)
        groups.setdefault(repr((lane.node, first, bool(lane.marks), key(lane))), []).append(lane)
    return [
        replace(group[0], ranks=tuple(rank for lane in group for rank in lane.ranks), marks=_all_marks(group))
        for group in groups.values()
    ]


def _all_marks(group: Sequence[Lane]) -> tuple[Mark, ...]:
    """The marks of a lane; of several, the first and the last."""
    marks = sorted((mark for lane in group for mark in lane.marks), key=lambda mark: mark.at)
    return tuple(marks if len(marks) <= 2 else (marks[0], marks[-1]))
