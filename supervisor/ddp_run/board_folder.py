"""The folder of the ranks' boards in shared memory: held while its run lives, so that others see when it is nobody's.

The socket is not put there: systemd's RemoveIPC clears it at its user's last logout, and a mapped board stays.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path
from typing import final

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_BOARD = re.compile(r"board_\d{1,9}_\d{1,9}")
_MOST_CLEARED = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@final
class BoardFolder:
    """A new folder of this name, for this user alone; `path` is null where shared memory has no place for one."""

    def __init__(self, name: str) -> None:
        self.path: Path | None = None
        self._handle: int | None = None
        try:
            (_SHARED_MEMORY / name).mkdir(mode=0o700)
            self.path = _SHARED_MEMORY / name
            self._handle = os.open(self.path, _FOLDER)
            fcntl.flock(self._handle, fcntl.LOCK_SH)
        except OSError:
            pass

    def let_go(self) -> None:
        """Its run is over."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def clear_stale() -> None:
    """Remove those of this user that no process holds; what is not certainly such a folder stays.

    A run whose folder is removed before it could take hold of it goes on with the other folder for boards.
    """
    name = re.compile(rf"ddp-run-{os.getuid()}-[0-9a-f]{{8}}")
    try:
        with os.scandir(_SHARED_MEMORY) as entries:
            found = [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]
    except OSError:
        return
    for folder in found[:_MOST_CLEARED]:
        try:
            _clear(folder)
        except OSError:
            continue


def _clear(folder: Path) -> None:
    """Raises OSError, also where somebody holds it."""
    handle = os.open(folder, _FOLDER)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        names = os.listdir(handle)  # noqa: PTH208  # of what was looked at, whatever stands at the path
        if not all(_BOARD.fullmatch(each) for each in names):
            return
        for each in names:
            os.unlink(each, dir_fd=handle)
        folder.rmdir()
    finally:
        os.close(handle)
