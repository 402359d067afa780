"""What ranks say of themselves: one JSON datagram each on a Unix socket in a folder that only this user can enter.

A rank that cannot send (socket gone, queue full) goes on without: nothing here may hold up training.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

from ddp_run.events import ExceptionInfo, LocalRank, MonotonicNs, Rank, RankFailed, RankStarted

_MOST = 256 * 1024
"""Bytes of the largest message; longer ones are cut by the rank before it sends."""


@final
class Inbox:
    """Receives; `fileno()` can be read when there is something."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"ddp-run-{os.getuid()}-"))
        self.path = self.folder / "events.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _MOST)
        self._socket.bind(str(self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fileno(self) -> int:
        """Descriptor for a loop."""
        return self._socket.fileno()

    def read(self) -> list[RankStarted | RankFailed]:
        """All messages that have arrived; those that are not of our form are dropped."""
        events: list[RankStarted | RankFailed] = []
        while True:
            try:
                message = self._socket.recv(_MOST)
            except BlockingIOError:
                return events
            event = _event(message)
            if event is not None:
                events.append(event)


def _event(message: bytes) -> RankStarted | RankFailed | None:
    try:
        fields = json.loads(message.decode("utf-8", "replace"))
        match fields["event"]:
            case "started":
                return _started(fields)
            case "failed":
                return _failed(fields)
            case _:
                return None
    except (ValueError, KeyError, TypeError):
        return None


def _started(fields: Mapping[str, Any]) -> RankStarted:
    return RankStarted(
        at=MonotonicNs(int(fields["at"])),
        rank=Rank(int(fields["rank"])),
        local_rank=LocalRank(int(fields["local_rank"])),
        restart=int(fields["restart"]),
        pid=int(fields["pid"]),
        world_size=int(fields["world_size"]),
        local_world_size=int(fields["local_world_size"]),
        folder=str(fields["folder"]),
    )


def _failed(fields: Mapping[str, Any]) -> RankFailed:
    exception = fields["exception"]
    return RankFailed(
        at=MonotonicNs(int(fields["at"])),
        rank=Rank(int(fields["rank"])),
        restart=int(fields["restart"]),
        code=int(fields["code"]),
        exception=None if exception is None else ExceptionInfo(**exception),
    )
