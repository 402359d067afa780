"""One loop, one thread: descriptors, signals and timers become values in the order in which the kernel saw them.

It knows nothing about ranks. A signal arrives as its number on a descriptor; the handlers only note that it came, in
case the descriptor is full. Descriptors come back in the order in which they became ready: epoll keeps its list so.
That orders two deaths between two turns of the loop.
"""

from __future__ import annotations

import fcntl
import math
import os
import selectors
import signal
import time
from collections.abc import Callable, Hashable, Iterable
from types import FrameType
from typing import NamedTuple, Self, final

Handler = Callable[[], None]

_ONE_SIGTERM_S = 1.0
"""A SIGTERM this soon after another counts as the same one: at a job's time limit SLURM sends it twice (22.05: 0.3 to
0.6 ms apart on two idle hosts) and means one stop with a grace period."""


Wakeup = Handler | int
"""A descriptor became ready or a timer expired: what to call. Or a signal's number: several of one kind may arrive as
one, and two SIGTERM within a second always do."""


class _Timer(NamedTuple):
    deadline: float
    """On time.monotonic()."""
    handler: Handler
    lasting: bool
    """`clear_timers` keeps it."""


@final
class Loop:
    """Owns the handlers of `signals` inside its `with` block; ignored signals (nohup) stay ignored.

    Except SIGCHLD: if our parent ignores it, we must still learn how our children end.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[Hashable, _Timer] = {}
        # A pipe holds 65,536 signals; in a socket's buffer each takes 768 bytes.
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._room = fcntl.fcntl(self._woken, fcntl.F_GETPIPE_SZ)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._noted: dict[int, None] = {}
        """Signals since the last turn."""
        self._terminated_at = -math.inf
        """When `wait` last returned SIGTERM, on time.monotonic()."""
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
        """Return `handler` when `fd` is readable (`write`: writable). Watching it again changes both."""
        events = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        known = self._selector.get_map().get(fd)
        if known is None:
            self._selector.register(fd, events, handler)
        elif (known.events, known.data) != (events, handler):
            self._selector.modify(fd, events, handler)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor, watched or not."""
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            pass

    def set_timer(self, after_s: float, handler: Handler, *, key: Hashable = None, lasting: bool = False) -> None:
        """Return `handler` once, `after_s` seconds from now. Replaces an earlier timer with this key (or handler).

        A `lasting` timer doesn't belong to an attempt: `clear_timers` keeps it.
        """
        self._timers[handler if key is None else key] = _Timer(time.monotonic() + after_s, handler, lasting)

    def cancel_timer(self, key: Hashable) -> None:
        """Forget a timer, set or not."""
        self._timers.pop(key, None)

    def stop_process(self) -> None:
        """Stop this process, like Ctrl-Z, until it's continued. All timers are put off by that time."""
        stopped_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        by_s = time.monotonic() - stopped_at
        self._timers = {key: each._replace(deadline=each.deadline + by_s) for key, each in self._timers.items()}

    def clear_timers(self) -> None:
        """Forget all timers that don't last."""
        self._timers = {key: timer for key, timer in self._timers.items() if timer.lasting}

    def wait(self, at_most_s: float | None = None) -> list[Wakeup]:
        """Wait until something happens, `at_most_s` seconds at most (None: forever). Returns what happened."""
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
                woken.append(selected.data)
        now = time.monotonic()
        for key, timer in sorted(self._timers.items(), key=lambda each: each[1].deadline):
            if timer.deadline <= now:
                del self._timers[key]
                woken.append(timer.handler)
        return woken

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._noted[signum] = None

    def _signals(self) -> list[Wakeup]:
        try:
            numbers = os.read(self._woken, self._room)
        except BlockingIOError:
            return []
        noted, self._noted = self._noted, {}
        # If the pipe was full, what came then has no byte; one of each kind is enough.
        caught = numbers if len(numbers) < self._room else dict.fromkeys((*numbers, *noted))
        return [number for number in caught if not self._is_the_same_sigterm(number)]

    def _is_the_same_sigterm(self, signum: int) -> bool:
        if signum != signal.SIGTERM:
            return False
        now = time.monotonic()
        if now < self._terminated_at + _ONE_SIGTERM_S:
            return True
        self._terminated_at = now
        return False


def reap() -> list[tuple[int, int]]:
    """Wait for every child that has ended, adopted ones included. Returns (pid, code), code as in subprocess.

    Several deaths may send one SIGCHLD, so this takes all there are.
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
