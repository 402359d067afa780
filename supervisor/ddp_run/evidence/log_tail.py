"""Reads the end of a run's log with correct line numbers, whatever its size and bytes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import final

from ddp_run.evidence.model import LogText
from ddp_run.evidence.scan import TAIL_BYTES, read_end
from ddp_run.record.run_folder import open_run_file


def read_tail(folder: Path, source: str, limit: int = TAIL_BYTES, links: Collection[str] = ()) -> LogText:
    """Return the last `limit` bytes of a run's file as complete lines; empty if the file cannot be read."""
    try:
        with open_run_file(folder, source, links) as log:
            return read_end(log.fileno(), source, limit)
    except OSError:
        return LogText(source)


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
