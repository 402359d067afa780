"""One loop, one thread: descriptors, signals and timers become values in the order the kernel saw them.

Knows nothing of ranks. A signal arrives as its number on a descriptor; handlers only note that it came, for what finds
the descriptor full.
Descriptors come back in the order in which they became ready (epoll keeps its ready list in that order), which is
what orders two deaths that happen between two turns of the loop.
"""

from __future__ import annotations

import fcntl
import math
import os
import selectors
import signal
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, Self, final

Handler = Callable[[], None]

_ONE_SIGTERM_S = 1.0
"""SIGTERM within so many seconds after another is the same one: at a job's time limit SLURM sends it twice (22.05:
0.3 to 0.6 ms apart on two hosts that had nothing else to do), and means one stop with a grace period."""


@dataclass(frozen=True, slots=True)
class Call:
    """A descriptor can be read (or written, where it was watched for that), or a timer ran out: what is to be done."""

    handler: Handler


@dataclass(frozen=True, slots=True)
class Caught:
    """A signal arrived. Several of one kind may arrive as one, SIGTERM within a second always does."""

    signum: int


Wakeup = Call | Caught


class _Timer(NamedTuple):
    deadline: float
    """On time.monotonic()."""
    handler: Handler
    lasting: bool
    """`clear_timers` leaves it."""


@final
class Loop:
    """Owns the handlers of `signals` between `with` and its end; ignored signals (nohup) stay ignored.

    Not so SIGCHLD: a parent's way with its own children would keep from us how ours end.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[Hashable, _Timer] = {}
        # a pipe holds 65,536 signals; of a socket's buffer each takes 768 bytes
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._room = fcntl.fcntl(self._woken, fcntl.F_GETPIPE_SZ)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._noted: dict[int, None] = {}
        """Signals since they were last asked for."""
        self._terminated_at = -math.inf
        """When SIGTERM was last given back, on time.monotonic()."""
        self._old_handlers = {}
        for signum in signals:
            if signum == signal.SIGCHLD or signal.getsignal(signum) is not signal.SIG_IGN:
                self._old_handlers[signum] = signal.signal(signum, self._note)
        self._old_wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._old_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)
        signal.set_wakeup_fd(self._old_wakeup)
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        self._selector.close()
        os.close(self._waker)
        os.close(self._woken)

    def watch(self, fd: int, handler: Handler, *, write: bool = False) -> None:
        """Give `handler` back when `fd` can be read (`write`: written). To watch it again changes both."""
        events = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        known = self._selector.get_map().get(fd)
        if known is None:
            self._selector.register(fd, events, handler)
        elif (known.events, known.data) != (events, handler):
            self._selector.modify(fd, events, handler)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor; it is fine if it was not watched."""
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            pass

    def set_timer(self, after_s: float, handler: Handler, *, key: Hashable = None, lasting: bool = False) -> None:
        """Give `handler` back once, `after_s` seconds from now; replaces an earlier timer of that key, or handler.

        A `lasting` one is not an attempt's own: `clear_timers` leaves it.
        """
        self._timers[handler if key is None else key] = _Timer(time.monotonic() + after_s, handler, lasting)

    def cancel_timer(self, key: Hashable) -> None:
        """Forget a timer; it is fine if there is none."""
        self._timers.pop(key, None)

    def stop_process(self) -> None:
        """Stop this process, as Ctrl-Z does, until it is continued; all timers run out later by that time."""
        stopped_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        by_s = time.monotonic() - stopped_at
        self._timers = {key: each._replace(deadline=each.deadline + by_s) for key, each in self._timers.items()}

    def clear_timers(self) -> None:
        """Forget all timers of an attempt."""
        self._timers = {key: timer for key, timer in self._timers.items() if timer.lasting}

    def wait(self, at_most_s: float | None = None) -> list[Wakeup]:
        """What has happened; waits for something, `at_most_s` seconds at most (None: as long as it takes)."""
        now = time.monotonic()
        deadlines = [timer.deadline for timer in self._timers.values()]
        if at_most_s is not None:
            deadlines.append(now + at_most_s)
        timeout = max(0.0, min(deadlines) - now) if deadlines else None
        woken: list[Wakeup] = []
        for selected, _events in self._selector.select(timeout):
            if selected.fd == self._woken:
                woken[:0] = self._signals()
            else:
                woken.append(Call(selected.data))
        now = time.monotonic()
        for key, timer in sorted(self._timers.items(), key=lambda each: each[1].deadline):
            if timer.deadline <= now:
                del self._timers[key]
                woken.append(Call(timer.handler))
        return woken

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._noted[signum] = None

    def _signals(self) -> list[Wakeup]:
        try:
            numbers = os.read(self._woken, self._room)
        except BlockingIOError:
            return []
        noted, self._noted = self._noted, {}
        # if it was full: what came then has no byte, and of one kind one is enough
        all_of_them = numbers if len(numbers) < self._room else dict.fromkeys((*numbers, *noted))
        return [Caught(number) for number in all_of_them if not self._is_the_same_sigterm(number)]

    def _is_the_same_sigterm(self, signum: int) -> bool:
        if signum != signal.SIGTERM:
            return False
        now = time.monotonic()
        if now < self._terminated_at + _ONE_SIGTERM_S:
            return True
        self._terminated_at = now
        return False


def reap() -> list[tuple[int, int]]:
    """Wait for every child that has ended, strangers included: (pid, code), code as subprocess gives it.

    SIGCHLD is only a hint (several deaths make one), so this takes all there are.
    """
    reaped: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid == 0:
            return reaped
        reaped.append((pid, os.waitstatus_to_exitcode(status)))
