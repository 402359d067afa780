"""Facts of a run (`Event`, past tense), as its journal holds them and as an attempt's machine receives them.

Each carries `at`, nanoseconds of CLOCK_MONOTONIC at which the thing *happened*. That clock is shared by all
processes of a host, so a stamp taken inside a rank and one taken here compare directly.

Exit codes follow Python's convention: `code >= 0` is an exit code, `code < 0` the negated number of a signal.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NewType

from ddp_run.values.lines import neutral
from ddp_run.values.typed_fields import frozen

Rank = NewType("Rank", int)
"""Global rank: unique in the whole job."""
LocalRank = NewType("LocalRank", int)
"""Rank within one node."""
MonotonicNs = NewType("MonotonicNs", int)
"""Nanoseconds of CLOCK_MONOTONIC."""


@frozen
class UnusedParameters:
    """What DDP's error has only numbers for: parameters that got no gradient. `names`: the first fifty of `count`.

    `model` is the class of the model; `file` and `line` are where its `forward` is, null if that isn't Python.
    """

    names: tuple[str, ...]
    count: int
    model: str
    file: str | None = None
    line: int | None = None


@frozen
class ExceptionInfo:
    """A Python exception as its own rank saw it, or as its printed traceback shows it.

    `file` and `line` are the innermost frame that is the user's own (not in site-packages or the standard
    library), or the innermost frame if there is none; null if nothing shows them. `function` is the name of that
    frame's function. `traceback` is the printed form without frames of ddp-run.

    A program chooses the names, and a class may be called anything: they are made one line without control characters.
    """

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    traceback: str = ""
    unused: UnusedParameters | None = None

    def __post_init__(self) -> None:
        for name in ("type", "file", "function"):
            given = getattr(self, name)
            if given is not None and not given.isprintable():
                object.__setattr__(self, name, neutral(given))

    @property
    def where(self) -> str:
        """` (train.py:88)`, to stand behind what happened; empty where it is not known."""
        return f" ({self.file.rpartition('/')[2]}:{self.line})" if self.file else ""


# ---------------------------------------------------------------------------------------------- events


@frozen
class OwnProcess:
    """The process that ddp-run is: another one never has all four. `started`: clock ticks since the boot."""

    pid: int
    started: int
    pids: int
    """Number of the pid namespace that `pid` is of."""
    boot: str
    """The kernel's id of the host's present boot."""


@frozen
class RunStarted:
    """First event of a journal. `wall_ns` is time.time_ns() at `at`: it turns every other stamp into a date."""

    at: MonotonicNs
    wall_ns: int
    run_id: str
    host: str
    node_rank: int
    nodes: int
    argv: tuple[str, ...]
    max_retries: int
    retry: str
    grace_s: float
    restarts: int
    """`--max-restarts` of the agent: how often it starts the ranks again inside one attempt."""
    version: str
    process: OwnProcess | None = None


@frozen
class AttemptStarted:
    """An agent is about to be started. `port` is the master port that ddp-run chose, null if torch chooses."""

    at: MonotonicNs
    attempt: int
    argv: tuple[str, ...]
    port: int | None


@frozen
class AgentStarted:
    """The agent process runs."""

    at: MonotonicNs
    pid: int


@frozen
class RankStarted:
    """A rank has said hello, before its first user line. `restart` counts the agent's restarts from 0."""

    at: MonotonicNs
    rank: Rank
    local_rank: LocalRank
    restart: int
    pid: int
    world_size: int
    local_world_size: int
    folder: str
    """Its folder, relative to the run's folder."""
    watched: bool = False
    """It says which phase it is in."""
    links: tuple[str, ...] = ()
    """Paths of files that the user's own --logs-specs chose for it: files in its folder are links to them."""


@frozen
class RankFailed:
    """An exception left the rank's program, or it asked to exit with a code other than 0; stamped inside the rank.

    The process may live on for a while (atexit, threads, torch's teardown): RankExited follows.
    """

    at: MonotonicNs
    rank: Rank
    restart: int
    code: int
    """The exit code the interpreter is going to give."""
    exception: ExceptionInfo | None


@frozen
class RankExited:
    """The kernel reported the rank's death. `code` is null when nobody could read it before the agent reaped it.

    `dumped`: the kernel made a core dump of it (bit 0x80 of the wait status); null if the status was not read.
    """

    at: MonotonicNs
    rank: Rank
    restart: int
    code: int | None
    dumped: bool | None = None


@frozen
class AgentReported:
    """The agent has written its account of the failure, whole; what it does from here on is to take itself down."""

    at: MonotonicNs


@frozen
class AgentExited:
    """The agent was reaped."""

    at: MonotonicNs
    code: int


@frozen
class SignalReceived:
    """ddp-run received a signal."""

    at: MonotonicNs
    signum: int


class Target(StrEnum):
    """Whom a signal is for."""

    AGENT = "agent"
    RANKS = "ranks"
    JOB = "job"
    """The agent, the ranks and everything that descends from them."""
    LEFTOVERS = "leftovers"
    """What ranks left behind."""


@frozen
class SignalSent:
    """ddp-run sent a signal."""

    at: MonotonicNs
    target: Target
    signum: int
    pids: tuple[int, ...]
    reason: str


class TimerKind(StrEnum):
    """What a deadline is for."""

    GRACE = "grace"
    """Every process that was asked to end must have ended by then."""
    AGENT = "agent"
    """The agent has ended by then, its ranks being gone."""
    GIVE_UP = "give-up"
    """What SIGKILL has not ended by then is not waited for."""
    UNFINISHED = "unfinished"
    """People are told who was to end and has not: one rank, those of a start that the agent starts again, or all."""
    TEARDOWN = "teardown"
    """Such a rank has ended by then."""
    SURVIVORS = "survivors"
    """All ranks of a start that the agent starts again have ended by then."""


@frozen
class Timer:
    """One deadline: of the whole attempt, of one rank, or of all ranks of one restart."""

    kind: TimerKind
    rank: Rank | None
    restart: int | None


@frozen
class TimerFired(Timer):
    """The deadline of this timer, set with `SetTimer`, has passed."""

    at: MonotonicNs


@frozen
class MemoryCounted:
    """Out-of-memory kills so far, as the kernel counts them: host-wide and in this process' own memory cgroup."""

    at: MonotonicNs
    host_oom_kills: int | None
    cgroup_oom_kills: int | None


@frozen
class MemorySampled:
    """Memory in bytes at one moment. `own[i]` and `children[i]` are the resident memory of rank `ranks[i]` and of the
    processes below it (pages they share count for each of them).

    `available` and `total` are the host's; `cgroup_used` and `cgroup_limit` those of the tightest memory cgroup that
    this process is in. Null: cannot be read, or there is no limit.
    """

    at: MonotonicNs
    ranks: tuple[Rank, ...]
    own: tuple[int, ...]
    children: tuple[int, ...]
    available: int | None
    total: int | None
    cgroup_used: int | None
    cgroup_limit: int | None
    shm_free: int | None
    """Free bytes of /dev/shm, and its size, where a tmpfs is mounted there."""
    shm_total: int | None


@frozen
class GpuSampled:
    """Memory in bytes and use of this node's GPUs at one moment, by NVML. `gpus` are their numbers as nvidia-smi has
    them, `busy` per cent of the time in which a kernel ran; null: cannot be read.

    Process `pids[i]` holds `held[i]` bytes of GPU `on[i]`; `members[i]` is the rank that it is, or descends from, null
    for a process that isn't a rank's. Where `own_pids` is false these pids are those of another pid namespace, or there
    are none: whose they are is not known. `visible[i]` are the GPUs of rank `ranks[i]` in the order in which torch
    counts them, as its environment had them when it started; null: not known.
    """

    at: MonotonicNs
    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    used: tuple[int, ...]
    free: tuple[int, ...]
    total: tuple[int, ...]
    busy: tuple[int | None, ...]
    pids: tuple[int, ...]
    on: tuple[int, ...]
    held: tuple[int | None, ...]
    names: tuple[str, ...]
    members: tuple[Rank | None, ...]
    own_pids: bool
    ranks: tuple[Rank, ...]
    visible: tuple[tuple[int, ...] | None, ...]


@frozen
class SpaceCounted:
    """Free space of the file system that `path` is on, in bytes and inodes as an ordinary user may take them.

    A file system without a fixed number of inodes (btrfs) has 0 of 0.
    """

    at: MonotonicNs
    path: str
    free: int
    total: int
    free_inodes: int
    total_inodes: int


@frozen
class KernelLogged:
    """Lines that the kernel logged while the attempt ran and that may explain a death.

    `left_out`: how many such lines were not kept. `own_pids`: the pids in them are those that this process sees (both
    are in the first pid namespace).
    """

    at: MonotonicNs
    lines: tuple[str, ...]
    left_out: int
    own_pids: bool


@frozen
class CoreDumped:
    """The kernel made a core dump of a rank.

    `pattern` is /proc/sys/kernel/core_pattern (null: cannot be read), `path` the file where one was found.
    """

    at: MonotonicNs
    rank: Rank
    restart: int
    pattern: str | None
    path: str | None


@frozen
class RankPhase:
    """A rank came into a phase: init (it joins the process group), after-init, training (its first optimizer step is
    done) or shutdown (it destroys the group). Before the first it is in before-init. replaced: its process runs another
    program from here on (exec), in which nothing is seen."""

    at: MonotonicNs
    rank: Rank
    restart: int
    phase: str


@frozen
class RankFinished:
    """The rank's program ended with 0; stamped inside the rank.

    The process may live on for seconds (atexit, threads, torch's teardown), its connections closed: RankExited follows.
    """

    at: MonotonicNs
    rank: Rank
    restart: int


@frozen
class ProgressSampled:
    """Where the ranks stood at one moment: `steps[i]` optimizer steps and `collectives[i]` of the default group are
    those of rank `ranks[i]`, and `calls[i]` is the call of torch's that it was in (set_device, the wrapping of a
    model), empty for none."""

    at: MonotonicNs
    ranks: tuple[Rank, ...]
    phases: tuple[str, ...]
    steps: tuple[int, ...]
    collectives: tuple[int, ...]
    calls: tuple[str, ...] = ()


@frozen
class StragglerSeen:
    """A rank comes last to nearly all collectives: in `times` of `compared` the others of its node waited for it, so
    many seconds typically, where a step takes `step_s` seconds."""

    at: MonotonicNs
    rank: Rank
    times: int
    compared: int
    waited_s: float
    step_s: float


@frozen
class StallSeen:
    """No rank has made progress since `since`, and this is what a closer look showed. `hung`: nothing that ends by
    itself, it seems. `culprits`: whom the others, `waiting`, wait for; empty where that is not known.
    `cause` is a name of the catalogue, `quotes` what the ranks do, in groups."""

    at: MonotonicNs
    cause: str
    hung: bool
    said: str
    culprits: tuple[Rank, ...]
    waiting: tuple[Rank, ...]
    since: MonotonicNs
    quotes: tuple[str, ...]

    @property
    def told(self) -> str:
        """In words for people: a slow step isn't called a hang."""
        return f"{'no progress' if self.hung else 'waiting'}: {self.said}"


@frozen
class NativeFramesSeen:
    """Where in native code a rank stands that was said to be a culprit; its frames, innermost first, as lines."""

    at: MonotonicNs
    rank: Rank
    frames: tuple[str, ...]

    @property
    def quotes(self) -> tuple[str, ...]:
        """With a line before them that says whose they are."""
        return (f"rank {self.rank}, native frames:", *self.frames)


@frozen
class StallEnded:
    """A job that had stood still makes progress again, after so many seconds."""

    at: MonotonicNs
    after_s: float


@frozen
class HangTimedOut:
    """No progress for longer than --hang-timeout: the job is ended."""

    at: MonotonicNs
    after_s: float


@frozen
class RanksEnded:
    """All ranks of this node have ended well; those of other nodes may go on."""

    at: MonotonicNs


@frozen
class AllRanksEnded:
    """The ranks of all nodes have ended: no agent is needed any more. `well`: all of them with 0, and nobody failed."""

    at: MonotonicNs
    well: bool = True


@frozen
class PeerFailed:
    """Another node of the job fails, or is lost: this one's ranks are to end too. `said` is a line for people."""

    at: MonotonicNs
    node_rank: int
    host: str
    said: str


@frozen
class NodesCompared:
    """How the nodes of the job differ before its ranks start, on node 0: a line for each fact.

    `breaking`: differences that often break jobs; `refused`: the job is ended for them (--preflight strict).
    """

    at: MonotonicNs
    breaking: tuple[str, ...]
    differing: tuple[str, ...]
    """Other differences."""
    alike: tuple[str, ...]
    refused: bool


@frozen
class NodeRankTaken:
    """Two nodes say that they have this rank, so the job cannot start: `host` had it first."""

    at: MonotonicNs
    node_rank: int
    host: str
    other: str

    @property
    def said(self) -> str:
        """What is wrong, in a line."""
        who = f"two launches on {self.host}" if self.host == self.other else f"{self.host} and {self.other}"
        return f"{who} both say that they are node {self.node_rank}: give each node its own --node-rank"


@frozen
class NodeReported:
    """What another node said of its attempt, on node 0: its verdict (JSON), or why there is none.

    Stamps in it are of its own clock, which is `offset_ns` before ours, known to `error_ns`.
    """

    at: MonotonicNs
    node_rank: int
    host: str
    folder: str
    verdict: str | None
    lost: str | None
    offset_ns: int
    error_ns: int
    finished: tuple[Rank, ...]
    """Ranks that ended with 0, and when."""
    finished_at: tuple[MonotonicNs, ...]
    failed_at: MonotonicNs | None
    """When the first of its ranks failed, whatever of."""
    first: bool
    """It was the first node to say that it fails."""


@frozen
class VerdictAgreed:
    """The job's verdict (JSON), as node 0 says it: `host` and `folder` have the whole of it."""

    at: MonotonicNs
    host: str
    folder: str
    verdict: str


@frozen
class NotEnded:
    """A process of the job that SIGKILL has not ended yet when the attempt is over: it waits in the kernel.

    `rank` and `restart` are null if it isn't a rank. `state` as in /proc/PID/stat, `waits_on` what it waits for, where
    that can be read; `release`: a command that ends such waits, for mounts that have one.
    """

    at: MonotonicNs
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
class Noted:
    """Something worth keeping that decides nothing: an observation that could not be made, a process cleaned up."""

    at: MonotonicNs
    text: str


class Next(StrEnum):
    """What follows an attempt."""

    RETRY = "retry"
    STOP = "stop"


@frozen
class AttemptEnded:
    """An attempt is over; what was decided about the next one. Derived: a replay computes it again."""

    at: MonotonicNs
    attempt: int
    outcome: str
    cause: str | None
    exit_code: int
    decision: Next
    reason: str


@frozen
class RunEnded:
    """Last event of a journal."""

    at: MonotonicNs
    exit_code: int


Decisive = (
    AgentStarted
    | RankStarted
    | RankFailed
    | RankExited
    | AgentReported
    | AgentExited
    | SignalReceived
    | TimerFired
    | HangTimedOut
    | AllRanksEnded
    | PeerFailed
)
"""What an attempt's machine may act on."""

Kept = (
    RunStarted
    | AttemptStarted
    | SignalSent
    | MemoryCounted
    | MemorySampled
    | GpuSampled
    | SpaceCounted
    | KernelLogged
    | CoreDumped
    | RankPhase
    | RankFinished
    | ProgressSampled
    | StragglerSeen
    | StallSeen
    | NativeFramesSeen
    | StallEnded
    | NotEnded
    | RanksEnded
    | NodesCompared
    | NodeRankTaken
    | NodeReported
    | VerdictAgreed
    | Noted
    | AttemptEnded
    | RunEnded
)
"""What is written down, shown and judged, and changes nothing while the attempt runs."""

Event = Decisive | Kept

EventSink = Callable[[Event], None]
"""Receives each event: the journal first, then the console."""
