"""Reads the end of a log with correct line numbers, whatever its size and bytes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, final

from ddp_run.evidence.model import LogText
from ddp_run.record.run_folder import open_run_file

TAIL_BYTES = 4 << 20
"""Ranks die near the end of their output."""
COUNTED_BYTES = 256 << 20
"""Above this size, lines before the tail are not counted."""
LINE_CHARS = 8 << 10
"""Only both ends of a longer line are kept."""
_CHUNK = 1 << 20


def read_tail(folder: Path, source: str, limit: int = TAIL_BYTES, links: Collection[str] = ()) -> LogText:
    """Return the last `limit` bytes of a run's file as complete lines; empty if the file cannot be read.

    If a progress bar overwrote a line with carriage returns, its last state is kept.
    """
    try:
        with open_run_file(folder, source, links) as log:
            size = log.seek(0, 2)
            start, number = _start(log, size, limit)
            log.seek(start)
            data = log.read(size - start)
    except OSError:
        return LogText(source)
    lines = data.decode("utf-8", errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    return LogText(source, tuple(_cut(_last_state(line)) for line in lines), number)


@final
class GrowingLog:
    """The end of a log that is polled: read again only if the file has grown."""

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source = folder, source
        self._size = 0

    def more(self) -> LogText | None:
        """Like `read_tail`; None if there is nothing new, or the file cannot be read."""
        try:
            size = (self._folder / self._source).stat().st_size
        except OSError:
            return None
        if size == self._size:
            return None
        self._size = size
        return read_tail(self._folder, self._source)


def _start(log: BinaryIO, size: int, limit: int) -> tuple[int, int | None]:
    """Return where the first complete line of the tail starts, and its number."""
    if size <= limit:
        return 0, 1
    log.seek(size - limit - 1)
    cut = log.readline()
    start = size - limit - 1 + len(cut)
    if size > COUNTED_BYTES:
        return start, None
    return start, 1 + _newlines(log, start)


def _newlines(log: BinaryIO, end: int) -> int:
    log.seek(0)
    count = 0
    while end > 0:
        chunk = log.read(min(_CHUNK, end))
        if not chunk:
            break
        count += chunk.count(b"\n")
        end -= len(chunk)
    return count


def _cut(line: str) -> str:
    half = LINE_CHARS // 2
    return line if len(line) <= LINE_CHARS else f"{line[:half]} … {line[-half:]}"


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
