"""What is asked of file systems: their free space, and the last checkpoint of a job.

A fork asks, because a dead file server never answers. To know which folders ranks write checkpoints to, only the links
of their open files in /proc are read: that can't wait for a file system.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, final

from ddp_run.record.events import Event, MonotonicNs, RankStarted
from ddp_run.record.run_folder import entries_below
from ddp_run.values.helper_process import HelperProcess, fork
from ddp_run.values.lines import neutral

_Kind = TypeVar("_Kind", bound=Event)
WAIT_S = 1.0
"""How long to wait for all answers to a question together."""
_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".pth.tar", ".msgpack")
_UNFINISHED = (".tmp", ".part", ".incomplete")
_NUMBERED = re.compile(r"(?:checkpoint|ckpt|step|epoch|iter)[a-z]{0,8}[-_=]?\d", re.IGNORECASE)
_MOST_FOLDERS = 8
_MOST_ENTRIES = 20_000
_MOST_DEPTH = 3
_MOST_OPEN = 4096


def answers(process: HelperProcess, kind: type[_Kind], at: MonotonicNs) -> tuple[list[_Kind], bool]:
    """The answers since the last call, as events of this kind, and whether there will be no more."""
    lines, over = process.lines()
    return [kind(at, *json.loads(line)) for line in lines], over


def ask_for_space(paths: Sequence[str]) -> HelperProcess:
    """Ask for the file systems of these paths, in this order (`SpaceCounted`). Raises OSError."""
    return fork(lambda fd: _count(paths, fd), WAIT_S)


def _count(paths: Sequence[str], fd: int) -> None:
    """Runs after a fork: only makes system calls, and uses only what is in memory already."""
    for path in paths:
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        counts = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail, found.f_files)
        os.write(fd, json.dumps([path, *counts]).encode() + b"\n")


# -------------------------------------------------------------------------------------------- checkpoints


@final
class Checkpoints:
    """The folders in which the checkpoints of a job are. `given`: by --checkpoint-dir; None: ranks' open files tell."""

    def __init__(self, given: str | None) -> None:
        self._given = given
        self._folders: dict[str, None] = {} if given is None else {given: None}
        self._turn = 0

    def look(self, alive: Sequence[RankStarted]) -> None:
        """Once a second, while ranks run: does one write a checkpoint? The first rank, which mostly does, and one more.

        What is written within less than a second may be missed; the folder is known once one was seen.
        """
        if self._given is not None or not alive:
            return
        self._turn += 1
        first, *others = sorted(alive, key=lambda event: event.rank)
        for event in (first, *others[self._turn % len(others) :][:1]) if others else (first,):
            for path in _written(event.pid):
                if len(self._folders) < _MOST_FOLDERS:
                    self._folders[_root(path)] = None

    def ask(self) -> HelperProcess | None:
        """Ask for the newest one (`CheckpointSeen`). None if no folder is known. Raises OSError."""
        folders = tuple(self._folders)
        return fork(lambda fd: _find_newest(folders, fd), WAIT_S) if folders else None


def _written(pid: int) -> Iterator[str]:
    """Paths of checkpoints that a process has open for writing."""
    try:
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        for number in os.listdir(folder)[:_MOST_OPEN]:  # noqa: PTH208  # pathlib takes three times as long
            try:
                path = os.readlink(number, dir_fd=folder)
            except OSError:  # closed meanwhile
                continue
            if path.startswith("/") and _is_checkpoint(path) and _writes(pid, number):
                yield path
    finally:
        os.close(folder)


def _is_checkpoint(path: str) -> bool:
    for ending in _UNFINISHED:
        path = path.removesuffix(ending)
    return path.endswith(_ENDINGS)


def _writes(pid: int, number: str) -> bool:
    """Whether the descriptor is open for writing: its flags are in octal (proc(5))."""
    try:
        flags = re.search(r"flags:\s+([0-7]+)", Path(f"/proc/{pid}/fdinfo/{number}").read_text())
    except OSError:  # closed meanwhile
        return False
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _root(path: str) -> str:
    """The folder with all checkpoints of a job: each may be a folder (`checkpoint-500/…`)."""
    folder = os.path.dirname(path)
    return os.path.dirname(folder) if _NUMBERED.search(os.path.basename(folder)) else folder


def _find_newest(folders: Sequence[str], fd: int) -> None:
    """Runs after a fork."""
    booted_ns = time.time_ns() - time.monotonic_ns()
    newest: tuple[int, str] | None = None
    for entry in entries_below(folders, _MOST_ENTRIES, _MOST_DEPTH):
        with suppress(OSError):
            if entry.name.endswith(_ENDINGS) and not entry.is_symlink() and not entry.is_dir():
                written = entry.stat().st_mtime_ns
                newest = max(newest or (written, entry.path), (written, entry.path))
    said = (None, None) if newest is None else (neutral(newest[1]), newest[0] - booted_ns)
    os.write(fd, json.dumps([neutral(folders[0]), *said]).encode() + b"\n")
