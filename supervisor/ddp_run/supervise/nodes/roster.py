"""Which nodes the job has, as node 0 knows them; which are missing; who takes the place of whom.

The scheduler knows the hosts of missing ones.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import count
from typing import final

from ddp_run.judge.bad_hosts import failure_of
from ddp_run.judge.of_nodes import Ends, NodeReport, by_clock_of
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Retry, Verdict
from ddp_run.plan import net
from ddp_run.record.events import NodesReplaced
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.clocks import PeerClock
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import DEAD_S, LOST_S, SILENT_S, Agreed, Join, Ping, Report
from ddp_run.supervise.nodes.place import Ears, Place
from ddp_run.supervise.nodes.reach import silence
from ddp_run.values.helper_process import HelperProcess, spawn
from ddp_run.values.words import named_nodes, node_name

_ANSWER_S = 5.0
_MOST_NAMES = 8


@dataclass(slots=True)
class OtherNode:
    """A node that has joined: its connection, its clock, what it said of the attempt."""

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
    clock: PeerClock = field(default_factory=PeerClock)

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
            offset_ns=self.clock.offset_ns,
            error_ns=self.clock.error_ns,
            ends=report.ends if report is not None else Ends(),
            first=first,
        )

    def tell(self, agreed: Agreed) -> None:
        """Send what was agreed, with the verdict's time on this node's own clock."""
        self.link.send(replace(agreed, verdict=by_clock_of(agreed.verdict, self.clock.offset_ns)))

    def ping(self, number: int, question: int | None = None) -> None:
        """Ask for a sign of life, and for the time."""
        self.clock.ask(number)
        self.link.send(Ping(number, question))


@final
class Roster:
    """The places of the job, and who has which."""

    def __init__(self, place: Place, ears: Ears) -> None:
        self._place, self._ears = place, ears
        self.nodes: dict[int, OtherNode] = {}
        """Those that have joined: by node rank, or in the order in which they came if torch numbers them."""
        self.round_size = 0 if place.least is not None else place.nodes
        """How many nodes run ranks, node 0 among them. 0: in an elastic job torch says so when they start."""
        self._command = place.host_names
        self._names: list[str] = []
        """Of all nodes, by node rank; empty if they are not known."""
        self._process: HelperProcess | None = None

    # ----------------------------------------------------------------- who is here, and who is missing

    def key_of(self, join: Join) -> int | None:
        """The key of the node that says this, 0 for node 0; None if the job has no place for it.

        In an elastic job more nodes may come than it runs on: torch lets them wait.
        """
        given, nodes = join.node_rank, self._place.nodes
        if join.nodes != nodes or (given is None) != (self._place.node_rank is None):
            return None
        if given is not None:
            return given if 0 <= given < nodes else None
        here = (key for key, node in self.nodes.items() if node.is_of(join))
        free = self._free if self._place.least is None else (key for key in count(1) if key not in self.nodes)
        return next(here, next(iter(free), None))

    def settle(self, *, is_in: bool) -> list[OtherNode]:
        """A node that is gone leaves its place if it had no number yet, or once an elastic job runs without it.

        How the job ends has nothing to do with it then. `is_in`: node 0 runs ranks. Returns the spare nodes that take
        part from now on, so that the job has all that it needs.
        """
        gone = [node for node in self.nodes.values() if node.lost is not None and not node.link.is_open]
        if gone:
            here = sum(node.node_rank is not None and node.lost is None for node in self.nodes.values())
            without = self._place.least is not None and 0 < self.round_size <= here + is_in
            for node in gone:
                if without or node.node_rank is None:
                    del self.nodes[node.key]
        if not self._place.spares:
            return []
        taken = self.spares[: max(0, self._place.nodes - 1 - len(self.counted))]
        for node in taken:
            node.is_spare = False
        return taken

    @property
    def counted(self) -> list[OtherNode]:
        """Those that have joined and run ranks; before the start all that have joined.

        In an elastic job, others may wait until torch takes them in.
        """
        is_known = self._place.least is not None and self.round_size > 0
        nodes = (node for node in self.nodes.values() if not node.is_spare)
        return [node for node in nodes if node.node_rank is not None or not is_known]

    @property
    def is_complete(self) -> bool:
        """Whether all nodes that run ranks have joined."""
        return len(self.counted) >= self.round_size - 1

    @property
    def absent(self) -> list[int]:
        """The keys of the nodes that the job needs and that have not joined."""
        here = sum(not node.is_spare for node in self.nodes.values())
        return self._free[: max(0, self._place.needed - 1 - here)]

    @property
    def spares(self) -> list[OtherNode]:
        """Those that wait to take another's place."""
        return [node for _key, node in sorted(self.nodes.items()) if node.is_spare and not node.is_left_out]

    @property
    def _free(self) -> list[int]:
        return [key for key in range(1, self._place.nodes + self._place.spares) if key not in self.nodes]

    # ---------------------------------------------------------------------------- what they are called

    @property
    def missing(self) -> str:
        """`nodes 1-2 of 4`, `1 more node of at least 2`."""
        of = f"{'' if self._place.least is None else 'at least '}{self._place.needed}"
        return f"{self.named(self.absent)} of {of}"

    @property
    def here(self) -> str:
        """`1 (gpu06), 2 (gpu07)`: those that have joined."""
        return ", ".join(node.name.removeprefix("node ") for _, node in sorted(self.nodes.items())) or "none"

    def named(self, keys: Collection[int]) -> str:
        """`node 2 (gpu07)`, `nodes 1,4-5 (gpu06, gpu09, gpu10)`; `node 2` if hosts are not known.

        `2 more nodes`, with hosts if they are known, if torch has not numbered them.
        """
        all_nodes = dict(zip(self.absent, self.never_seen(), strict=True))
        all_nodes |= {key: (node.node_rank, node.join.host) for key, node in self.nodes.items()}
        found = [all_nodes[key] for key in sorted(keys)]
        numbers = [rank for rank, _host in found if rank is not None]
        hosts = [host for _rank, host in found if host]
        if len(numbers) == len(found):
            named = named_nodes(numbers)
        else:
            named = f"{len(found)} more node{'' if len(found) == 1 else 's'}"
        shown = ", ".join(hosts[:_MOST_NAMES]) + (", …" if len(hosts) > _MOST_NAMES else "")
        return f"{named} ({shown})" if len(hosts) == len(found) else named

    def never_seen(self) -> list[tuple[int | None, str]]:
        """Number and host of each node that has not joined; None and empty if they are not known."""
        absent = self.absent
        if self._place.node_rank is not None:
            return [(rank, self._names[rank] if self._names else "") for rank in absent]
        here = {_short(host) for host in (self._place.host, *(node.join.host for node in self.nodes.values()))}
        hosts = [host for host in self._names if _short(host) not in here]
        return [(None, host) for host in (hosts if len(hosts) == len(absent) else [""] * len(absent))]

    def ask(self) -> None:
        """Start the command, once; its answer comes with the loop."""
        command, self._command = self._command, ()
        if not command:
            return
        try:
            self._process = spawn(command, outlives_us=False)
        except OSError:
            return
        self._ears.helpers.add(self._process)
        self._ears.loop.watch(self._process.fd, self._read)
        self._ears.loop.set_timer(_ANSWER_S, self.close, lasting=True)

    def _read(self) -> None:
        if self._process is None:
            return
        said, over = self._process.read()
        if over:
            names = said.decode(errors="replace").split()
            self._names = names if len(names) == self._place.nodes + self._place.spares else []
            self.close()

    def close(self) -> None:
        """Wait no longer for the answer."""
        process, self._process = self._process, None
        if process is not None:
            self._ears.loop.cancel_timer(self.close)
            self._ears.loop.unwatch(process.fd)
            process.end()

    # -------------------------------------------------------------------- what follows from an attempt

    def reports(self, first: OtherNode | None, never_joined: str | None) -> list[NodeReport]:
        """What is known of the attempt on each node that counts. `first`: the first that failed.

        `never_joined`: the message about those that have not joined, if that ended the job.
        """
        reports = [node.told(first=node is first) for node in sorted(self.counted, key=lambda node: node.key)]
        if never_joined is not None:
            reports += [NodeReport(*node, "", None, never_joined) for node in self.never_seen()]
        return reports

    def with_spares(self, verdict: Verdict) -> Verdict:
        """The verdict, with a retry that helps if a spare node can take the place of the host at fault."""
        if not self.spares or not self._at_fault(verdict):
            return verdict
        return replace(verdict, retry=Retry(helps=True, reason="another host may not have this failure"))

    def _at_fault(self, verdict: Verdict) -> list[OtherNode]:
        """The nodes whose host the verdict speaks against."""
        failure = failure_of(verdict, "", 0.0)
        return [node for node in self.counted if failure is not None and node.join.host == failure.host]

    def possible(self, decision: Decision, verdict: Verdict, attempt: int) -> tuple[Decision, list[OtherNode]]:
        """What the nodes can do of a decision about their next `attempt`: all make it, or none does.

        Spare nodes take the places of lost ones, and of those whose host is at fault. Returns who is left out for them;
        those that still are there wait for the job's end.
        """
        if not decision.retry:
            return decision, []
        nodes, spares = self.counted, self.spares
        gone = [node for node in nodes if node.report is None]
        if len(gone) > len(spares):
            node = gone[len(spares)]
            why = f"{node.name} cannot take part in another attempt: it {node.why_silent}"
            return Decision(False, why + (", and no spare node is left" if self._place.spares else "")), []
        if absent := self.absent:
            why = f"{self.named(absent)} did not join: the nodes cannot agree on another attempt"
            return Decision(False, why), []
        left_out = [*gone, *(node for node in self._at_fault(verdict) if node not in gone)][: len(spares)]
        if not left_out:
            return decision, []
        named = tuple(
            f"{node.name}, which {node.why_silent}" if node in gone else f"{node.name}: {verdict.title}"
            for node in left_out
        )
        replaced = NodesReplaced(now(), attempt, named, tuple(node.join.host for node in spares[: len(left_out)]))
        self._ears.emit(replaced)
        for node in left_out:
            node.is_spare = node.is_left_out = True
            if node.lost is not None:
                del self.nodes[node.key]
        return replace(decision, reason=f"{decision.reason}; {replaced.said}"), left_out


def _short(host: str) -> str:
    """Without its domain: schedulers and hosts may disagree about that."""
    return host.partition(".")[0]
