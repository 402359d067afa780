"""Opening the files of a run's folder, which anybody may have made, and in which ranks may put what they like."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from ddp_run.values.private_files import open_file

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_run_file(folder: Path, name: str, links: Collection[str] = ()) -> BinaryIO:
    """Open a regular file below `folder` to read, through no link, also where the folder changes meanwhile.

    Never waits, as the opening of a pipe does. `links`: where a file may be a link to, because ddp-run made it
    (`RankStarted.links`). Raises OSError.
    """
    *folders, last = Path(name).parts
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in folders:
            inner = os.open(each, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
        mode = os.stat(last, dir_fd=held, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode) and (target := os.readlink(last, dir_fd=held)) in links:
            return open_file(Path(target))
        if not stat.S_ISREG(mode):  # not opened: whoever writes to a pipe, say, would notice
            raise OSError(errno.EINVAL, "not a regular file", str(folder / name))
        opened = os.open(last, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=held)
    finally:
        os.close(held)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a regular file", str(folder / name))
    return open(opened, "rb")
