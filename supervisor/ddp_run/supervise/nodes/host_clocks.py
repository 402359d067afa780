"""Whether this host's wall clock was set, or the host suspended, while the job runs: two beats tell."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import final

from ddp_run.record.events import Noted
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.agreement import Ears

_LEAST_S = 2.0
"""Below that it may be the time between two readings, or a clock that is steered."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Seconds, taken together. CLOCK_BOOTTIME goes on while the host is suspended, CLOCK_MONOTONIC does not
    (clock_gettime(2)); only the wall clock can be set.
    """

    monotonic: float
    boottime: float
    wall: float


def read() -> Readings:
    """As they are now."""
    return Readings(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


@final
@dataclass(slots=True)
class HostClocks:
    """To be asked with each beat."""

    _last: Readings = field(default_factory=read)

    def look(self, here: Readings) -> tuple[str, ...]:
        """What happened to them since the last beat, in words for people; mostly nothing."""
        last, self._last = self._last, here
        slept_s = (here.boottime - here.monotonic) - (last.boottime - last.monotonic)
        set_by_s = (here.wall - here.boottime) - (last.wall - last.boottime)
        said = []
        if slept_s > _LEAST_S:
            said.append(f"this host was suspended for {slept_s:.0f} s; other nodes may have taken it for lost")
        if abs(set_by_s) > _LEAST_S:
            way = "forward" if set_by_s > 0 else "back"
            said.append(
                f"the clock of this host was set {way} by {abs(set_by_s):.0f} s: times in its logs before and after "
                "that do not compare; the order of failures does not depend on it"
            )
        return tuple(said)


def say_what_happened(clocks: HostClocks, ears: Ears) -> None:
    """To people, and to the journal."""
    for line in clocks.look(read()):
        ears.emit(Noted(now(), line))
        ears.say(line)
