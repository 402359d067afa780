"""Another node as node 0 knows it: its connection, its clock, what it said of the attempt."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from ddp_run.judge import unlike_nodes
from ddp_run.judge.of_nodes import Ends, NodeReport, by_clock_of
from ddp_run.plan import net
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import DEAD_S, LOST_S, SILENT_S, Agreed, Join, Ping, Pong, Report
from ddp_run.supervise.nodes.reach import silence
from ddp_run.values.node_fact import Fact
from ddp_run.values.words import node_name

_UNKNOWN_NS = 1 << 62
_MOST_ERROR_NS = 10**12
_FIRST_KNOWN_NS = 5_000_000
_DRIFT_PPM = 15
"""By how much two clocks may run apart (RFC 5905, 11.2, PHI): an older measurement is worth less than a new one."""


@dataclass(slots=True)
class OtherNode:
    """A node that has joined."""

    key: int
    """In the hub: its node rank, or the order in which it came if torch numbers the nodes."""
    join: Join
    link: Link
    node_rank: int | None = field(init=False)
    """Its number, if it has one yet."""
    is_spare: bool = False
    """It waits, and has no ranks."""
    is_left_out: bool = False
    """It is at fault, so it waits only for the job's end."""
    closed_at: float | None = None
    """On time.monotonic(): since when its connection is closed."""
    paused: bool = False
    ended_well: bool = False
    """All its ranks have."""
    report: Report | None = None
    lost: str | None = None
    _pinged: tuple[int, int] = (0, 0)
    """Number and time (ns) of the last ping."""
    _offset_ns: int = 0
    _error_ns: int = _UNKNOWN_NS
    _wall_offset_ns: int = 0
    """Its wall clock minus ours, known to `_error_ns`."""
    _measured_at: int = 0

    def __post_init__(self) -> None:
        self.node_rank = self.join.node_rank

    def is_of(self, join: Join) -> bool:
        """Whether it is the run that says this."""
        return (self.join.host, self.join.folder) == (join.host, join.folder)

    @property
    def name(self) -> str:
        """`node 1 (gpu-07)`; `gpu-07` if it has no number yet; `spare node gpu-07`."""
        name = node_name(self.node_rank, self.join.host)
        return f"spare node {name}" if self.is_spare else name

    @property
    def is_through(self) -> bool:
        """It has reported on the attempt, or is lost."""
        return self.report is not None or self.lost is not None

    @property
    def why_silent(self) -> str:
        """Why it hasn't reported on the attempt, to follow its name."""
        return self.lost or "gave no verdict in time"

    def begin_next(self) -> None:
        """Another attempt begins. A node that had reported was not pinged since."""
        self.report, self.ended_well, self.node_rank = None, False, self.join.node_rank
        self.link.heard_at = time.monotonic()

    def gone(self, moment: float) -> str | None:
        """Why the node counts as lost at this moment of time.monotonic(); None if it doesn't."""
        silent_s = moment - self.link.heard_at
        if self.closed_at is not None and moment - self.closed_at > DEAD_S and silent_s > DEAD_S:
            return "its ddp-run was killed or its host went down"
        if silent_s < LOST_S:
            return None
        address, answers = self.link.peer, self.link.acknowledged_within(SILENT_S)
        return silence(LOST_S, answers=answers, has_route=address is None or net.route_to(address) is not None)

    def told(self, *, first: bool = False) -> NodeReport:
        """What is known of its attempt. `first`: it was the first that failed."""
        report = self.report
        return NodeReport(
            node_rank=self.node_rank,
            host=self.join.host,
            folder=self.join.folder,
            verdict=report.verdict if report is not None else None,
            lost=self.why_silent if report is None else None,
            offset_ns=self._offset_ns,
            error_ns=min(self._error_ns, _MOST_ERROR_NS),
            ends=report.ends if report is not None else Ends(),
            first=first,
        )

    def tell(self, agreed: Agreed) -> None:
        """Send what was agreed, with the verdict's time on this node's own clock."""
        self.link.send(replace(agreed, verdict=by_clock_of(agreed.verdict, self._offset_ns)))

    # ------------------------------------------------------------------------------- its clock

    def ping(self, number: int, question: int | None = None) -> None:
        """Ask for a sign of life, and for the time."""
        self._pinged = number, time.monotonic_ns()
        self.link.send(Ping(number, question))

    def measure(self, pong: Pong) -> None:
        """Its clock minus ours, by the quickest of the last answers: half the round trip is the error (RFC 5905, 8)."""
        wall, received = time.time_ns(), time.monotonic_ns()  # the wall clock first: `half` bounds its error too
        number, sent = self._pinged
        half = (received - sent) // 2
        aged = self._error_ns + _DRIFT_PPM * (received - self._measured_at) // 1_000_000
        if pong.number == number and half < aged:
            self._offset_ns, self._error_ns, self._measured_at = pong.at - (sent + half), half, received
            self._wall_offset_ns = pong.wall - (wall - half)

    @property
    def wall_offset_ns(self) -> int | None:
        """Its wall clock minus ours; None if it isn't known well enough to say who came first to a collective."""
        return self._wall_offset_ns if self._error_ns <= _FIRST_KNOWN_NS else None

    @property
    def clock(self) -> tuple[Fact, ...]:
        """Its wall clock, as a fact to compare; none until it is known well enough."""
        return unlike_nodes.clock(self._wall_offset_ns, self._error_ns)
