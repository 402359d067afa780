"""The last checkpoint of a job: which folders its ranks write some to, and which file there is the newest.

A separate process looks at the folders, because a dead file server never answers. Of a rank's open files, only the
links in /proc are read: that can't wait for a file system.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from ddp_run.record.events import CheckpointSeen, MonotonicNs, RankStarted
from ddp_run.values.helper_process import HelperProcess, fork
from ddp_run.values.lines import neutral

WAIT_S = 1.0
"""How long to wait for the answer."""
_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".pth.tar", ".msgpack")
_UNFINISHED = (".tmp", ".part", ".incomplete")
_NUMBERED = re.compile(r"(?:checkpoint|ckpt|step|epoch|iter)[a-z]{0,8}[-_=]?\d", re.IGNORECASE)
_MOST_FOLDERS = 8
_MOST_ENTRIES = 20_000
_MOST_DEPTH = 3
_MOST_OPEN = 4096


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
        """Ask for the newest one. None if no folder is known. Raises OSError."""
        folders = tuple(self._folders)
        return fork(lambda fd: _answer(folders, fd), WAIT_S) if folders else None


def answers(process: HelperProcess, at: MonotonicNs) -> tuple[list[CheckpointSeen], bool]:
    """The answers since the last call, and whether there will be no more."""
    lines, over = process.lines()
    return [_seen(at, *json.loads(line)) for line in lines], over


def _seen(at: MonotonicNs, folder: str, path: str | None, age_ns: int | None) -> CheckpointSeen:
    return CheckpointSeen(at, folder, path, None if age_ns is None else MonotonicNs(at - age_ns))


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


def _answer(folders: Sequence[str], fd: int) -> None:
    """Runs after a fork."""
    now_s, left = time.time(), _MOST_ENTRIES
    newest: tuple[float, str] | None = None
    waiting = [(folder, 0) for folder in folders]
    while waiting and left > 0:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting += [(entry.path, depth + 1)] if depth < _MOST_DEPTH else []
                    elif entry.name.endswith(_ENDINGS) and not entry.is_symlink():
                        written = entry.stat().st_mtime
                        newest = max(newest or (written, entry.path), (written, entry.path))
        except OSError:
            continue
    said = (None, None) if newest is None else (neutral(newest[1]), round((now_s - newest[0]) * 1e9))
    os.write(fd, json.dumps([neutral(folders[0]), *said]).encode() + b"\n")
