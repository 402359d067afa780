"""ddp-run's own processes beside the job: for calls that may never return, might crash, or must outlive ddp-run.

A fork makes a call that may never return (`fork`): starting a program could wait for the very file system in question,
and a thread would break "one thread". A library that might crash, and a guard that must outlive ddp-run, are programs
(`spawn`). In ddp-run, only the loop's `reap` may wait for them; it asks `HelperProcesses` whose they were. A process
that even SIGKILL doesn't end (state D) is left to the kernel.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import pairwise
from typing import NoReturn, final

_LINGER_S = 4
"""How long after its deadline a fork ends itself, in case ddp-run can't end it."""
_PR_SET_PDEATHSIG = 1


@final
class HelperProcess:
    """A running helper; `fd` becomes readable when it says something and when it ends.

    `stdin`: for words to it; None for a fork. `deadline`, on time.monotonic(): when to stop waiting for its answer.
    """

    def __init__(self, pid: int, fd: int, stdin: int | None = None, deadline: float = float("inf")) -> None:
        self.pid = pid
        self.fd = fd
        self.stdin = stdin
        self.deadline = deadline
        self._held = b""
        self.reaped = False
        """Set once it has been waited for: from then on its pid may be another process's."""

    def tell(self, word: bytes) -> bool:
        """Write a word to its standard input without waiting; False if it has ended or doesn't read."""
        try:
            return self.stdin is not None and os.write(self.stdin, word) == len(word)
        except OSError:
            return False

    def close_input(self) -> None:
        """End its standard input: programs that read all of it begin then."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def take(self) -> tuple[bytes, bool]:
        """What it has said since the last call, and whether that was the end."""
        taken = b""
        while True:
            try:
                got = os.read(self.fd, 65536)
            except BlockingIOError:
                return taken, False
            except OSError:
                return taken, True
            if not got:
                return taken, True
            taken += got

    def lines(self) -> tuple[list[bytes], bool]:
        """The whole lines that it has said since the last call, and whether that was the end."""
        got, over = self.take()
        *lines, self._held = (self._held + got).split(b"\n")
        return lines, over

    def read(self) -> tuple[bytes, bool]:
        """Everything it has said so far, and whether that was the end."""
        got, over = self.take()
        self._held += got
        return self._held, over

    def wait(self) -> None:
        """Block until it says more, ends, or is late; for callers without a loop."""
        select.select([self.fd], [], [], max(0.0, self.deadline - time.monotonic()))

    @property
    def late(self) -> bool:
        """Whether its deadline has passed."""
        return time.monotonic() >= self.deadline

    def close(self) -> None:
        """Stop talking and listening to it; it may go on."""
        for fd in (self.fd, self.stdin):
            if fd is not None:
                os.close(fd)

    def end(self) -> None:
        """Close it and kill it. The loop reaps it once its call has returned."""
        self.close()
        if not self.reaped:
            try:
                os.kill(self.pid, signal.SIGKILL)  # not reaped, so the pid is still its own
            except ProcessLookupError:
                pass


@final
class HelperProcesses:
    """A run's helpers that have been started and not reaped yet."""

    def __init__(self) -> None:
        self._by_pid: dict[int, tuple[HelperProcess, Callable[[], None] | None]] = {}

    def add(self, process: HelperProcess, on_end: Callable[[], None] | None = None) -> None:
        """Register a helper that was just started. `on_end` is called once it has been reaped."""
        self._by_pid[process.pid] = process, on_end

    def reaped(self, pid: int) -> bool:
        """Note that a child was waited for. Returns whether it was a helper."""
        process, on_end = self._by_pid.pop(pid, (None, None))
        if process is None:
            return False
        process.reaped = True
        if on_end is not None:
            on_end()
        return True

    def remove(self, process: HelperProcess) -> None:
        """Take it for a part of the job from now on."""
        self._by_pid.pop(process.pid, None)

    @property
    def pids(self) -> Set[int]:
        """Their pids: below ddp-run, but not part of the job."""
        return self._by_pid.keys()


# ------------------------------------------------------------------------------------------------ starting


def fork(work: Callable[[int], None], within_s: float, *, keep: Iterable[int] = ()) -> HelperProcess:
    """Run `work` in a fork; it gets a descriptor for its answer, and the descriptors `keep`. Raises OSError."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    # A signal in the child must not write to the descriptor that wakes our loop: both processes share it.
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
    return HelperProcess(pid, reading, deadline=time.monotonic() + within_s)


def spawn(argv: Sequence[str], *, outlives_us: bool) -> HelperProcess:
    """Start a program that reads its standard input and answers on its standard output. Raises OSError."""
    import subprocess

    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        start_new_session=True,
        preexec_fn=None if outlives_us else die_with_parent(),  # noqa: PLW1509  # this process has one thread
    )
    process.returncode = 0  # the Popen object may go; the process is reaped by its pid
    assert process.stdin is not None and process.stdout is not None
    stdin, fd = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
    process.stdin.close()
    process.stdout.close()
    os.set_blocking(fd, False)
    os.set_blocking(stdin, False)
    return HelperProcess(process.pid, fd, stdin)


def answer_of(process: HelperProcess) -> bytes | None:
    """Wait for its whole answer, without a loop, and end it. Returns None if it was late."""
    try:
        said, over = process.read()
        while not over and not process.late:
            process.wait()
            said, over = process.read()
    finally:
        process.end()
        reap(process.pid)
    return said if over else None


def libc_prctl() -> Callable[[int, int, int, int, int], int]:
    """prctl(2)."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    prctl.restype = ctypes.c_int
    return prctl


def die_with_parent() -> Callable[[], None]:
    """For a child between fork and exec: get SIGKILL when the thread that forked it ends (PR_SET_PDEATHSIG)."""
    prctl, parent = libc_prctl(), os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the request, so no signal would come
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child


def stop_with_parent(parent: int) -> None:
    """For a program just started: get SIGTERM when the thread of `parent` that started it ends, or if it has ended."""
    libc_prctl()(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def reap(pid: int, within_s: float = 1.0) -> bool:
    """Wait for a child without a loop. Returns whether it has ended."""
    deadline = time.monotonic() + within_s
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
    except ChildProcessError:  # SIGCHLD is ignored here: the kernel reaps
        pass
    return True


def _child(work: Callable[[int], None], fd: int, keep: tuple[int, ...], ends_after_s: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(ends_after_s)
        # Close above all the keeper's pipe: its other end must close when ddp-run is killed.
        for one, other in pairwise([2, *sorted(keep), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(one + 1, other)
        work(fd)
    finally:
        os._exit(0)
