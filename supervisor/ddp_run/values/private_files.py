"""Files and folders that no other user can write to, move away or plant, whatever the umask and the place."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def open_private(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file; if it is new, only its owner may read and write it, by default. Follows no link; raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read, or a link to one; never waits, as opening a pipe does. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return open(opened, "rb")


def write_whole(path: Path, text: str, *, durable: bool) -> None:
    """Write the whole file or nothing, for its owner only. `durable`: it survives a crash of the host.

    Raises OSError (a full disk, a read-only folder).
    """
    with replacing(path, unfinished(path)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
        if durable:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def replacing(path: Path, part: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when it is whole; until then it's `part`. Raises OSError."""
    opened = open_private(part, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK, mode)
    try:
        with open(opened, "wb") as file:
            yield file
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def unfinished(path: Path) -> Path:
    """Where such a file is until it is whole."""
    return path.with_name(f"{path.name}.tmp")


def make_folders(folder: Path, mode: int = 0o775) -> None:
    """Make a folder with this mode, less the umask, and the missing ones above it. Raises OSError.

    Even under umask 0, only the owner and the group may write to them.
    """
    missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    for each in reversed(missing):
        try:
            each.mkdir(mode if each == folder else 0o775)
        except FileExistsError:  # another process was faster
            pass


def is_shared(folder: Path) -> bool:
    """Whether this is a place like /tmp: anyone may write there, and only a file's owner may remove it."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)


def is_planted(folder: Path) -> bool:
    """Whether another user owns this folder or may write to it, in a place like /tmp, and so can put links into it.

    Elsewhere, users who may write there are trusted: colleagues share folders.
    """
    try:
        found = folder.lstat()
    except OSError:
        return False
    return is_shared(folder.parent) and not _is_ours(found)


def open_folder(folder: Path, *, trusted: bool) -> int:
    """A descriptor for making entries in it. Raises OSError; PermissionError if it is planted and not `trusted`."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    if trusted or not is_shared(folder.parent):
        return os.open(folder, flags)
    held = os.open(folder, flags | os.O_NOFOLLOW)
    if _is_ours(os.fstat(held)):
        return held
    os.close(held)
    raise PermissionError(errno.EPERM, "belongs to another user, or others may write to it", str(folder))


def fallback(temporary: Path) -> Path:
    """The folder for logs if the working directory can't hold any; it isn't made here.

    If the usual one belongs to another user, it has a random name: one made before, or else a new one.
    """
    usual = temporary / f"ddp-run-logs-{os.getuid()}"
    for path in (usual, *sorted(temporary.glob(f"{usual.name}-*"))):
        try:
            ours = _is_ours(path.lstat())
        except FileNotFoundError:
            ours = path == usual
        if ours:
            return path
    return usual.with_name(f"{usual.name}-{os.urandom(6).hex()}")


def _is_ours(found: os.stat_result) -> bool:
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


_MOST_CLEARED = 64
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How to open such a folder, never through a link."""


def fresh_name() -> str:
    """A name that no other folder has."""
    return f"{_begin()}{os.urandom(4).hex()}"


def clear_own(place: Path, is_unused: Callable[[Path, int, list[str]], bool]) -> None:
    """Remove this user's folders there that are no longer used; anything that isn't certainly one stays.

    `is_unused` is called for each, with its path, a descriptor of it and the names of its files, which are removed with
    it. If it raises OSError, the folder stays.
    """
    name = re.compile(rf"{_begin()}[0-9a-f]{{8}}")
    try:
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]
    except OSError:
        return
    for folder in found[:_MOST_CLEARED]:
        try:
            _clear_one(folder, is_unused)
        except OSError:
            continue


def _begin() -> str:
    return f"ddp-run-{os.getuid()}-"


def _clear_one(folder: Path, is_unused: Callable[[Path, int, list[str]], bool]) -> None:
    handle = os.open(folder, OPEN_FOLDER)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        names = os.listdir(handle)  # noqa: PTH208  # of the folder that was checked, whatever is at the path now
        if not is_unused(folder, handle, names):
            return
        for each in names:
            os.unlink(each, dir_fd=handle)
        folder.rmdir()
    finally:
        os.close(handle)
