"""Calls that may never return, made by a process of their own: a fork of ddp-run.

Starting a program from here could wait for the very file system that is in question, and a thread would end "one
thread". The fork ends by itself when its time is over, and is killed when nobody wants its answer any more; what not
even that ends (state D) is left to the kernel.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn, Self, final

_LINGER_S = 4
"""The process ends itself so long after its time, should nobody be left to end it."""


@final
@dataclass(slots=True)
class Aside:
    """A process at work; `fd` becomes readable with what it says and at its end."""

    pid: int
    fd: int
    deadline: float
    """On time.monotonic(): when its answer is no longer waited for."""
    _held: bytes = b""
    reaped: bool = False
    """Set by whoever waited for it: its pid may belong to another process from then on."""

    @classmethod
    def start(cls, work: Callable[[int], None], within_s: float, *, keep: Iterable[int] = ()) -> Self:
        """Have `work` done, which gets the descriptor to write its answer to, and keeps `keep`. Raises OSError."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        # A signal in the child must not write to the descriptor that wakes our loop: it is shared.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _child(work, writing, (writing, *keep), int(within_s) + 1 + _LINGER_S)
        except OSError:
            os.close(reading)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(writing)
        return cls(pid, reading, time.monotonic() + within_s)

    def read(self) -> tuple[bytes, bool]:
        """All that it has said so far, and whether that is the end of it."""
        got, over = take(self.fd)
        self._held += got
        return self._held, over

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self.deadline

    def end(self) -> None:
        """Wait no longer. A process that hangs is killed; whoever reaps children reaps it."""
        os.close(self.fd)
        if not self.reaped:
            kill(self.pid)


@final
class Asides:
    """Those that were started and that nobody has reaped yet."""

    def __init__(self) -> None:
        self._by_pid: dict[int, Aside] = {}
        self._killed: set[int] = set()

    def add(self, aside: Aside) -> None:
        """It was started just now."""
        self._by_pid[aside.pid] = aside

    def killed(self, pid: int) -> None:
        """Another process of ddp-run's own had SIGKILL; one that waits in the kernel stays until that lets go."""
        self._killed.add(pid)

    def reaped(self, pid: int) -> bool:
        """A child was waited for; whether it was one of these."""
        if pid in self._killed:
            self._killed.remove(pid)
            return True
        aside = self._by_pid.pop(pid, None)
        if aside is None:
            return False
        aside.reaped = True
        return True

    @property
    def pids(self) -> Set[int]:
        """They are below ddp-run, and not the job's."""
        return self._by_pid.keys() | self._killed


def take(fd: int) -> tuple[bytes, bool]:
    """What can be read at once from a descriptor that does not block, and whether that is the end of it."""
    held = b""
    while True:
        try:
            got = os.read(fd, 65536)
        except BlockingIOError:
            return held, False
        except OSError:
            return held, True
        if not got:
            return held, True
        held += got


def kill(pid: int) -> None:
    """SIGKILL to a process of ours that nobody has reaped: its pid is still its own."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap(pid: int, within_s: float = 1.0) -> None:
    """Wait for one that was ended before there is a loop that reaps; what not even SIGKILL ends is left to that."""
    deadline = time.monotonic() + within_s
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
    except ChildProcessError:  # nobody is to know how children end here (SIGCHLD is ignored)
        pass


def _child(work: Callable[[int], None], fd: int, keep: tuple[int, ...], ends_after_s: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(ends_after_s)
        # above all the keeper's pipe: its other end must close when ddp-run is killed
        for one, other in pairwise([2, *sorted(keep), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(one + 1, other)
        work(fd)
    finally:
        os._exit(0)
