"""Ranks: their start, their end, and what is seen of their progress."""

from __future__ import annotations

from ddp_run.record.events.attempts import Event, LocalRank, MonotonicNs, Rank
from ddp_run.values.lines import neutral
from ddp_run.values.typed_fields import frozen

SAMPLE_S = 60.0
"""How often the ranks' progress goes into the journal, and a slow rank is looked for."""


@frozen
class UnusedParameters:
    """Parameters that got no gradient, which DDP's error only numbers. `names`: the first fifty of `count`.

    `model` is the class of the model; `file` and `line` say where its `forward` is, null if that isn't Python.
    """

    names: tuple[str, ...]
    count: int
    model: str
    file: str | None = None
    line: int | None = None


@frozen
class ExceptionInfo:
    """A Python exception as its own rank saw it, or as its printed traceback shows it.

    `file`, `line` and `function` are those of the innermost frame of the user's own code: not site-packages, not the
    standard library. Without such a frame, they are those of the innermost one; null if nothing shows them. `traceback`
    is printed without frames of ddp-run.

    A program chooses the names, and a class may have any name: they become one line without control characters.
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
        """` (train.py:88)`, to follow what happened; empty if unknown."""
        return f" ({self.place})" if self.file else ""

    @property
    def place(self) -> str:
        """`train.py:88`; empty if unknown."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else ""


@frozen
class RankStarted(Event):
    """A rank has said hello, before its first user line. `restart` counts the agent's restarts from 0."""

    rank: Rank
    local_rank: LocalRank
    restart: int
    pid: int
    world_size: int
    local_world_size: int
    folder: str
    """Its folder, relative to the run's folder."""
    watched: bool = False
    """It reports its phases."""
    links: tuple[str, ...] = ()
    """Paths of files that the user's own --logs-specs chose for it: files in its folder are links to them."""
    group_rank: int | None = None
    """This node's number, as torch gave it."""
    group_world_size: int | None = None
    """How many nodes the job has in this start of the ranks."""


@frozen
class RankFailed(Event):
    """An exception left the rank's program, or it asked to exit with a code other than 0; stamped inside the rank.

    The process may live on for a while (atexit, threads, torch's teardown): RankExited follows.
    """

    rank: Rank
    restart: int
    code: int
    """The exit code that the interpreter is going to give."""
    exception: ExceptionInfo | None


@frozen
class RankUnwinds(Event):
    """The rank's program destroys its process group while it handles an exception, or one leaves it; stamped inside the
    rank. It may go on after that, or fail: RankFailed follows, if nobody ends it before.
    """

    rank: Rank
    restart: int
    code: int
    """The exit code that the interpreter is going to give if the exception leaves the program."""
    exception: ExceptionInfo | None


@frozen
class RankFinished(Event):
    """The rank's program ended with 0; stamped inside the rank.

    The process may live on for seconds (atexit, threads, torch's teardown), its connections closed: RankExited follows.
    """

    rank: Rank
    restart: int


@frozen
class RankExited(Event):
    """The kernel reported the rank's death. `code` is null if the agent reaped it before anyone could read the code.

    `dumped`: the kernel made a core dump of it (bit 0x80 of the wait status); null if the status wasn't read.
    """

    rank: Rank
    restart: int
    code: int | None
    dumped: bool | None = None


@frozen
class LogCut(Event):
    """The log of a rank's stream was too large for --log-size-cap: so many bytes of its middle are dropped. Recorded
    the first time, and when the attempt is over."""

    rank: Rank
    restart: int
    stream: str
    dropped: int


@frozen
class CoreDumped(Event):
    """The kernel made a core dump of a rank.

    `pattern` is /proc/sys/kernel/core_pattern, null if it can't be read; `path` is the dump, if it was found.
    """

    rank: Rank
    restart: int
    pattern: str | None
    path: str | None


@frozen
class RankPhase(Event):
    """A rank entered a phase: init (it joins the process group), after-init, training (its first optimizer step is
    done) or shutdown (it destroys the group). Before the first it is in before-init. replaced: its process runs another
    program from here on (exec), in which nothing is seen."""

    rank: Rank
    restart: int
    phase: str


@frozen
class ProgressSampled(Event):
    """Where the ranks stood at one moment: rank `ranks[i]` had made `steps[i]` optimizer steps and `collectives[i]`
    collectives of the default group. `calls[i]` is the torch call that it was in (set_device, the wrapping of a model),
    empty if none."""

    ranks: tuple[Rank, ...]
    phases: tuple[str, ...]
    steps: tuple[int, ...]
    collectives: tuple[int, ...]
    calls: tuple[str, ...] = ()


@frozen
class StragglerSeen(Event):
    """A rank comes last to nearly all collectives: in `times` of `compared` the other ranks waited for it, typically
    `waited_s` seconds. A step takes `step_s` seconds. `ranks`: all ranks of a node, if they come last together.
    `node`: their node, if the ranks of all nodes were compared; else those of one node were."""

    rank: Rank
    times: int
    compared: int
    waited_s: float
    step_s: float
    ranks: tuple[Rank, ...] = ()
    node: str = ""

    @property
    def late(self) -> tuple[Rank, ...]:
        """The ranks that come last."""
        return self.ranks or (self.rank,)


@frozen
class StallSeen(Event):
    """No rank has made progress since `since`, and this is what a closer look showed. `hung`: it seems that it won't
    end without help. `culprits`: the ranks that the others, `waiting`, wait for; empty if unknown. `cause` is a name of
    the catalogue; `quotes` are lines about what the ranks do."""

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
class NativeFramesSeen(Event):
    """Where in native code a culprit of a stall stands: its frames as lines, innermost first."""

    rank: Rank
    frames: tuple[str, ...]

    @property
    def quotes(self) -> tuple[str, ...]:
        """The frames after a line that names the rank."""
        return (f"rank {self.rank}, native frames:", *self.frames)


@frozen
class StallEnded(Event):
    """A job that had stalled makes progress again, after this many seconds."""

    after_s: float


@frozen
class HangTimedOut(Event):
    """No progress for longer than --hang-timeout: ddp-run ends the job."""

    after_s: float
