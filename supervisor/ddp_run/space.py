"""Free space of file systems, asked by a process of its own: statvfs on a dead NFS server waits for ever.

The process is a fork of this one that runs no other program, because starting one may wait for the same server; it
ends by itself, or is ended when its time is over. A thread would do the same, but ddp-run forks its agents and has one
thread for that reason.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Self, final

from ddp_run.events import MonotonicNs, SpaceCounted

WAIT_S = 1.0
"""How long the answers are waited for, in all."""
_LINGER_S = 5
"""The process ends itself after this time, should nobody be left to end it."""


@final
@dataclass(slots=True)
class SpaceQuestion:
    """A process that asks; `fd` becomes readable with its answers and at its end."""

    pid: int
    fd: int
    deadline: float
    _held: bytes = b""
    reaped: bool = False
    """Set by whoever waited for it: its pid may belong to another process from then on."""

    @classmethod
    def ask(cls, paths: Sequence[str]) -> Self:
        """Ask for the file systems of these paths, in this order. Raises OSError."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        # A signal in the child must not write to the descriptor that wakes our loop: it is shared.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _answer(paths, writing)
        except OSError:
            os.close(reading)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(writing)
        return cls(pid, reading, time.monotonic() + WAIT_S)

    def answers(self, at: MonotonicNs) -> tuple[list[SpaceCounted], bool]:
        """What has been answered since the last call, and whether that was all."""
        over = False
        while True:
            try:
                got = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            except OSError:
                got = b""
            if not got:
                over = True
                break
            self._held += got
        *lines, self._held = self._held.split(b"\n")
        return [SpaceCounted(at, *json.loads(line)) for line in lines], over

    def end(self) -> None:
        """Wait no longer. A process that hangs is killed; whoever reaps children reaps it."""
        os.close(self.fd)
        if not self.reaped:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _answer(paths: Sequence[str], fd: int) -> NoReturn:
    """In the child. Nothing but system calls on what is in memory already."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(_LINGER_S)
        # above all the keeper's pipe: its other end must close when ddp-run is killed
        os.closerange(3, fd)
        os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
        for path in paths:
            try:
                found = os.statvfs(path)
            except OSError:
                continue
            counts = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail, found.f_files)
            os.write(fd, json.dumps([path, *counts]).encode() + b"\n")
    finally:
        os._exit(0)
