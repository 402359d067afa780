"""Reads the ranks' files while they grow.

Ranks write straight into their files; ddp-run only reads them, so a slow reader never slows a rank down.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, final

from ddp_run.record.run_folder import open_run_file, read_data
from ddp_run.tell.inotify import IN_MODIFY, IN_Q_OVERFLOW, Inotify
from ddp_run.values.lines import STREAMS, Stream

POLL_S: Final = 0.05
_REST_S: Final = 1.0
"""The longest pause between two looks at a file without inotify. A look may be a request to a file server."""
_CHUNK: Final = 96 << 10
"""Below malloc's threshold for new mappings: takes half the CPU of larger pieces."""


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of one rank's stream. `fresh`: the first of a new file, or of one that starts again at 0."""

    rank: int
    local_rank: int
    stream: Stream
    data: bytes
    fresh: bool = False


def pause_s(quiet_s: float) -> float:
    """Seconds until the next look at a file without inotify that last grew `quiet_s` seconds ago.

    A line is rarely shown later than a tenth of that.
    """
    return min(_REST_S, max(POLL_S, quiet_s / 10))


@final
@dataclass(slots=True, eq=False)
class _Tail:
    """One file, and how far it was read."""

    rank: int
    local_rank: int
    stream: Stream
    path: Path
    links: Collection[str]
    """As in `open_run_file`."""
    fd: int = -1
    offset: int = 0
    end: int | None = None
    """Where reading stops, and the file is closed; None while the file grows."""
    watch: int = -1
    """Its inotify watch."""
    polled: bool = True
    """No event would report its next change, so it is looked at when `look_at` has come."""
    suspect: bool = False
    """The path may lead to another file now."""
    fresh: bool = True
    unreadable: bool = False
    """The last attempt to read it failed."""
    identity: tuple[int, int] = (0, 0)
    """Device and inode."""
    refused: tuple[int, int] = (0, 0)
    """What the path led to instead of this file, when that could not be read."""
    grew_at: float = field(default_factory=time.monotonic)
    look_at: float = field(default_factory=time.monotonic)

    def open(self) -> None:
        """Open the file at the path, and continue where reading stopped if it is the same file. Raises OSError."""
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
            except OSError:  # the descriptor is free even then: close(2)
                pass
        self.fd = -1

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end. Raises OSError (a network file system's stale handle)."""
        data, self.offset = read_data(self.fd, size, self.offset)
        return data


@final
class Tailer:
    """Reads many growing files without blocking: only regular files, and no links except those that ddp-run made.

    Wait for `fileno()`, or for `wait_s` seconds, then call `read`. While you want no data, don't wait for `fileno()`.
    """

    def __init__(self, *, polling: bool = False) -> None:
        """With `polling`, inotify isn't used."""
        self._tails: list[_Tail] = []
        self._ready: deque[_Tail] = deque()
        self._notes: list[str] = []
        self._at_rest = False
        self._inotify = None if polling else Inotify.open()

    def fileno(self) -> int | None:
        """The descriptor that is readable when a file has grown; None without inotify."""
        return None if self._inotify is None else self._inotify.fd

    def wait_s(self, streams: Collection[Stream] = STREAMS) -> float | None:
        """Seconds until `read` is due even if `fileno()` stays silent; 0 if bytes are left, None if never."""
        if not streams:
            return None
        if any(tail.stream in streams for tail in self._ready):
            return 0.0
        due = min((tail.look_at for tail in self._tails if tail.polled), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def add(
        self, rank: int, local_rank: int, stream: Stream, path: Path, *, start: int = 0, links: Collection[str] = ()
    ) -> None:
        """Follow a file, from byte `start` on if it exists already. `links`: as in `open_run_file`."""
        tail = _Tail(rank, local_rank, stream, path, links)
        self._tails.append(tail)
        if self._follow(tail):
            tail.offset = start

    def retire(self, rank: int) -> None:
        """Read this rank's files to their present ends and close them: the rank restarts, with other files."""
        for tail in self._tails:
            if tail.rank == rank:
                self._stop_at_end(tail)

    def read(self, budget: int = 1 << 20, streams: Collection[Stream] = STREAMS) -> list[Chunk]:
        """What's new in the files of these streams: at most `budget` bytes, the files taking turns."""
        if streams and not self._at_rest:
            self._hear()
            self._look(time.monotonic())
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
            if data and (len(data) == size or tail.end is not None):  # a hole, not the end
                self._ready.append(tail)
            else:
                self._at_end(tail)
        self._ready += unwanted
        return chunks

    def stop_at_ends(self) -> None:
        """From now on, read only what the files hold now, even if another process still writes: the ranks are gone."""
        self._hear()
        self._look(None)
        self._at_rest = True
        for tail in self._tails:
            self._stop_at_end(tail)

    def take_notes(self) -> list[str]:
        """Problems with files since the last call: truncated, replaced, unreadable."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Close every file."""
        for tail in self._tails:
            tail.close()
        self._tails.clear()
        self._ready.clear()
        if self._inotify is not None:
            os.close(self._inotify.fd)
            self._inotify = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop_at_end(self, tail: _Tail) -> None:
        self._mark(tail)
        try:
            tail.end = os.fstat(tail.fd).st_size
        except OSError:
            tail.end = 0

    def _mark(self, tail: _Tail) -> None:
        """There may be more to read."""
        if tail.fd >= 0 and tail not in self._ready:
            self._ready.append(tail)

    def _follow(self, tail: _Tail) -> bool:
        """Open the file at the path and have the kernel report its changes; False if it can't be opened."""
        try:
            tail.open()
        except FileNotFoundError:
            return False
        except OSError as error:
            self._note_unreadable(tail, error)
            return False
        self._forget_watch(tail)
        if self._inotify is not None and not self._inotify.is_remote(tail.fd):
            tail.watch = self._inotify.watch(tail.path)
        tail.polled = tail.watch < 0
        # The path may have been replaced between the open and the watch.
        tail.suspect = not tail.polled
        self._mark(tail)
        return True

    def _forget_watch(self, tail: _Tail) -> None:
        if self._inotify is not None and tail.watch >= 0:
            self._inotify.forget(tail.watch)
        tail.watch = -1

    def _hear(self) -> None:
        """Mark the files for which there are events."""
        for watch, mask in self._inotify.events() if self._inotify is not None else ():
            for tail in self._tails:
                if tail.watch == watch:
                    tail.suspect |= bool(mask & ~IN_MODIFY)
                    self._mark(tail)
                elif mask & IN_Q_OVERFLOW:
                    self._mark(tail)

    def _look(self, at: float | None) -> None:
        """Look at the files without events: those that are due, or all if `at` is None."""
        for tail in self._tails:
            if not tail.polled or (at is not None and tail.look_at > at):
                continue
            if at is not None:
                tail.look_at = at + pause_s(at - tail.grew_at)
            if tail.fd < 0:
                self._follow(tail)
            else:
                tail.suspect = True
                self._mark(tail)

    def _at_end(self, tail: _Tail) -> None:
        """Everything was read. Is the file shorter now, or another one?"""
        try:
            length = os.fstat(tail.fd).st_size
        except OSError as error:
            self._lose(tail, error)
            return
        tail.unreadable = False
        if length < tail.offset:
            self._notes.append(f"{tail.path} was truncated; reading it from the start")
            tail.offset, tail.fresh = 0, True
            tail.end = None if tail.end is None else length
            self._mark(tail)
        elif tail.suspect:
            self._check_identity(tail)
        if tail.end is not None and tail not in self._ready:
            tail.close()
            self._forget_watch(tail)
            self._tails.remove(tail)

    def _check_identity(self, tail: _Tail) -> None:
        """Continue with another file if the path leads to one now."""
        tail.suspect = False
        try:
            status = os.stat(tail.path)
        except OSError:
            tail.polled = True  # its rank still writes to the file, which was unlinked; a new one may come
            return
        there = (status.st_dev, status.st_ino)
        if there in (tail.identity, tail.refused):
            return
        if self._follow(tail):
            self._notes.append(f"{tail.path} was replaced; reading the new file from the start")
        else:
            tail.refused = there

    def _lose(self, tail: _Tail, error: OSError) -> None:
        """Open it again, now or later: old handles become invalid when a file server restarts, for example."""
        first = self._note_unreadable(tail, error)
        tail.close()
        tail.polled = True
        if first:
            self._follow(tail)

    def _note_unreadable(self, tail: _Tail, error: OSError) -> bool:
        """Note it once; True if it wasn't known yet."""
        first, tail.unreadable = not tail.unreadable, True
        if first:
            self._notes.append(f"cannot read {tail.path}: {error.strerror}")
        return first
