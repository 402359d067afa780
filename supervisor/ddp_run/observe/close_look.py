"""What a closer look shows about one rank that makes no progress, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ddp_run.observe.collectives import Collective
from ddp_run.observe.stack_text import Doing, Stack
from ddp_run.record.events import Rank
from ddp_run.values.words import duration_in_words

BETWEEN_LOOKS_S = 1.6
"""Time between the two looks at the stacks."""
STILL_S = 55.0
"""A thread counts as stuck once all looks over this many seconds have found it in the same place."""
INPUT = "input"
"""What it waits for in the kernel, if that is a line from its standard input or a terminal."""
_BUSY = 0.2
"""CPU seconds per second from which a process counts as working."""


class ProcessState(StrEnum):
    """As in /proc/PID/stat."""

    RUNNING = "R"
    SLEEPING = "S"
    DISK = "D"
    STOPPED = "T"
    TRACED = "t"
    GONE = "X"


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock file that a rank waits for.

    `holder`: who has it, in words; None if no holder is visible. `age_s`: time since it was made; None if the file
    could not be examined, and then its holder is unknown too.
    """

    path: str
    age_s: float | None = None
    holder: str | None = None

    @property
    def said(self) -> str:
        """`/cache/ext/lock (made 2h05m ago; no process here has it open)`."""
        if self.holder is not None:
            return f"{self.path} (held by {self.holder})"
        if self.age_s is None:
            return self.path
        return f"{self.path} (made {duration_in_words(self.age_s)} ago; no process here has it open)"


@dataclass(frozen=True, slots=True)
class CloseLook:
    """One rank, looked at twice. `cpu_s` and `io_bytes` (input and output) are what it used between the looks."""

    rank: Rank
    state: ProcessState
    first: Stack | None = None
    second: Stack | None = None
    cpu_s: float = 0.0
    io_bytes: int = 0
    apart_s: float = BETWEEN_LOOKS_S
    last: Mapping[str, Collective] = field(default_factory=dict)
    """The last collective in each process group."""
    current: Collective | None = None
    """The collective that it waits for, if one has not ended."""
    history: Mapping[str, Collective] = field(default_factory=dict)
    """The collectives that its recorder still holds, by their `key`."""
    collectives: int = 0
    """How many collectives of the default group it has entered, according to its board."""
    waits_on: str | None = None
    """What its main thread waits for in the kernel, if that can be read: `read of /data/x.bin`."""
    on_lock: bool = False
    """Its main thread waits for a lock (futex) without a timeout."""
    asleep: bool = False
    """Its main thread sleeps for a set time."""
    naps: bool = False
    """It was asleep in one of the looks, and woke in between to sleep again."""
    lock_file: LockFile | None = None
    child: str | None = None
    """The command of the process that it has started and waits for: `(ninja -v)`."""
    unseen: bool = False
    """It has no board, so neither its stacks nor its phase are known."""
    idle_s: float = 0.0
    """Seconds since it was last seen to take CPU time or move bytes."""
    helpers: int = 0
    """Number of the program's threads that wait for a set time or for something from outside."""
    still_s: float = 0.0
    """For how long, including earlier looks, nothing in it has moved."""
    silent: bool = False
    """None of its Python threads has run lately: the interpreter's lock is held."""
    steps: int = 0
    """Optimizer steps so far."""

    @property
    def stack(self) -> Stack | None:
        """Its latest stack; None if it wrote none."""
        return self.second or self.first

    @property
    def doing(self) -> Doing | None:
        """What its main thread does; None without a stack."""
        if self.stack is None:
            return None
        doing = self.stack.doing
        if doing in (Doing.RUNNING, Doing.BACKWARD) and self.current is not None and not self._moved:
            return Doing.COLLECTIVE
        if doing is Doing.BACKWARD and self._computes:
            return Doing.RUNNING
        return doing

    @property
    def works(self) -> bool:
        """Whether it does anything: takes CPU time, moves bytes, or stands elsewhere than before."""
        return (self._computes and not self._spins) or self.io_bytes > 1 << 20 or self._moved

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.doing in (Doing.COLLECTIVE, Doing.MEETING, Doing.BACKWARD)

    @property
    def waits_for_certain(self) -> bool:
        """Whether its stack alone shows that it waits: during an operation the main thread may do other work."""
        waiting = self.stack is not None and self.stack.doing in (Doing.COLLECTIVE, Doing.BACKWARD)
        return waiting and not self._moved and self.current is not None

    @property
    def patient(self) -> bool:
        """Whether it does something that is never called a hang."""
        return self.doing in (Doing.COMPILING, Doing.DEBUGGER)

    @property
    def stuck(self) -> bool:
        """Whether it stands still and nothing suggests that this will end without help.

        True at once only for a lock without a timeout, with no thread that brings something from outside. Anything
        else (a file, a process, the network, a sleep, an unreadable wait) gets STILL_S first.
        """
        if self.works or self.patient or (self.stack is None and self.state is not ProcessState.DISK):
            return False
        return self.deadlocked or self.still_s >= STILL_S

    @property
    def deadlocked(self) -> bool:
        """Whether its main thread waits for a lock that nothing seems about to release."""
        if self.stack is None or not self.on_lock or self.state is ProcessState.DISK:
            return False
        if self.stack.helped or self.helpers > self.stack.monitors:
            return False
        return self.doing is Doing.LOCK or (self.doing is Doing.RUNNING and self.stack.in_users_code)

    def may_have_entered(self, number: int) -> bool:
        """Whether it may be waiting on a handle for the default group's collective with this number.

        That wait looks like any lock in the program's own code, and older torch does not record gloo.
        """
        on_lock = self.doing is Doing.RUNNING and self.on_lock
        return on_lock and not self.last and 0 < number <= self.collectives

    @property
    def says_little(self) -> bool:
        """Whether it stands still and its Python frames don't show why: native frames would."""
        if self.works or self.state is not ProcessState.SLEEPING:
            return False
        vague = self.doing in (Doing.RUNNING, Doing.IMPORTING) and (self.silent or not self.asleep)
        return self.stack is None or vague

    @property
    def left_behind(self) -> str | None:
        """The path of a lock file that only its maker removes, if no process here has it open anymore."""
        lock = self.lock_file
        made = lock is not None and lock.age_s is not None and lock.holder is None
        waits = self.stack is not None and any("torch/utils/file_baton.py" in each.file for each in self.stack.frames)
        return lock.path if lock is not None and made and waits else None

    @property
    def _computes(self) -> bool:
        # On a crowded machine a thread that wants to run gets little CPU time, but its state shows it.
        wants_to = self.state is ProcessState.RUNNING and not self.naps
        return wants_to or self.cpu_s >= _BUSY * self.apart_s

    @property
    def _spins(self) -> bool:
        """Whether it may use its CPU time to wait: CUDA polls the GPU."""
        return self.current is not None and self.current.nccl and self.doing is Doing.COLLECTIVE

    @property
    def _moved(self) -> bool:
        if self.first is None or self.second is None or self.first.frames == self.second.frames:
            return False
        return not (self.naps and self.first.in_same_loop(self.second))

    @property
    def place(self) -> str | None:
        """Its place in the user's code."""
        return self.stack.users.place if self.stack and self.stack.users else None

    @property
    def operation(self) -> str | None:
        """The collective that it waits in."""
        named = self.stack.operation if self.stack else None
        if named is None and self.stack is not None and self.stack.doing is Doing.BACKWARD:
            return "backward"
        return named or (self.current.name if self.current is not None else None)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How busy a rank's GPU is, in per cent. `sure`: the driver lists the rank there; else its local rank says so."""

    rank: Rank
    gpu: int
    busy: int
    sure: bool = True
