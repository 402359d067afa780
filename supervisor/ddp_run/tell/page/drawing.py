"""Where the lanes of a timeline and its times are drawn, in per cent of its width. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddp_run.tell.page.timeline import KINDS, View

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
