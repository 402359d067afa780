"""Files and folders that nobody else can write to, move away or plant, whatever the umask and the place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner may read and write where it is new. Follows no link; raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read, or a link to one; never waits, as the opening of a pipe does. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return open(opened, "rb")


def make_folders(folder: Path, mode: int = 0o775) -> None:
    """Make a folder of this mode, less the umask, and those above it that are missing. Raises OSError.

    Nobody but the owner and his group may write to them, also under umask 0.
    """
    missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    for each in reversed(missing):
        try:
            each.mkdir(mode if each == folder else 0o775)
        except FileExistsError:  # somebody was faster
            pass


def is_shared(folder: Path) -> bool:
    """Whether this is a place like /tmp: everybody may write there, and only a file's owner may take it away."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)


def is_planted(folder: Path) -> bool:
    """Whether somebody else has this folder, or may write to it, in a place like /tmp; then he can put links into it.

    Elsewhere who may write there is trusted: colleagues share folders.
    """
    try:
        found = folder.lstat()
    except OSError:
        return False
    return is_shared(folder.parent) and not _is_ours(found)


def open_folder(folder: Path, *, trusted: bool) -> int:
    """A descriptor to make entries in it by. Raises OSError, PermissionError where it is planted and not `trusted`."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    if trusted or not is_shared(folder.parent):
        return os.open(folder, flags)
    held = os.open(folder, flags | os.O_NOFOLLOW)
    if _is_ours(os.fstat(held)):
        return held
    os.close(held)
    raise PermissionError(errno.EPERM, "belongs to another user, or others may write to it", str(folder))


def fallback(temporary: Path) -> Path:
    """The folder for logs where the working directory takes none; it is not made here.

    Of a random name where the usual one is somebody else's: one that was made before, else a new one.
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
