"""What ranks say of themselves: one JSON datagram each on a Unix socket in a folder that only this user can enter.

A rank that cannot send (socket gone, queue full) goes on without: nothing here may hold up training. Every process of
the job can send, so the form of all of it is checked here, once. Whether the sender is the rank that it says it is:
`ddp_run.supervise.ranks`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, final

from ddp_run.record.events import (
    ExceptionInfo,
    LocalRank,
    MonotonicNs,
    Noted,
    Rank,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
)
from ddp_run.record.journal import now
from ddp_run.supervise import board_folder
from ddp_run.supervise.board_folder import BoardFolder
from ddp_run.values import kernel_text, private_files

_MOST = 256 * 1024
"""Bytes of the largest message; longer ones are cut by the rank before it sends."""


Said = RankStarted | RankFailed | RankFinished | RankPhase | Noted
"""What a rank can say."""
_NAME, _HOST = "events.sock", "host"
_OURS = re.compile(r"events\.sock|host|board_\d+_\d+")
"""Files of such a folder."""
_LONGEST_PATH = 107
"""Bytes of a Unix socket's path (unix(7)); a scheduler's TMPDIR alone can be longer."""
_CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): pid, uid, gid."""
_AT_ONCE = 1024
"""Messages; more than the kernel keeps for us (net.unix.max_dgram_qlen: 10, with systemd 512), so all that had come are
among them."""
_FOLDER = re.compile(r"attempt_(\d{1,9})(?:/restart_(\d{1,9}))?/rank_(\d{1,9})")
_INTERRUPTED = -2
"""The one signal by which a program ends itself, at a KeyboardInterrupt; all others are the kernel's to report."""
_MANY = 1 << 31


@dataclass(frozen=True, slots=True)
class Heard:
    """A message, and who it says it is from: a rank of one start of the ranks in one attempt.

    `sender`: the pid of the process that sent it, by the kernel; 0: of another pid namespace, so not known.
    """

    said: Said
    attempt: int
    restart: int
    rank: Rank
    sender: int


def _places() -> tuple[str, ...]:
    return (os.environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm")  # noqa: S108  # a folder is ours alone by its mode


def _private_folder() -> Path:
    """A new folder for this user alone, with a path short enough. Raises OSError where there is no place for one."""
    failure = OSError("no folder for a socket")
    for place in _places():
        folder = Path(place) / private_files.fresh_name()
        if len(os.fsencode(folder / _NAME)) > _LONGEST_PATH:
            continue
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            failure = error
        else:
            return folder
    raise failure


def _this_host() -> str | None:
    """This start of this machine's kernel, which its containers share; null where it cannot be known."""
    try:
        return kernel_text.read(Path("/proc/sys/kernel/random/boot_id")).strip() or None
    except OSError:
        return None


def clear_stale() -> None:
    """Remove what runs of this user left that were killed, and their keepers with them.

    Only what is certainly such a folder (its name, owner, mode and files) and certainly nobody's any more: made on this
    host, as others may share the file system, and no process has its socket.
    """
    board_folder.clear_stale()
    host = _this_host()
    if host is None:
        return
    for place in dict.fromkeys(_places()):
        private_files.clear_own(Path(place), lambda folder, handle, names: _is_dead(folder, handle, names, host))


def _is_dead(folder: Path, handle: int, names: list[str], host: str) -> bool:
    if not {_NAME, _HOST} <= set(names) or not all(_OURS.fullmatch(each) for each in names):
        return False
    if any(stat.S_ISDIR(os.stat(each, dir_fd=handle, follow_symlinks=False).st_mode) for each in names):
        return False
    marked = os.open(_HOST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    with open(marked, errors="replace") as file:
        return file.read(100).strip() == host and not _has_owner(folder / _NAME)


def _has_owner(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


@final
class Inbox:
    """Receives; `fileno()` can be read when there is something."""

    def __init__(self) -> None:
        self.folder = _private_folder()
        self.path = self.folder / _NAME
        if (host := _this_host()) is not None:
            try:
                (self.folder / _HOST).write_text(host + "\n")
            except OSError:  # full: then nobody else clears it
                pass
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _MOST)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(self.path))
        self._boards = BoardFolder(self.folder.name)
        self.board_folders = tuple(each for each in (self._boards.path, self.folder) if each is not None)
        """Where a rank may put its board (`rank/board.py`): the first that gives room. All are removed at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()
        for folder in self.board_folders:
            try:
                for file in folder.iterdir():  # the socket, its host's name, and the ranks' boards
                    file.unlink()
                folder.rmdir()
            except OSError:  # somebody cleaned up temporary files meanwhile
                pass
        self._boards.let_go()

    def fileno(self) -> int:
        """Descriptor for a loop."""
        return self._socket.fileno()

    def read(self) -> list[Heard]:
        """The messages that had arrived; those that are not of our form are dropped."""
        heard: list[Heard] = []
        for _ in range(_AT_ONCE):
            try:
                message, ancillary, _flags, _sender = self._socket.recvmsg(_MOST, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:  # BlockingIOError: that was all
                break
            each = _heard(message, _sender_of(ancillary))
            if each is not None:
                heard.append(each)
        return heard


def _sender_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The pid of the process that sent a message, as the kernel has it and as it is called here; 0: not known."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack(data)[0])
    return 0


@final
class _Fields:
    """A message's fields; all methods raise ValueError for what cannot be."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, Mapping):
            raise ValueError("not an object")
        self._given: Mapping[str, Any] = given

    def number(self, name: str, least: int = 0, below: int = _MANY) -> int:
        value = self._given.get(name)
        if type(value) is not int or not least <= value < below:
            raise ValueError(name)
        return value

    def at(self) -> MonotonicNs:
        """When it was; what is to come (a clock of another time namespace) is now."""
        return MonotonicNs(min(self.number("at", below=1 << 63), now()))

    def text(self, name: str) -> str:
        value = self._given.get(name)
        if not isinstance(value, str):
            raise ValueError(name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Null is none."""
        values = self._given.get(name) or ()
        if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
            raise ValueError(name)
        return tuple(values)

    def optional(self, name: str) -> Any:
        return self._given.get(name)


class _Message(StrEnum):
    """What a rank says (`ddp_run/rank/`)."""

    STARTED = "started"
    FAILED = "failed"
    PHASE = "phase"
    FINISHED = "finished"
    MISSED = "missed"


def _heard(message: bytes, sender: int) -> Heard | None:
    try:
        fields = _Fields(json.loads(message.decode("utf-8", "replace")))
        folder = _FOLDER.fullmatch(fields.text("folder"))
        if folder is None:
            return None
        attempt, restart, rank = int(folder[1]), int(folder[2] or 0), Rank(int(folder[3]))
        return Heard(_said(fields, restart, rank, sender), attempt, restart, rank, sender)
    except (ValueError, RecursionError):
        return None


def _said(fields: _Fields, restart: int, rank: Rank, sender: int) -> Said:
    match _Message(fields.text("event")):
        case _Message.STARTED:
            return _started(fields, restart, rank, sender)
        case _Message.FAILED:
            code = fields.number("code", _INTERRUPTED, 256)
            if code in (-1, 0):
                raise ValueError("no code of a program that failed")
            return RankFailed(fields.at(), rank, restart, code, _exception(fields.optional("exception")))
        case _Message.PHASE:
            return RankPhase(fields.at(), rank, restart, _phase(fields.text("phase")))
        case _Message.FINISHED:
            return RankFinished(fields.at(), rank, restart)
        case _Message.MISSED:
            return Noted(fields.at(), f"rank {rank} cannot be monitored: {fields.text('text')}")


def _started(fields: _Fields, restart: int, rank: Rank, sender: int) -> RankStarted:
    """Its pid is the sender's: signals go there."""
    if sender <= 1:
        raise ValueError("no process that can be signalled")
    return RankStarted(
        at=fields.at(),
        rank=rank,
        local_rank=LocalRank(fields.number("local_rank")),
        restart=restart,
        pid=sender,
        world_size=fields.number("world_size"),
        local_world_size=fields.number("local_world_size"),
        folder=fields.text("folder"),
        watched=bool(fields.optional("watched")),
        links=fields.texts("links"),
    )


def _phase(name: str) -> str:
    from ddp_run.observe.boards import PHASES, REPLACED

    if name not in (*PHASES, REPLACED):
        raise ValueError(name)
    return name


def _exception(given: object) -> ExceptionInfo | None:
    if given is None:
        return None
    from ddp_run.values import typed_fields

    found = typed_fields.read(ExceptionInfo, given)
    if (found.line or 0) < 0:
        raise ValueError("line")
    named = given.get("file") if isinstance(given, Mapping) else None
    return replace(found, file=None) if "\0" in (named or "") else found  # without the NUL it would be another file
