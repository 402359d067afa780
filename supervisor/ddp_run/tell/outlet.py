"""Writes to descriptors without ever waiting for their readers, unless asked to."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final, final

from ddp_run.values.lines import STREAMS, Stream

LeftS = Callable[[], float]
"""How many more seconds to wait for a reader; asked at least every tenth of a second."""
_NEWLINE: Final = 0x0A
_ENOUGH: Final = 1 << 20
"""Bytes that may wait."""
_WIDEST: Final = 1 << 20
"""Bytes of a pipe that the kernel grants any user (/proc/sys/fs/pipe-max-size)."""
_ASK_S: Final = 0.1


@final
class Outlet:
    """A descriptor that is written without blocking, and the bytes that wait for it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.tty = False
        self.gone = False
        """Its reader is gone, or it is broken: everything written to it is dropped."""
        self.error: OSError | None = None
        """Why bytes were last dropped."""
        self.pending = 0
        """Bytes that wait."""
        self._queue: deque[tuple[memoryview, bool]] = deque()
        """Each item also says whether `drop` keeps it."""
        self._within_line = False
        """The last byte written was not a newline."""
        self._own = -1
        self._writes_at_once = False
        self._socket = False
        try:
            self.tty = os.isatty(fd)
            mode = os.fstat(fd).st_mode
        except OSError:
            self.gone = True
            return
        self._socket = stat.S_ISSOCK(mode)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            self._own = _reopened(fd)
        self._writes_at_once = stat.S_ISREG(mode) or self._own >= 0

    def put(self, data: bytes | memoryview, *, stays: bool = False) -> None:
        """Queue bytes for `pump`. With `stays`, `drop` keeps them."""
        if not self.gone and data:
            self._queue.append((memoryview(data), stays))
            self.pending += len(data)

    def pump(self) -> int:
        """Write what can be written now; returns the number of bytes. Never raises: a broken descriptor is closed."""
        written = 0
        try:
            while self._queue and (done := self._write()):
                written += done
                self._advance(done)
        except BlockingIOError:
            pass
        except OSError as error:
            self.error = error
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                # Space may be freed later: only what waits is lost, and the ranks' files have it.
                self._queue.clear()
                self.pending = 0
            else:
                self.close()
        return written

    def drop(self) -> tuple[int, int]:
        """Drop what waits, except what stays and the rest of a begun line; returns the newlines and bytes dropped."""
        waiting, lines, size, begun = self._queue, 0, self.pending, self._within_line
        self._queue, self.pending = deque(), 0
        for data, stays in waiting:
            text = bytes(data)
            kept = len(text) if stays else (text.find(b"\n") + 1 or len(text)) if begun else 0
            begun = begun and not text[:kept].endswith(b"\n")
            self.put(data[:kept], stays=stays)
            lines += text.count(b"\n", kept)
        return lines, size - self.pending

    def widen(self) -> None:
        """Enlarge a pipe to hold what waits, up to 1 MiB: its reader gets it even after ddp-run has exited (fcntl(2)).

        Anything but a pipe stays as it is.
        """
        try:
            size = fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ) + self.pending
            if self.pending and size <= _WIDEST:
                fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, size)
        except OSError:
            pass

    def close(self) -> None:
        """Forget what waits, and close what was opened here; `fd` stays open."""
        self._queue.clear()
        self.pending = 0
        if self._own >= 0:
            os.close(self._own)
            self._own = -1
        self.gone = True

    def _write(self) -> int:
        if self._writes_at_once:
            return os.writev(self.fd if self._own < 0 else self._own, self._first())
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        if not poll.poll(0):
            return 0
        if self._socket:
            return _send(self.fd, self._first())
        # A descriptor that says it is writable takes this much without blocking: pipe(7), and n_tty's 256.
        return os.write(self.fd, self._queue[0][0][: 256 if self.tty else select.PIPE_BUF])

    def _first(self) -> list[memoryview]:
        return [data for data, _ in islice(self._queue, 64)]

    def _advance(self, done: int) -> None:
        self.pending -= done
        data, stays = self._queue[0]
        while done > len(data):
            done -= len(data)
            self._queue.popleft()
            data, stays = self._queue[0]
        self._within_line = data[done - 1] != _NEWLINE
        if done == len(data):
            self._queue.popleft()
        else:
            self._queue[0] = (data[done:], stays)


@final
class Outlets:
    """Where the ranks' two streams go, and ddp-run's own lines, which go to stderr.

    Both streams share an outlet if they lead to the same terminal, pipe or socket: one queue keeps lines whole and in
    order.
    """

    def __init__(self, stdout_fd: int, stderr_fd: int) -> None:
        self.err = self.out = Outlet(stderr_fd)
        if stdout_fd != stderr_fd and not _same_place(stdout_fd, stderr_fd):
            self.out = Outlet(stdout_fd)

    def __iter__(self) -> Iterator[Outlet]:
        yield self.err
        if self.out is not self.err:
            yield self.out

    def of(self, stream: Stream | None) -> Outlet:
        """The outlet of a stream; None: of ddp-run's own lines."""
        return self.out if stream == "stdout" else self.err

    @property
    def taking(self) -> tuple[Stream, ...]:
        """The streams that take more. For the others, too much already waits: leave the rest in the files."""
        return tuple(stream for stream in STREAMS if self.of(stream).pending < _ENOUGH and not self.of(stream).gone)

    @property
    def with_own(self) -> tuple[Stream, ...]:
        """The streams that go where ddp-run's own lines go."""
        return tuple(stream for stream in STREAMS if self.of(stream) is self.err)

    @property
    def writable_fds(self) -> list[int]:
        """The descriptors to wait for until they can be written."""
        return [outlet.fd for outlet in self if outlet.pending]

    @property
    def pending(self) -> int:
        """Bytes taken but not written yet."""
        return sum(outlet.pending for outlet in self)

    def pump(self) -> int:
        """Write what can be written now; returns the number of bytes."""
        return sum(outlet.pump() for outlet in self)

    def wait(self, left_s: LeftS) -> bool:
        """Write what can be written within a tenth of a second; False if there's no time left."""
        for outlet in self:
            outlet.widen()
        written, left = self.pump(), left_s()
        if left > 0 and not written:
            poll = select.poll()
            for fd in self.writable_fds:
                poll.register(fd, select.POLLOUT)
            poll.poll(min(left, _ASK_S) * 1000)
            self.pump()
        return left > 0

    def drop(self, streams: Collection[Stream]) -> tuple[int, int]:
        """Drop the ranks' lines that wait, but not ddp-run's own; returns the number of lines and of bytes."""
        lines = size = 0
        for outlet in {self.of(stream) for stream in streams}:
            dropped = outlet.drop()
            lines, size = lines + dropped[0], size + dropped[1]
            outlet.widen()  # for a line that has begun
            outlet.pump()
        return lines, size


def _same_place(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
        if os.isatty(one) and os.isatty(other):
            return first.st_rdev == second.st_rdev
    except OSError:
        return False
    waits = stat.S_ISFIFO(first.st_mode) or stat.S_ISSOCK(first.st_mode)
    return waits and (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _reopened(fd: int) -> int:
    """Open the same pipe or terminal again, or return -1: O_NONBLOCK on `fd` would affect its other owners."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return -1


def _send(fd: int, data: list[memoryview]) -> int:
    import socket

    with socket.socket(fileno=os.dup(fd)) as stream:
        return stream.sendmsg(data, [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
