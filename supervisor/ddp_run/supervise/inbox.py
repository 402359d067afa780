"""What ranks say about themselves: JSON datagrams on a Unix socket in a folder that only this user can enter.

A rank that can't send (no socket, full queue) goes on without: nothing here may hold up training. Any process of the
job can send, so every message's form is checked here, once. `ddp_run.supervise.ranks` checks whether the sender is the
rank that it claims to be.

The ranks' boards (`rank/board.py`) have their own folder in shared memory, held by a lock while the run lives. The
socket isn't put there: systemd's RemoveIPC clears it at the user's last logout, while a mapped board stays.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar, final

from ddp_run.record.events import (
    ExceptionInfo,
    MonotonicNs,
    Noted,
    Rank,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    RankUnwinds,
)
from ddp_run.record.journal import now
from ddp_run.values import kernel_text, private_files, typed_fields

_MOST = 256 * 1024
"""Bytes of the largest message; the rank cuts longer ones before it sends them."""

_Failure = TypeVar("_Failure", RankFailed, RankUnwinds)
Said = RankStarted | RankFailed | RankUnwinds | RankFinished | RankPhase | Noted
"""What a rank can say."""
_NAME, _HOST = "events.sock", "host"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_BOARD = re.compile(r"board_\d{1,9}_\d{1,9}")
_LONGEST_PATH = 107
"""Bytes of a Unix socket's path (unix(7)); a scheduler's TMPDIR alone can be longer."""
_CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): pid, uid, gid."""
_AT_ONCE = 1024
"""Messages read at once: more than the kernel queues (net.unix.max_dgram_qlen: 10, with systemd 512)."""
_FOLDER = re.compile(r"attempt_(\d{1,9})(?:/restart_(\d{1,9}))?/rank_(\d{1,9})")
_INTERRUPTED = -2
"""The only signal by which a program ends itself (KeyboardInterrupt); the kernel reports all others."""
_MANY = 1 << 31


@dataclass(frozen=True, slots=True)
class Heard:
    """A message and the rank, restart and attempt that it claims to be from.

    `sender`: the sending process's pid, from the kernel; 0 if it's in another pid namespace, so unknown.
    """

    said: Said
    attempt: int
    restart: int
    rank: Rank
    sender: int


@final
class Inbox:
    """Receives messages; `fileno()` becomes readable when there are any."""

    def __init__(self) -> None:
        self.folder = _private_folder()
        self.path = self.folder / _NAME
        if (host := _this_host()) is not None:
            try:
                (self.folder / _HOST).write_text(host + "\n")
            except OSError:  # full: then no later run will clear it
                pass
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _MOST)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(self.path))
        self.board_folders: tuple[Path, ...] = (self.folder,)
        """Where a rank may put its board; it takes the first that has room. All are removed at the end."""
        self._held: int | None = None
        boards = _SHARED_MEMORY / self.folder.name
        try:
            boards.mkdir(mode=0o700)
            self.board_folders = (boards, self.folder)
            self._held = os.open(boards, private_files.OPEN_FOLDER)
            fcntl.flock(self._held, fcntl.LOCK_SH)
        except OSError:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()
        for folder in self.board_folders:
            try:
                for file in folder.iterdir():  # the socket, its host's name, and the ranks' boards
                    file.unlink()
                folder.rmdir()
            except OSError:  # temporary files were cleaned up meanwhile
                pass
        if self._held is not None:
            os.close(self._held)

    def fileno(self) -> int:
        """Descriptor for a loop."""
        return self._socket.fileno()

    def read(self) -> list[Heard]:
        """The messages that have arrived, without those that don't have our form."""
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


# ------------------------------------------------------------------------------------------------ folders


def _places() -> tuple[str, ...]:
    return (os.environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm")  # noqa: S108  # the folder's mode makes it ours alone


def _private_folder() -> Path:
    """Make a folder for this user alone with a path short enough. Raises OSError if there's no place for one."""
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
    """The id of this boot of the kernel, which its containers share; None if it can't be read."""
    return kernel_text.read(Path("/proc/sys/kernel/random/boot_id")).strip() or None


def clear_stale() -> None:
    """Remove the folders of this user's runs that were killed together with their keepers.

    Removes only what is certainly such a folder (name, owner, mode and files) and certainly unused: boards that no
    process holds, and sockets that were made on this host (others may share the file system) and have no process.
    A run whose boards are removed before it holds them uses its other folder.
    """
    private_files.clear_own(_SHARED_MEMORY, _is_dead_boards)
    host = _this_host()
    if host is None:
        return
    for place in dict.fromkeys(_places()):
        private_files.clear_own(Path(place), lambda folder, handle, names: _is_dead_socket(folder, handle, names, host))


def _is_dead_boards(_folder: Path, handle: int, names: list[str]) -> bool:
    """Raises OSError if a run holds the folder."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return all(_BOARD.fullmatch(each) for each in names)


def _is_dead_socket(folder: Path, handle: int, names: list[str], host: str) -> bool:
    own = {_NAME, _HOST}
    if not own <= set(names) or not all(each in own or _BOARD.fullmatch(each) for each in names):
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


# ----------------------------------------------------------------------------------------------- messages


def _sender_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The sending process's pid as the kernel gives it for our namespace; 0 if unknown."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack(data)[0])
    return 0


def _heard(message: bytes, sender: int) -> Heard | None:
    try:
        given = json.loads(message.decode("utf-8", "replace"))
        if not isinstance(given, Mapping):
            return None
        folder = _FOLDER.fullmatch(typed_fields.text(given.get("folder")))
        if folder is None:
            return None
        attempt, restart, rank = int(folder[1]), int(folder[2] or 0), Rank(int(folder[3]))
        return Heard(_said({**given, "restart": restart, "rank": rank}, sender), attempt, restart, rank, sender)
    except (ValueError, RecursionError):
        return None


def _said(given: dict[str, Any], sender: int) -> Said:
    """Raises ValueError if it isn't a message of ours."""
    given["at"] = at = MonotonicNs(min(_number(given.get("at"), below=1 << 63), now()))  # never in the future
    match given.get("event"):
        case "started":
            return _started(given, sender)
        case "failed":
            return _failure(RankFailed, given)
        case "unwinds":
            return _failure(RankUnwinds, given)
        case "phase":
            from ddp_run.rank.board import PHASES, REPLACED

            entered = typed_fields.read(RankPhase, given)
            if entered.phase not in (*PHASES, REPLACED):
                raise ValueError(entered.phase)
            return entered
        case "finished":
            return typed_fields.read(RankFinished, given)
        case "missed" | "noted" as kind:
            what = " cannot be monitored" if kind == "missed" else ""
            return Noted(at, f"rank {given['rank']}{what}: {typed_fields.text(given.get('text'))}")
        case _:
            raise ValueError("not a message of a rank")


def _number(value: object, below: int = _MANY) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise ValueError("not a number in range")
    return value


def _started(given: dict[str, Any], sender: int) -> RankStarted:
    """A hello. The rank's pid is the sender's, because it gets the rank's signals."""
    if sender <= 1:
        raise ValueError("no process that can be signalled")
    for name in ("local_rank", "world_size", "local_world_size", "group_rank", "group_world_size"):
        _number(given.get(name))
    own = {"pid": sender, "watched": bool(given.get("watched")), "links": given.get("links") or []}
    return typed_fields.read(RankStarted, {**given, **own})


def _failure(kind: type[_Failure], given: Mapping[str, Any]) -> _Failure:
    """Raises ValueError if it isn't one of a program."""
    failed = typed_fields.read(kind, {"exception": None, **given})
    if not _INTERRUPTED <= failed.code < 256 or failed.code in (-1, 0):
        raise ValueError("no code of a program that failed")
    return replace(failed, exception=_checked(failed.exception, given))


def _checked(exception: ExceptionInfo | None, given: Mapping[str, Any]) -> ExceptionInfo | None:
    if exception is None:
        return None
    if (exception.line or 0) < 0:
        raise ValueError("line")
    has_nul = "\0" in (given["exception"].get("file") or "")  # without it, the name would be another file's
    return replace(exception, file=None) if has_nul else exception
