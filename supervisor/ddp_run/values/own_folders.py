"""ddp-run's own folders in places that every user writes to: known by their names, cleared when nobody's any more."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

_MOST_CLEARED = 64
OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How such a folder is opened, never through a link."""


def fresh_name() -> str:
    """A name that no other folder has."""
    return f"{_begin()}{os.urandom(4).hex()}"


def clear(place: Path, is_nobodys: Callable[[Path, int, list[str]], bool]) -> None:
    """Remove this user's there that nobody has any more; what is not certainly such a folder stays.

    `is_nobodys` is asked of each, by its path, a descriptor of it and the names of its files, all of which go with it
    where the answer is yes. It may raise OSError: then it is left alone.
    """
    name = re.compile(rf"{_begin()}[0-9a-f]{{8}}")
    try:
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]
    except OSError:
        return
    for folder in found[:_MOST_CLEARED]:
        try:
            _clear(folder, is_nobodys)
        except OSError:
            continue


def _begin() -> str:
    return f"ddp-run-{os.getuid()}-"


def _clear(folder: Path, is_nobodys: Callable[[Path, int, list[str]], bool]) -> None:
    handle = os.open(folder, OPEN)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        names = os.listdir(handle)  # noqa: PTH208  # of what was looked at, whatever stands at the path
        if not is_nobodys(folder, handle, names):
            return
        for each in names:
            os.unlink(each, dir_fd=handle)
        folder.rmdir()
    finally:
        os.close(handle)
