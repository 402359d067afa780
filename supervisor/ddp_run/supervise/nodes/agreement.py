"""What both sides of an agreement between nodes share: its times, and what the run tells it and hears from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ddp_run.judge.of_nodes import Ends
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.record.events import Event, EventSink, NodeRankTaken, PeerFailed
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.values.helper_process import HelperProcesses
from ddp_run.values.node_fact import Fact

BEAT_S = 1.0
"""Between two signs of life of node 0; every node answers each."""
LOST_S = 13.0
"""A node that is silent for so long is lost, at once: with the beat that may still come through a cut of one way, it is
named within 14 s. A network that is cut for 10 s harms nothing: who hears nothing dials anew, once a second, as TCP
alone would wait longer and longer. The rest is for the beat before the cut, the dialling after it, and a busy host."""
REDIAL_S = 1.0
SOON_S = 0.05
"""The least time between two looks at who is silent."""
SILENT_S = 4.0
"""After so long without a sign of life a node dials anew."""
DEAD_S = 2.0
"""A connection that was closed without a word is made anew within this time, or its ddp-run has ended."""
PATIENCE_S = 30.0
"""Between two lines that say whose verdict is waited for."""
WAITING_S = 4.0
"""Between two lines that say who is missing, before the ranks start; with the second that it takes to see it, 5 s."""
FIRST_WORD_S = 20.0
"""A node whose ranks have started, and which has not joined by then, has no ddp-run (torchrun, say) or no way here."""
VERDICTS_S = 4.0
"""How long, beyond the grace, the verdicts of all nodes are waited for once one has failed."""


@dataclass(frozen=True, slots=True)
class Place:
    """This node in its job, and where the nodes meet. `address`: node 0's."""

    node_rank: int
    nodes: int
    host: str
    folder: str
    address: str
    port: int
    job_key: bytes
    grace_s: float
    agent_restarts: bool
    """The agents start failed ranks again by themselves (--max-restarts)."""
    master_port: int = 0
    join_s: float = 900.0
    """How long nodes may be missing before the job ends: as long as torch's own rendezvous waits."""
    facts: tuple[Fact, ...] = ()
    """What this node is like; empty with `--preflight off`."""
    strict: bool = False
    """A difference between nodes that breaks jobs ends this one."""
    host_names: tuple[str, ...] = ()
    """A command that prints the hosts of all nodes, by node rank; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Ears:
    """What an agreement needs of the run: its loop, its sinks, a way to say things, and whom to tell of an end."""

    loop: Loop
    emit: EventSink
    say: Callable[[str], None]
    end_ranks: Callable[[int, Event], None]
    """Of an attempt, or let its agent go where all ranks have ended; the next one is not begun where it has not been
    yet."""
    serve: Callable[[float], object]
    """Have the loop served for at most so many seconds."""
    stops: Callable[[], int]
    """How often ddp-run was told to stop."""
    helpers: HelperProcesses = field(default_factory=HelperProcesses)
    """Where processes beside the job are known."""


def first_words_until(began: float) -> float:
    """On time.monotonic(): how long a job that ends now waits for nodes that it has met but not heard yet.

    `began`: when this node began to listen, or to dial.
    """
    return min(time.monotonic() + VERDICTS_S, began + FIRST_WORD_S)


Decide = Callable[[Verdict], Decision]
"""What follows from the job's verdict. Asked on node 0; the others get its answer."""


class Agreement(Protocol):
    """This node's side."""

    def hear(self, event: Event) -> None:
        """A sink: what the other nodes must know of this one's events is sent."""

    def agree(
        self, attempt: int, verdict: Verdict, ends: Ends, last_lines: tuple[str, ...], decide: Decide
    ) -> tuple[Verdict, Decision]:
        """The job's verdict, and what follows. This node's own, and no retry, where the others cannot be asked."""

    def where(self) -> tuple[str, str] | None:
        """Host and folder of the whole verdict, where that is on another node."""

    def close(self) -> None:
        """This node leaves."""


def end_for_rank(ears: Ears, place: Place, attempt: int, taken_by: str) -> None:
    """End this node's part of a job in which another host has its node rank."""
    clash = NodeRankTaken(now(), place.node_rank, taken_by, place.host)
    ears.emit(clash)
    ears.end_ranks(attempt, PeerFailed(now(), place.node_rank, taken_by, clash.said))


def wait(ears: Ears, *, for_whom: Callable[[], str], ended: Callable[[], bool], at_most_s: float) -> None:
    """Serve the loop until `for_whom` names nobody, or `at_most_s` after the job has ended.

    To be told to stop once ends the job, so that the wait ends with it; to be told again ends the wait.
    """
    deadline, stops, say_at = None, ears.stops(), time.monotonic() + PATIENCE_S
    while (names := for_whom()) and ears.stops() < stops + 2:
        moment = time.monotonic()
        if ended() and deadline is None:
            deadline = moment + at_most_s
        if deadline is not None and moment >= deadline:
            return
        if moment >= say_at:
            say_at += PATIENCE_S
            ears.say(f"waiting for {names} to end")
        ears.serve(1.0 if deadline is None else min(1.0, deadline - moment))


def job_key(environ: Mapping[str, str], job: str) -> tuple[bytes, bool]:
    """The key of a job's messages, and whether it is a secret: DDP_RUN_SECRET, else what only tells jobs apart."""
    secret = environ.get("DDP_RUN_SECRET", "")
    return f"{secret}\n{job}".encode(), bool(secret)
