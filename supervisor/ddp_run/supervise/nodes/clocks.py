"""What beats show of time: ddp-run stood still, this host was suspended, its clock was set, another node's is ahead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from ddp_run.judge import unlike_nodes
from ddp_run.judge.of_nodes import NodeReport
from ddp_run.supervise.nodes.messages import BEAT_S, LOST_S, SILENT_S, Pong
from ddp_run.values.node_fact import Fact

_LEAST_S = 2.0
"""A smaller jump may be the time between two readings, or a clock that is being slewed."""
_UNKNOWN_NS = 10**12
_FIRST_KNOWN_NS = 5_000_000
_DRIFT_PPM = 15
"""By how much two clocks may run apart (RFC 5905, 11.2, PHI): an older measurement is worth less than a new one."""


@final
@dataclass(slots=True)
class Standstill:
    """The last time that ddp-run didn't run: stopped by a signal, frozen with its container, or starved of CPU.

    Ctrl-Z doesn't count, as the other nodes are told.
    """

    _looked_at: float = field(default_factory=time.monotonic)
    _seconds: float = 0.0
    _ended_at: float = 0.0
    has_cost_nodes: bool = False
    """Other nodes were lost right after a standstill that was too long for them."""

    def look(self, moment: float) -> float:
        """Call it with each beat. Returns for how many seconds nothing was heard because nobody listened."""
        by_s, self._looked_at = moment - self._looked_at, moment
        if by_s < SILENT_S:
            return 0.0
        self._seconds, self._ended_at = by_s, moment
        return by_s

    def lost(self, moment: float) -> None:
        """Another node is lost."""
        too_long = self._seconds >= LOST_S - BEAT_S
        self.has_cost_nodes = self.has_cost_nodes or (too_long and moment - self._ended_at <= LOST_S + BEAT_S)

    def told_by(self, reports: Sequence[NodeReport]) -> list[NodeReport]:
        """The nodes' reports; if others are gone because they took this node (the first) for lost, it says so.

        They may have sent their reports before they went, so none of them need be lost.
        """
        self.lost(time.monotonic())
        if not self.has_cost_nodes:
            return list(reports)
        how = f"stood still for {self._seconds:.0f} s, stopped or starved of CPU: other nodes took it for lost"
        return [replace(reports[0], lost=how), *(report for report in reports[1:] if report.lost is None)]


@dataclass(frozen=True, slots=True)
class Readings:
    """Seconds, read together. While the host is suspended, CLOCK_BOOTTIME goes on and CLOCK_MONOTONIC does not
    (clock_gettime(2)); only the wall clock can be set.
    """

    monotonic: float
    boottime: float
    wall: float


def read() -> Readings:
    """Read all three clocks."""
    return Readings(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


@final
@dataclass(slots=True)
class HostClocks:
    """This host's clocks, read with each beat."""

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
                f"the clock of this host was set {way} by {abs(set_by_s):.0f} s: don't compare times in its logs from "
                "before and after; the order of failures does not depend on it"
            )
        return tuple(said)


@final
@dataclass(slots=True)
class PeerClock:
    """Another node's clocks, measured by its answers to pings."""

    offset_ns: int = 0
    """Its CLOCK_MONOTONIC minus ours."""
    error_ns: int = _UNKNOWN_NS
    _wall_offset_ns: int = 0
    """Its wall clock minus ours, known to `error_ns`, too."""
    _asked: tuple[int, int] = (0, 0)
    """Number and time (ns) of the last ping."""
    _measured_at: int = 0

    def ask(self, number: int) -> None:
        """A ping with this number goes out now."""
        self._asked = number, time.monotonic_ns()

    def measure(self, pong: Pong) -> None:
        """Take an answer; the quickest of the last ones counts: half the round trip is the error (RFC 5905, 8)."""
        wall, received = time.time_ns(), time.monotonic_ns()  # the wall clock first: `half` bounds its error too
        number, sent = self._asked
        half = (received - sent) // 2
        aged = self.error_ns + _DRIFT_PPM * (received - self._measured_at) // 1_000_000
        if pong.number == number and half < aged:
            self.offset_ns, self.error_ns, self._measured_at = pong.at - (sent + half), half, received
            self._wall_offset_ns = pong.wall - (wall - half)

    @property
    def wall_offset_ns(self) -> int | None:
        """Its wall clock minus ours; None if it isn't known well enough to say who came first to a collective."""
        return self._wall_offset_ns if self.error_ns <= _FIRST_KNOWN_NS else None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Its wall clock, as a fact to compare; none until it is known well enough."""
        return unlike_nodes.clock(self._wall_offset_ns, self.error_ns)
