"""What all events have in common; the run, its attempts and their agents; signals and deadlines."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NewType

from ddp_run.values.typed_fields import frozen

Rank = NewType("Rank", int)
"""Global rank: unique in the whole job."""
LocalRank = NewType("LocalRank", int)
"""Rank within one node."""
MonotonicNs = NewType("MonotonicNs", int)
"""Nanoseconds of CLOCK_MONOTONIC."""

KINDS: dict[str, type[Event]] = {}
"""All kinds of events, by name."""


@frozen
class Event:
    """`at` is when it *happened*. All processes of a host share that clock, so stamps of ranks and ours compare."""

    at: MonotonicNs

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls


EventSink = Callable[[Event], None]
"""Receives each event: the journal first, then the console."""


@frozen
class OwnProcess:
    """The process that ddp-run is: another one never has all four. `started`: clock ticks since the boot."""

    pid: int
    started: int
    pids: int
    """Number of the pid namespace that `pid` belongs to."""
    boot: str
    """The kernel's id of the host's current boot."""


@frozen
class RunStarted(Event):
    """First event of a journal. `wall_ns` is time.time_ns() at `at`: it turns every other stamp into a date."""

    wall_ns: int
    run_id: str
    host: str
    node_rank: int | None
    """None: torch numbers the nodes when they have met (`RankStarted.group_rank`)."""
    nodes: int
    argv: tuple[str, ...]
    max_retries: int
    retry: str
    grace_s: float
    restarts: int
    """The agent's `--max-restarts`: how often it starts the ranks again within one attempt."""
    version: str
    process: OwnProcess | None = None
    boards: tuple[str, ...] = ()
    """Folders on this host where its ranks put their boards (`rank/board.py`)."""


@frozen
class AttemptStarted(Event):
    """An agent is about to start. `port` is the master port that ddp-run chose, null if torch chooses."""

    attempt: int
    argv: tuple[str, ...]
    port: int | None


@frozen
class AgentStarted(Event):
    """The agent process runs."""

    pid: int


@frozen
class AgentReported(Event):
    """The agent has finished writing its report of the failure. All it does from here on is exit."""


@frozen
class AgentExited(Event):
    """The agent was reaped."""

    code: int


@frozen
class SignalReceived(Event):
    """ddp-run received a signal."""

    signum: int


class Target(StrEnum):
    """Who gets a signal."""

    AGENT = "agent"
    RANKS = "ranks"
    JOB = "job"
    """The agent, the ranks and everything that descends from them."""
    LEFTOVERS = "leftovers"
    """What ranks left behind."""


@frozen
class SignalSent(Event):
    """ddp-run sent a signal."""

    target: Target
    signum: int
    pids: tuple[int, ...]
    reason: str


class TimerKind(StrEnum):
    """What a deadline is for."""

    GRACE = "grace"
    """For every process that was asked to end."""
    AGENT = "agent"
    """For the agent, once its ranks are gone."""
    GIVE_UP = "give-up"
    """For what SIGKILL hasn't ended: then it isn't waited for any longer."""
    UNFINISHED = "unfinished"
    """A line names who should have ended and hasn't: one rank, those of a start that the agent repeats, or all."""
    TEARDOWN = "teardown"
    """For a rank whose program has failed."""
    SURVIVORS = "survivors"
    """For all ranks of a start that the agent repeats."""


@frozen
class Timer:
    """One deadline: of the whole attempt, of one rank, or of all ranks of one restart."""

    kind: TimerKind
    rank: Rank | None
    restart: int | None


@frozen
class TimerFired(Event):
    """A deadline has passed: `timer` has its `kind`, and the `rank` or `restart` that it is about, if not of all."""

    timer: Timer


@frozen
class NotEnded(Event):
    """A process of the job that SIGKILL hasn't ended when the attempt is over: it waits in the kernel.

    `rank` and `restart` are null if it isn't a rank. `state` is as in /proc/PID/stat. `waits_on`: what it waits for, if
    that can be read. `release`: a command that ends such waits, if its mount has one.
    """

    pid: int
    rank: Rank | None
    restart: int | None
    state: str
    waits_on: str | None
    release: str | None

    @property
    def said(self) -> str:
        """What happened, in a line."""
        who = f"process {self.pid}" if self.rank is None else f"rank {self.rank} (process {self.pid})"
        if self.state != "D":
            return f"{who} was still running after SIGKILL"
        on = f": {self.waits_on}" if self.waits_on else ""
        return f"{who} cannot be killed, SIGKILL is pending: stuck in the kernel (state D){on}"


@frozen
class Noted(Event):
    """Something worth keeping that decides nothing: an observation that couldn't be made, a process cleaned up."""

    text: str


class Next(StrEnum):
    """What follows an attempt."""

    RETRY = "retry"
    STOP = "stop"


@frozen
class AttemptEnded(Event):
    """An attempt is over; what was decided about the next one. Derived: a replay computes it again."""

    attempt: int
    outcome: str
    cause: str | None
    exit_code: int
    decision: Next
    reason: str


@frozen
class RunEnded(Event):
    """Last event of a journal."""

    exit_code: int
