"""Copies and unpacks a compressed log, a pipe or a device, if there is enough space."""

from __future__ import annotations

import gzip
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from ddp_run.values.words import size_in_words

_CHUNK = 256 << 10
SPOOL_BYTES = 4 << 30
"""The most that is copied from a pipe, a device or a compressed file, and never more than half of the free space."""


def is_whole_file(stream: BinaryIO) -> bool:
    """Whether it can be read in place: not a pipe or device, not partly read, not compressed."""
    try:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode) or stream.tell() != 0:
            return False
        return os.pread(stream.fileno(), len(_GZIP), 0) != _GZIP
    except OSError:  # also io.UnsupportedOperation: no descriptor
        return False


_GZIP = b"\x1f\x8b\x08"


class _Again:
    """A stream whose first bytes were already read."""

    def __init__(self, first: bytes, stream: BinaryIO) -> None:
        self._first, self._stream = first, stream

    def read(self, size: int) -> bytes:
        """Return at most this many bytes."""
        first, self._first = self._first[:size], self._first[size:]
        return first or self._stream.read(size)


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    """Yield its content, piece by piece. Raises OSError, EOFError and zlib.error if compressed data is damaged."""
    first = stream.read(_CHUNK)
    again: Any = _Again(first, stream)
    source = gzip.GzipFile(fileobj=again) if first.startswith(_GZIP) else again
    while chunk := source.read(_CHUNK):
        yield chunk


def copy(stream: BinaryIO, spool: int) -> str | None:
    """Copy its unpacked content while there is space; return a note about the rest."""
    copied = 0
    free = os.fstatvfs(spool)
    room = min(SPOOL_BYTES, free.f_bavail * free.f_frsize // 2)
    pieces = _unpacked(stream)
    while True:
        try:
            chunk = next(pieces, b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            return f"only the first {size_in_words(copied)} could be unpacked: {type(error).__name__}"
        if not chunk:
            return None
        if copied + len(chunk) > room:
            where = tempfile.gettempdir()
            return f"only the first {size_in_words(copied)} were read: a pipe or packed log is copied to {where}"
        view = memoryview(chunk)
        while view:
            try:
                written = os.write(spool, view)
            except OSError as error:
                why = f"{tempfile.gettempdir()}: {error.strerror} (TMPDIR names another folder)"
                return f"only the first {size_in_words(copied)} were read: {why}"
            copied += written
            view = view[written:]
