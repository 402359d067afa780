"""Reading the ranks' files while they grow.

Ranks write straight into their files; this side only reads. Whoever reads slowly is behind, and nobody else notices.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final

from ddp_run.record.run_folder import open_run_file
from ddp_run.tell.inotify import IN_MODIFY, IN_Q_OVERFLOW, Inotify
from ddp_run.values.lines import STREAMS, Stream

POLL_S: Final = 0.05
_REST_S: Final = 1.0
"""The longest pause between two looks at a file that nothing tells about: a look can be a question to a server."""
_CHUNK: Final = 96 << 10
"""Below malloc's threshold for mapping memory anew: half the CPU of larger pieces."""


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of one rank's stream. `fresh`: the first of another file, or of one that starts again at 0."""

    rank: int
    local_rank: int
    stream: Stream
    data: bytes
    fresh: bool = False


def pause_s(quiet_s: float) -> float:
    """Seconds until the next look at such a file, which has not grown for `quiet_s`: a line is seldom a tenth late."""
    return min(_REST_S, max(POLL_S, quiet_s / 10))


@final
class _Tail:
    """One file and how far it was read."""

    __slots__ = (
        "end",
        "fd",
        "fresh",
        "grew_at",
        "identity",
        "links",
        "local_rank",
        "look_at",
        "offset",
        "path",
        "rank",
        "refused",
        "retired",
        "stream",
        "suspect",
        "unreadable",
        "watch",
    )

    def __init__(self, rank: int, local_rank: int, stream: Stream, path: Path, links: Collection[str]) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.stream: Stream = stream
        self.path = path
        self.links = links
        self.fd = -1
        self.offset = 0
        self.end: int | None = None
        """Where reading ends; null: not while the file grows."""
        self.watch = -1
        self.identity = (0, 0)
        self.refused = (0, 0)
        """What stands at the path and cannot be read, in place of the file that is."""
        self.fresh = True
        self.suspect = False
        """Another file may stand at the path."""
        self.retired = False
        """To be closed at the end of what it has now."""
        self.unreadable = False
        """It could not be read when that was tried last."""
        self.grew_at = self.look_at = time.monotonic()
        """When it grew last, and when it is to be looked at where nothing tells about it."""

    def open(self) -> None:
        """Open the file at the path, to go on where it was read to. Raises OSError."""
        with open_run_file(self.path.parent, self.path.name, self.links) as file:
            status = os.fstat(file.fileno())
            self.close()
            self.fd, self.suspect = os.dup(file.fileno()), False
        identity = (status.st_dev, status.st_ino)
        if identity != self.identity:
            self.identity, self.offset, self.fresh = identity, 0, True
        if self.end is not None:
            self.end = status.st_size

    def close(self) -> None:
        if self.fd >= 0:
            try:
                os.close(self.fd)
            except OSError:  # the descriptor is free all the same: close(2)
                pass
        self.fd = -1

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end. Raises OSError (a stale handle of a network file system)."""
        data = os.pread(self.fd, size, self.offset)
        if data and not data[0] and not data.strip(b"\0"):
            data = self._skip_hole(data, size)
        self.offset += len(data)
        return data

    def _skip_hole(self, data: bytes, size: int) -> bytes:
        # A file truncated under a rank without O_APPEND gets a hole up to the rank's own offset.
        try:
            start = os.lseek(self.fd, self.offset, os.SEEK_DATA)
        except OSError:
            return data
        if start == self.offset:
            return data
        self.offset = start
        return os.pread(self.fd, size, start)

    def size(self) -> int:
        """Bytes of what is read; 0 where nothing is."""
        try:
            return os.fstat(self.fd).st_size
        except OSError:
            return 0


@final
class Tailer:
    """Reads many growing files without blocking; only regular ones, and through no link that ddp-run did not make.

    A loop waits for `fileno()` (inotify, null where there is none) and calls `read` when it is ready or after `wait_s`
    seconds. A loop that does not want data must not wait for `fileno()` meanwhile.
    """

    def __init__(self, *, polling: bool = False) -> None:
        """With `polling`, inotify is not tried."""
        self._tails: list[_Tail] = []
        self._missing: list[_Tail] = []
        self._polled: list[_Tail] = []
        self._ready: deque[_Tail] = deque()
        self._watched: dict[int, _Tail] = {}
        self._notes: list[str] = []
        self._at_rest = False
        self._inotify = None if polling else Inotify.open()

    def fileno(self) -> int | None:
        """Readable when a file has grown; null: poll."""
        return None if self._inotify is None else self._inotify.fd

    def wait_s(self, streams: Collection[Stream] = STREAMS) -> float | None:
        """Seconds after which to `read` these streams though nothing is ready; 0: bytes are left; null: never."""
        if not streams:
            return None
        if any(tail.stream in streams for tail in self._ready):
            return 0.0
        due = min((tail.look_at for tail in (*self._missing, *self._polled)), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def add(
        self, rank: int, local_rank: int, stream: Stream, path: Path, *, start: int = 0, links: Collection[str] = ()
    ) -> None:
        """Follow a file, which need not exist yet; one that exists from byte `start` on. `links`: `open_run_file`."""
        tail = _Tail(rank, local_rank, stream, path, links)
        self._tails.append(tail)
        if self._follow(tail):
            tail.offset = start
        else:
            self._missing.append(tail)

    def retire(self, rank: int) -> None:
        """Read this rank's files to their present ends and close them: it starts again, with others."""
        for tail in self._tails:
            tail.retired |= tail.rank == rank
        self._mark([tail for tail in self._tails if tail.retired])

    def read(self, budget: int = 1 << 20, streams: Collection[Stream] = STREAMS) -> list[Chunk]:
        """What the files of these streams have more, at most `budget` bytes, every file in its turn."""
        if streams and not self._at_rest:
            self._hear()
            self._look(time.monotonic())
        return self._take(budget, streams)

    def stop_at_ends(self) -> None:
        """The writers are gone: `read` gives what the files have now, and then nothing; whoever still writes."""
        self._hear()
        self._look(None)
        self._mark(self._tails)
        self._at_rest = True
        for tail in self._tails:
            tail.end = tail.size()

    def take_notes(self) -> list[str]:
        """What happened to the files that should not (truncated, replaced, unreadable), since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Close every file."""
        for tail in self._tails:
            tail.close()
        for kept in (self._tails, self._missing, self._polled, self._ready, self._watched):
            kept.clear()
        if self._inotify is not None:
            os.close(self._inotify.fd)
            self._inotify = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self, tail: _Tail) -> bool:
        old_watch = tail.watch
        try:
            tail.open()
        except FileNotFoundError:
            return False
        except OSError as error:
            self._tell_unreadable(tail, error)
            return False
        self._watched.pop(old_watch, None)
        tail.watch = -1
        if self._inotify is not None:
            if old_watch >= 0:
                self._inotify.forget(old_watch)
            if not self._inotify.is_remote(tail.fd):
                tail.watch = self._inotify.watch(tail.path)
        if tail.watch >= 0:
            self._watched[tail.watch] = tail
            # The path may have been replaced between the open and the watch.
            tail.suspect = True
            self._polled = [other for other in self._polled if other is not tail]
        elif tail not in self._polled:
            self._polled.append(tail)
        self._mark((tail,))
        return True

    def _hear(self) -> None:
        if self._inotify is None:
            return
        for watch, mask in self._inotify.events():
            if mask & IN_Q_OVERFLOW:
                self._mark(self._tails)
            tail = self._watched.get(watch)
            if tail is not None:
                tail.suspect |= bool(mask & ~IN_MODIFY)
                self._mark((tail,))

    def _look(self, at: float | None) -> None:
        """At the files that nothing tells about: those that are due, or all."""
        due = [tail for tail in (*self._missing, *self._polled) if at is None or tail.look_at <= at]
        for tail in due:
            if at is not None:
                tail.look_at = at + pause_s(at - tail.grew_at)
            tail.suspect = True
            if tail not in self._missing:
                self._mark((tail,))
            elif self._follow(tail):
                self._missing.remove(tail)

    def _mark(self, tails: Iterable[_Tail]) -> None:
        for tail in tails:
            if tail not in self._ready and tail.fd >= 0:
                self._ready.append(tail)

    def _take(self, budget: int, streams: Collection[Stream]) -> list[Chunk]:
        chunks: list[Chunk] = []
        unwanted = [tail for tail in self._ready if tail.stream not in streams]
        self._ready = deque(tail for tail in self._ready if tail.stream in streams)
        while self._ready and budget > 0:
            tail = self._ready.popleft()
            size = min(_CHUNK, budget, _CHUNK if tail.end is None else max(0, tail.end - tail.offset))
            try:
                data = tail.read(size)
            except OSError as error:
                self._lose(tail, error)
                continue
            if data:
                budget -= len(data)
                tail.grew_at = time.monotonic()
                tail.look_at = min(tail.look_at, tail.grew_at + POLL_S)
                chunks.append(Chunk(tail.rank, tail.local_rank, tail.stream, data, tail.fresh))
                tail.fresh = False
            if data and len(data) == size:
                self._ready.append(tail)
            else:
                self._at_end(tail)
        self._ready += unwanted
        return chunks

    def _lose(self, tail: _Tail, error: OSError) -> None:
        """Open it again, at once or when it can be: a file server has come back, say, and knows its handles no more."""
        first = self._tell_unreadable(tail, error)
        tail.close()
        self._polled = [other for other in self._polled if other is not tail]
        if not (first and self._follow(tail)) and tail not in self._missing:
            self._missing.append(tail)

    def _tell_unreadable(self, tail: _Tail, error: OSError) -> bool:
        """Whether that is new."""
        first, tail.unreadable = not tail.unreadable, True
        if first:
            self._notes.append(f"cannot read {tail.path}: {error.strerror}")
        return first

    def _at_end(self, tail: _Tail) -> None:
        if tail.retired:
            self._drop(tail)
            return
        try:
            length = os.fstat(tail.fd).st_size
        except OSError as error:
            self._lose(tail, error)
            return
        tail.unreadable = False
        if length < tail.offset:
            self._notes.append(f"{tail.path} was truncated; reading it from the start")
            tail.offset, tail.fresh = 0, True
            tail.end = length if self._at_rest else None
            self._mark((tail,))
        elif tail.suspect:
            self._check_identity(tail)

    def _drop(self, tail: _Tail) -> None:
        tail.close()
        if self._inotify is not None and self._watched.pop(tail.watch, None) is not None:
            self._inotify.forget(tail.watch)
        for kept in (self._tails, self._missing, self._polled):
            kept[:] = [other for other in kept if other is not tail]

    def _check_identity(self, tail: _Tail) -> None:
        tail.suspect = False
        try:
            status = os.stat(tail.path)
        except OSError:
            # Its rank goes on writing into the file that has no name any more; a new one may come.
            if tail not in self._missing and tail not in self._polled:
                self._polled.append(tail)
            return
        there = (status.st_dev, status.st_ino)
        if there in (tail.identity, tail.refused):
            return
        if self._follow(tail):
            self._notes.append(f"{tail.path} was replaced; reading the new file from the start")
        else:
            tail.refused = there
