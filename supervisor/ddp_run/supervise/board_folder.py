"""The folder of the ranks' boards in shared memory: held while its run lives, so that others see when it is nobody's.

The socket is not put there: systemd's RemoveIPC clears it at its user's last logout, and a mapped board stays.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import final

from ddp_run.values import private_files

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_BOARD = re.compile(r"board_\d{1,9}_\d{1,9}")


@final
class BoardFolder:
    """A new folder of this name, for this user alone; `path` is null where shared memory has no place for one."""

    def __init__(self, name: str) -> None:
        self.path: Path | None = None
        self._handle: int | None = None
        try:
            (_SHARED_MEMORY / name).mkdir(mode=0o700)
            self.path = _SHARED_MEMORY / name
            self._handle = os.open(self.path, private_files.OPEN_FOLDER)
            fcntl.flock(self._handle, fcntl.LOCK_SH)
        except OSError:
            pass

    def let_go(self) -> None:
        """Its run is over."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def clear_stale() -> None:
    """Remove those of this user that no process holds.

    A run whose folder is removed before it could take hold of it goes on with the other folder for boards.
    """
    private_files.clear_own(_SHARED_MEMORY, _is_dead)


def _is_dead(_folder: Path, handle: int, names: list[str]) -> bool:
    """Raises OSError where somebody holds it."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return all(_BOARD.fullmatch(each) for each in names)
