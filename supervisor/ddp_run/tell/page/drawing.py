"""Where lanes, times and figures are drawn: a timeline in per cent of its width, charts as lines of SVG. Pure."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import add
from typing import Final, TypeVar

from ddp_run.record.events import AttemptStarted, Event, GpuSampled, MemorySampled, ProgressSampled
from ddp_run.tell.page.timeline import KINDS, Journal, View
from ddp_run.values.words import rank_list, size_in_words

_ROOM: Final = 2.0
"""Per cent of a window that a letter needs."""
_TICKS: Final = (5, 20, 80)
_FACTORS: Final = (1, 2, 5, 10, 15, 30)
"""Of a unit: round times are so far apart."""
_MINUTES: Final = 600.0
"""Times of longer windows are shown as hours, minutes and seconds."""


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
        rough = length / most * (1 - 1e-9)
        unit = next((unit for unit in (86400, 3600, 60) if rough > unit / 2), 10 ** math.floor(math.log10(rough)))
        step = next(
            unit * factor for factor in (1, 2, 5, 10, 15, 30, 60, *range(100, 10**6, 100)) if unit * factor >= rough
        )
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        for count in range(math.ceil((begin - origin) / step - 1e-9), math.floor((end - origin) / step + 1e-9) + 1):
            at = round(count * step, digits)
            label = f"{at:+.{digits}f} s" if origin else f"{at:.{digits}f} s" if length < _MINUTES else _clock(at)
            found.setdefault(at, Tick(100 * (at + origin - begin) / length, label, level))
    return [found[at] for at in sorted(found)]


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


# -------------------------------------------------------------------------------------------------- charts

Points = Sequence[tuple[float, float]]
Series = dict[tuple[str, int], list[tuple[float, float]]]
"""By node and rank, GPU or 0."""
_Look = TypeVar("_Look", bound=Event)

_MOST_LINES: Final = 8
_MOST_LOOKS: Final = 180
_LAST_LOOKS: Final = 60
_BINS: Final = 240
_LEAST_POINTS: Final = 2
WIDTH, HEIGHT = 1000, 100
"""Of the coordinates of a chart's lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """`path`: as SVG has it. `last`: the last value in words."""

    label: str
    path: str
    last: str
    dash: int
    """Lines differ by this too, not by colour alone."""


@dataclass(frozen=True, slots=True)
class Chart:
    """`band`: where all the lines lie that aren't drawn one by one."""

    title: str
    lines: tuple[Line, ...]
    top: str
    bottom: str
    """The values at its upper and lower edge."""
    end: float
    """The time at its right edge, in seconds since the job's start."""
    band: str = ""
    band_label: str = ""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Seconds since the job's start: the last one shown, and when attempts began."""

    end: float
    begins: Sequence[float]


def charts(parts: Sequence[Journal], named: Set[int]) -> tuple[Chart, ...]:
    """Those of which something was seen. `named`: ranks that are drawn one by one, however many there are."""
    end = max((part.seconds(part.events[-1].at) for part in parts if part.events), default=0.0)
    begins = (part.seconds(event.at) for part in parts for event in part.events if isinstance(event, AttemptStarted))
    axis = _Axis(end, sorted(begins))
    steps = _series(parts, ProgressSampled, lambda look: zip(look.ranks, look.steps, strict=True))
    memory = _series(parts, MemorySampled, lambda look: zip(look.ranks, map(add, look.own, look.children), strict=True))
    free = _series(parts, MemorySampled, lambda look: [(0, look.available)])
    in_cgroup = _series(parts, MemorySampled, lambda look: [(0, look.cgroup_used)])
    shm = _series(parts, MemorySampled, lambda look: [(0, look.shm_free)])
    on_gpus = _series(parts, GpuSampled, lambda look: zip(look.gpus, look.used, strict=True))
    busy = _series(parts, GpuSampled, lambda look: zip(look.gpus, look.busy, strict=True))
    found = (
        _chart("Optimizer steps of each rank", steps, "{:.0f}".format, named, axis),
        _chart(
            "Seconds per optimizer step, mean between two looks", _step_times(steps), "{:.3g} s".format, named, axis
        ),
        _chart("Memory of each rank, with its child processes", memory, size_in_words, named, axis),
        _chart("Available memory of the host", free, size_in_words, set(), axis, "host"),
        _chart("Memory used in the cgroup", in_cgroup, size_in_words, set(), axis, "cgroup"),
        _chart("Free in /dev/shm", shm, size_in_words, set(), axis, "free"),
        _chart("GPU memory in use", on_gpus, size_in_words, set(), axis, "GPU"),
        _chart("Share of time in which a GPU ran a kernel", busy, "{:.0f} %".format, set(), axis, "GPU"),
    )
    return tuple(chart for chart in found if chart is not None)


def _series(
    parts: Sequence[Journal], kind: type[_Look], read: Callable[[_Look], Iterable[tuple[int, float | None]]]
) -> Series:
    """The values that each look gives; of very many looks, the last and some of those before."""
    found: Series = {}
    for part in parts:
        looks: list[_Look] = [event for event in part.events if isinstance(event, kind)]
        every = 1 + len(looks) // _MOST_LOOKS
        for look in (*looks[:-_LAST_LOOKS:every], *looks[-_LAST_LOOKS:]):
            for number, value in read(look):
                if value is not None:
                    found.setdefault((part.node, number), []).append((part.seconds(look.at), value))
    return found


def _step_times(steps: Series) -> Series:
    """Between two looks, from the first step on; a count that falls belongs to another attempt."""
    found: Series = {}
    for key, points in steps.items():
        for (begin, before), (end, now) in pairwise(points):
            if now > before > 0 and end > begin:
                mean = (end - begin) / (now - before)
                found.setdefault(key, []).extend(((begin, mean), (end, mean)))
    return found


def _chart(
    title: str,
    series: Series,
    words: Callable[[float], str],
    named: Set[int],
    axis: _Axis,
    what: str = "rank",
) -> Chart | None:
    if axis.end <= 0 or max((len(points) for points in series.values()), default=0) < _LEAST_POINTS:
        return None
    if not any(value for points in series.values() for _, value in points):
        return None  # steps that nobody counted
    top = max(value for points in series.values() for _, value in points)
    equal: dict[tuple[str, tuple[tuple[float, float], ...]], list[int]] = {}
    for (node, number), points in sorted(series.items()):
        equal.setdefault((node, tuple(points)), []).append(number)
    by_last = sorted(equal, key=lambda key: key[1][-1][1])
    apart = [key for key in equal if not named.isdisjoint(equal[key])]
    chosen = {*(by_last if len(by_last) <= _MOST_LINES else (apart + by_last[:1] + by_last[-1:])[:_MOST_LINES])}
    lines = tuple(
        Line(
            _label(key[0], equal[key], what),
            _path(key[1], axis, top),
            words(key[1][-1][1]),
            index % 4,
        )
        for index, key in enumerate(key for key in equal if key in chosen)
    )
    others = [key for key in equal if key not in chosen]
    band = _band([points for _, points in others], axis.end, top) if others else ""
    label = f"{what}s {rank_list({number for key in others for number in equal[key]})}" if others else ""
    return Chart(title, lines, words(top), words(0), axis.end, band, label)


def _label(node: str, numbers: Sequence[int], what: str) -> str:
    many = "s" if len(numbers) > 1 else ""
    return ": ".join(filter(None, (node, f"{what}{many} {rank_list(numbers)}" if what in ("rank", "GPU") else what)))


def _drawn(points: Points, end: float, top: float) -> str:
    return " ".join(f"{WIDTH * at / end:.1f},{HEIGHT * (1 - value / top):.1f}" for at, value in points)


def _path(points: Points, axis: _Axis, top: float) -> str:
    """The points as lines, one for each attempt."""
    lines = groupby(points, key=lambda point: bisect(axis.begins, point[0]))
    return " ".join(f"M{_drawn([*line], axis.end, top)}" for _attempt, line in lines)


def _band(series: Sequence[Points], end: float, top: float) -> str:
    """The outline of the area between the least and the largest value."""
    bins: dict[int, tuple[float, float]] = {}
    for at, value in (point for points in series for point in points):
        place = int(_BINS * at / end)
        low, high = bins.get(place, (value, value))
        bins[place] = min(low, value), max(high, value)
    times = [(end * (place + 0.5) / _BINS, bins[place]) for place in sorted(bins)]
    return _drawn([*((at, high) for at, (_, high) in times), *((at, low) for at, (low, _) in times[::-1])], end, top)
