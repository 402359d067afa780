"""Processes of ddp-run's own, beside the job: for what may never return, might crash, or must outlive ddp-run.

A call that may never return is made by a fork (`fork`): starting a program from here could wait for the very file
system that is in question, and a thread would end "one thread". A library that might crash, and a guard that must
outlive ddp-run, are programs (`spawn`). Only who reaps all children may wait for them (`ddp_run.supervise.loop.reap`),
and asks `HelperProcesses` whose they were. What not even SIGKILL ends (state D) is left to the kernel.
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
"""A fork ends itself so long after its time, should nobody be left to end it."""
_PR_SET_PDEATHSIG = 1


@final
class HelperProcess:
    """A process at work; `fd` becomes readable with what it says and at its end.

    `stdin`: where it is told; null for a fork. `deadline`, on time.monotonic(): how long its answer is waited for.
    """

    def __init__(self, pid: int, fd: int, stdin: int | None = None, deadline: float = float("inf")) -> None:
        self.pid = pid
        self.fd = fd
        self.stdin = stdin
        self.deadline = deadline
        self._held = b""
        self.reaped = False
        """Set by whoever waited for it: its pid may belong to another process from then on."""

    def tell(self, word: bytes) -> bool:
        """A word into its standard input, without waiting; false where it has ended or does not read."""
        try:
            return self.stdin is not None and os.write(self.stdin, word) == len(word)
        except OSError:
            return False

    def take(self) -> tuple[bytes, bool]:
        """What it has said since the last call, and whether that is the end of it."""
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

    def read(self) -> tuple[bytes, bool]:
        """All that it has said so far, and whether that is the end of it."""
        got, over = self.take()
        self._held += got
        return self._held, over

    def wait(self) -> None:
        """Until it says more or ends, for as long as its time is not over; where there is no loop to wait in."""
        select.select([self.fd], [], [], max(0.0, self.deadline - time.monotonic()))

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self.deadline

    def close(self) -> None:
        """Neither tell it more nor listen: whether it goes on is its own business."""
        for fd in (self.fd, self.stdin):
            if fd is not None:
                os.close(fd)

    def end(self) -> None:
        """Wait no longer. It is killed; whoever reaps children reaps it, once its call has come back."""
        self.close()
        if not self.reaped:
            try:
                os.kill(self.pid, signal.SIGKILL)  # nobody has reaped it: the pid is still its own
            except ProcessLookupError:
                pass


@final
class HelperProcesses:
    """Those of a run that were started and that nobody has reaped yet."""

    def __init__(self) -> None:
        self._by_pid: dict[int, tuple[HelperProcess, Callable[[], None] | None]] = {}

    def add(self, process: HelperProcess, on_end: Callable[[], None] | None = None) -> None:
        """It was started just now. `on_end` is called when it has been reaped."""
        self._by_pid[process.pid] = process, on_end

    def reaped(self, pid: int) -> bool:
        """A child was waited for; whether it was one of these."""
        process, on_end = self._by_pid.pop(pid, (None, None))
        if process is None:
            return False
        process.reaped = True
        if on_end is not None:
            on_end()
        return True

    @property
    def pids(self) -> Set[int]:
        """They are below ddp-run, and not the job's."""
        return self._by_pid.keys()


# ------------------------------------------------------------------------------------------------ starting


def fork(work: Callable[[int], None], within_s: float, *, keep: Iterable[int] = ()) -> HelperProcess:
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
    return HelperProcess(pid, reading, deadline=time.monotonic() + within_s)


def spawn(argv: Sequence[str], *, outlives_us: bool) -> HelperProcess:
    """Start a program that is told by its standard input and answers on its standard output. Raises OSError."""
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
    process.returncode = 0  # the object goes, the process stays: it is reaped by its pid
    assert process.stdin is not None and process.stdout is not None
    stdin, fd = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
    process.stdin.close()
    process.stdout.close()
    os.set_blocking(fd, False)
    os.set_blocking(stdin, False)
    return HelperProcess(process.pid, fd, stdin)


def answer_of(process: HelperProcess) -> bytes | None:
    """All that it says, where there is no loop to wait in; null where its time is over first. It is no more then."""
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
    """For a child between fork and exec: SIGKILL when the thread that forked it ends (PR_SET_PDEATHSIG)."""
    prctl, parent = libc_prctl(), os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent was gone before the request: no signal would come
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child


def stop_with_parent(parent: int) -> None:
    """For a program just started: SIGTERM when the thread of `parent` that started it ends; at once if it has ended."""
    libc_prctl()(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def reap(pid: int, within_s: float = 1.0) -> bool:
    """Wait for one where there is no loop that reaps; whether it has ended."""
    deadline = time.monotonic() + within_s
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
    except ChildProcessError:  # nobody is to know how children end here (SIGCHLD is ignored)
        pass
    return True


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
