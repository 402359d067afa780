"""What each rank did when, attempt by attempt, and the order in which ranks failed. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from ddp_run.judge.of_nodes import report_of
from ddp_run.judge.verdict import Verdict
from ddp_run.record.attempt_events import attempts_made, last_restart, of_attempt
from ddp_run.record.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    ExceptionInfo,
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
    "launch": ("L", "torch's agent starts"),
    "before-init": ("S", "starting, before init_process_group"),
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
_MOST_ROWS: Final = 60
_ALIKE: Final = 100
"""Ranks are alike if their times differ by less than this part of an attempt."""
_SHORT: Final = 0.1
"""If all failures are within this part of an attempt, they are also shown enlarged."""
_SECOND: Final = 1e9
_ROOM: Final = 2.0
"""Per cent of a window that a letter needs."""
_TICKS: Final = (5, 20, 80)
_MINUTES: Final = 600.0
"""Times of longer windows are shown as hours, minutes and seconds."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The events of one node, on its own clock; `zero` is the job's start on that clock, in nanoseconds."""

    events: Sequence[Event]
    zero: int
    node: str = ""
    """Its name, if the job has several."""

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
    """A failure. `first`: the one that the verdict names."""

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
        return (f"{self.node}: " if self.node else "") + named_ranks(self.ranks)


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


@dataclass(frozen=True, slots=True)
class _End:
    """How one rank failed. `rank`: None for one of another node."""

    at: float
    rank: int | None
    who: str
    what: str
    role: str
    sure: str
    first: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Ranks that failed one after another in the same way; `after_s`: the first and last, since the first of all."""

    who: str
    after_s: tuple[float, float]
    what: str
    role: str
    sure: str
    first: bool = False


def journals(parts: Iterable[Sequence[Event]]) -> tuple[Journal, ...]:
    """The parts of a job's nodes with one start; a part without RunStarted has its own."""
    starts = [(part, next((each for each in part if isinstance(each, RunStarted)), None)) for part in parts]
    zero = min((started.wall_ns for _, started in starts if started is not None), default=0)
    several = len(starts) > 1
    return tuple(
        Journal(part, part[0].at if part else 0)
        if started is None
        else Journal(
            part,
            started.at - (started.wall_ns - zero),
            neutral(node_name(started.node_rank, started.host)) if several else "",
        )
        for part, started in starts
    )


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

    def enter(self, kind: str | None, at: float) -> None:
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
                if event.rank not in lanes:
                    lanes[event.rank] = _Open(kind="launch", since=began)
                lanes[event.rank].enter("before-init", at)
            case RankPhase() if event.rank in lanes and event.phase in KINDS:
                lanes[event.rank].enter(event.phase, at)
            case RankFailed() | RankFinished() if event.rank in lanes:
                lanes[event.rank].enter("ending", at)
                if isinstance(event, RankFailed):
                    lanes[event.rank].marks.append(Mark(at, failed_words(event), event.rank == first))
            case RankExited() if event.rank in lanes:
                lane = lanes[event.rank]
                if event.code and lane.kind != "ending":
                    lane.marks.append(Mark(at, f"rank {event.rank}: {in_words(event.code)}", event.rank == first))
                lane.enter(None, at)
            case StallSeen():
                stall = stall or event
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


# ------------------------------------------------------------------------------------ order of failures


def failures(parts: Sequence[Journal], verdict: Verdict) -> tuple[Failure, ...]:
    """How ranks failed in the last attempt, by time; on node 0 also when other nodes' ranks began to."""
    found = sorted(
        (each for part in parts for each in _ends(part, verdict, alone=len(parts) == 1)), key=lambda end: end.at
    )
    rows: list[Failure] = []
    ranks: list[int] = []
    for end in found:
        after = end.at - found[0].at
        row = Failure(end.who, (after, after), end.what, end.role, end.sure, end.first)
        if ranks and end.rank is not None and not row.first and not rows[-1].first and _same(rows[-1], row):
            ranks.append(end.rank)
            rows[-1] = replace(rows[-1], who=named_ranks(ranks), after_s=(rows[-1].after_s[0], after))
        else:
            rows.append(row)
            ranks = [] if end.rank is None else [end.rank]
    return tuple(rows[:_MOST_ROWS])


def _same(one: Failure, other: Failure) -> bool:
    return (one.what, one.role, one.sure) == (other.what, other.role, other.sure)


def _ends(part: Journal, verdict: Verdict, *, alone: bool) -> Iterator[_End]:
    made = attempts_made(part.events)
    events = of_attempt(part.events, made[-1]).events if made else ()
    last = last_restart(events)
    named = verdict.first_failure.rank if verdict.first_failure is not None else None
    reasons = {each.rank: each.reason for each in verdict.collateral}
    seen: set[Rank] = set()
    for event in sorted((e for e in events if isinstance(e, RankFailed | RankExited)), key=lambda e: e.at):
        if event.restart != last or event.rank in seen or not event.code:
            continue
        seen.add(event.rank)
        what, sure = in_words(event.code), "milliseconds late: the kernel's report of its end"
        if isinstance(event, RankFailed):
            what, sure = _raised(event.exception) or what, "exact: stamped inside the rank"
        first = event.rank == named
        role = part_of(verdict) if first else neutral(reasons.get(event.rank, ""))
        yield _End(part.seconds(event.at), event.rank, f"rank {event.rank}", what, role, sure, first)
    for told in (e for e in events if isinstance(e, NodeReported) and alone):
        yield from _reported(part, told, verdict, named)


def _reported(part: Journal, event: NodeReported, verdict: Verdict, named: Rank | None) -> Iterator[_End]:
    """The first failure of another node's ranks, as that node said."""
    try:
        report = report_of(event)
    except (ValueError, RecursionError):
        return
    failed = report.verdict.first_failure if report.verdict is not None else None
    if failed is None or failed.at is None:
        return
    node = neutral(node_name(event.node_rank, event.host))
    who = node if failed.rank is None else f"rank {failed.rank} on {node}"
    what = _raised(failed.exception) or ("" if failed.exit_code is None else in_words(failed.exit_code))
    sure = f"stamped on that node; the clocks agree to ± {event.error_ns / 1e6:.1f} ms"
    first = failed.rank is not None and failed.rank == named
    role = part_of(verdict) if first else "failed on that node first"
    yield _End(part.seconds(failed.at - event.offset_ns), None, who, what, role, sure, first)


def _raised(exception: ExceptionInfo | None) -> str:
    return "" if exception is None else neutral(f"{exception.type}{exception.where}")


def part_of(verdict: Verdict) -> str:
    """What the rank has to do with the end that the verdict names."""
    return "first failure" if verdict.outcome == "failed" else "named by the verdict"


# ------------------------------------------------------------------------------------------- drawing


@dataclass(frozen=True, slots=True)
class Bar:
    """A span within a window: place and width in per cent of it. `letter`: empty if there is no room for it."""

    x: float
    width: float
    row: int
    kind: str
    letter: str
    said: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis. `level`: 0 is always shown, 1 and 2 when there is room for more."""

    x: float
    label: str
    level: int


def bars(view: View) -> Iterator[Bar]:
    """The spans of its lanes; waiting and stalls come last."""
    length = max(view.end - view.begin, 1e-9)
    rows = [(row, lane, span) for row, lane in enumerate(view.lanes) for span in lane.spans]
    rows += [(row, lane, span) for row, lane in enumerate(view.lanes) for span in lane.over]
    for row, lane, span in rows:
        width = 100 * (span.end - span.begin) / length
        letter = KINDS[span.kind][0] if width > _ROOM else ""
        yield Bar(100 * (span.begin - view.begin) / length, width, row, span.kind, letter, f"{lane.label}: {span.said}")


def ticks(begin: float, end: float, origin: float = 0.0) -> list[Tick]:
    """Round times between two, as seconds since `origin`, for three widths of the axis."""
    length = max(end - begin, 1e-9)
    found: dict[float, Tick] = {}
    for level, most in enumerate(_TICKS):
        rough = length / most
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        for count in range(math.ceil((begin - origin) / step - 1e-9), math.floor((end - origin) / step + 1e-9) + 1):
            at = round(count * step, digits)
            label = f"{at:+.{digits}f} s" if origin else f"{at:.{digits}f} s" if length < _MINUTES else _clock(at)
            found.setdefault(at, Tick(100 * (at + origin - begin) / length, label, level))
    return [found[at] for at in sorted(found)]


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
