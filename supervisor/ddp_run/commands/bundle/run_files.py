"""The files of a folder that anybody may have made: found through no link that leads out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEEPEST = 6
_MOST = 20_000


@dataclass(frozen=True, slots=True)
class Entry:
    """Something below a folder: its path there, and why it cannot be copied, null for a regular file."""

    name: str
    unfit: str | None = None


def entries(root: Path) -> Iterator[Entry]:
    """All below `root` that is no folder, by name. What cannot be listed is left out."""
    for count, entry in enumerate(_below(root, "", 1)):
        if count == _MOST:
            yield Entry("", f"more than {_MOST} files")
            return
        yield entry


def _below(root: Path, within: str, depth: int) -> Iterator[Entry]:
    try:
        with os.scandir(root / within) as found:
            listed = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        yield Entry(within, f"cannot be listed: {error.strerror}")
        return
    for entry in listed:
        name = f"{within}/{entry.name}" if within else entry.name
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError as error:
            yield Entry(name, f"cannot be read: {error.strerror}")
            continue
        if stat.S_ISDIR(mode) and depth < _DEEPEST:
            yield from _below(root, name, depth + 1)
        else:
            yield Entry(name, _unfit(mode))


def _unfit(mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "a link: it is not followed"
    if stat.S_ISDIR(mode):
        return f"a folder more than {_DEEPEST} folders deep"
    return None if stat.S_ISREG(mode) else "not a regular file (a pipe, a socket or a device)"
