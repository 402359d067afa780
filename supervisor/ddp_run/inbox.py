"""What ranks say of themselves: one JSON datagram each on a Unix socket in a folder that only this user can enter.

A rank that cannot send (socket gone, queue full) goes on without: nothing here may hold up training.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

from ddp_run.events import ExceptionInfo, LocalRank, MonotonicNs, Noted, Rank, RankFailed, RankPhase, RankStarted

_MOST = 256 * 1024
"""Bytes of the largest message; longer ones are cut by the rank before it sends."""


Said = RankStarted | RankFailed | RankPhase | Noted
"""What a rank can say."""
_NAME = "events.sock"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_LONGEST_PATH = 107
"""Bytes of a Unix socket's path (unix(7)); a scheduler's TMPDIR alone can be longer."""


def _private_folder() -> Path:
    """A new folder for this user alone, with a path short enough. Raises OSError where there is no place for one."""
    failure = OSError("no place for a socket")
    for place in (os.environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm"):  # noqa: S108  # ours alone by its mode
        folder = Path(place) / f"ddp-run-{os.getuid()}-{os.urandom(4).hex()}"
        if len(os.fsencode(folder / _NAME)) > _LONGEST_PATH:
            continue
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            failure = error
        else:
            return folder
    raise failure


def _board_folder(name: str) -> tuple[Path, ...]:
    """A folder of this name for the ranks' boards in shared memory, where it can be had.

    The socket is not put there: systemd's RemoveIPC clears it at its user's last logout, and a mapped board stays.
    """
    try:
        (_SHARED_MEMORY / name).mkdir(mode=0o700)
    except OSError:
        return ()
    return (_SHARED_MEMORY / name,)


@final
class Inbox:
    """Receives; `fileno()` can be read when there is something."""

    def __init__(self) -> None:
        self.folder = _private_folder()
        self.path = self.folder / _NAME
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _MOST)
        self._socket.bind(str(self.path))
        self.board_folders = (*_board_folder(self.folder.name), self.folder)
        """Where a rank may put its board (`rank/board.py`): the first that gives room. All are removed at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()
        for folder in self.board_folders:
            try:
                for file in folder.iterdir():  # the socket, and the ranks' boards
                    file.unlink()
                folder.rmdir()
            except OSError:  # somebody cleaned up temporary files meanwhile
                pass

    def fileno(self) -> int:
        """Descriptor for a loop."""
        return self._socket.fileno()

    def read(self) -> list[Said]:
        """All messages that have arrived; those that are not of our form are dropped."""
        events: list[Said] = []
        while True:
            try:
                message = self._socket.recv(_MOST)
            except BlockingIOError:
                return events
            event = _event(message)
            if event is not None:
                events.append(event)


def _event(message: bytes) -> Said | None:
    try:
        fields = json.loads(message.decode("utf-8", "replace"))
        match fields["event"]:
            case "started":
                return _started(fields)
            case "failed":
                return _failed(fields)
            case "phase":
                at, rank = MonotonicNs(int(fields["at"])), Rank(int(fields["rank"]))
                return RankPhase(at, rank, int(fields["restart"]), str(fields["phase"]))
            case "missed":
                return Noted(
                    MonotonicNs(int(fields["at"])), f"rank {fields['rank']} cannot be observed: {fields['text']}"
                )
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
        watched=bool(fields.get("watched")),
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
