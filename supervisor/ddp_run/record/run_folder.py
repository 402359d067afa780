"""The run's folder: creating it, the link to the latest, and opening its files."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, final

from ddp_run.record import file_names
from ddp_run.values import private_files
from ddp_run.values.private_files import open_file

if TYPE_CHECKING:
    from datetime import datetime


@final
@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's folder `<log_dir>/<YYYYmmdd-HHMMSS-xxxx>/`; the promise about its names is in the README."""

    path: Path
    """Absolute."""
    note: str | None = None
    """Why the link `latest` couldn't be set; the run goes on without it."""

    @classmethod
    def create(cls, log_dir: Path, now: datetime, *, trusted: bool = True) -> Self:
        """Create a folder that only its owner can read, and point `latest` at it.

        `now` gives the local time in its name. Without `trusted`, `log_dir` must not be another user's in a place like
        /tmp. Raises OSError that carries the path.
        """
        log_dir = log_dir.parent.resolve() / log_dir.name
        alone = not trusted and private_files.is_shared(log_dir.parent)
        private_files.make_folders(log_dir, 0o700 if alone else 0o775)
        held = private_files.open_folder(log_dir, trusted=trusted)
        try:
            while True:
                name = f"{now:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
                try:
                    os.mkdir(name, 0o700, dir_fd=held)
                except FileExistsError:
                    continue
                return cls(log_dir.resolve() / name, _point_latest(log_dir, name, held))
        finally:
            os.close(held)

    @property
    def run_id(self) -> str:
        """The name of the folder: date, time and four hexadecimal digits."""
        return self.path.name

    @property
    def plan(self) -> Path:
        """The launch plan."""
        return self.path / file_names.PLAN

    @property
    def events(self) -> Path:
        """The journal."""
        return self.path / file_names.EVENTS

    @property
    def verdict(self) -> Path:
        """The answer."""
        return self.path / file_names.VERDICT

    def attempt_folder(self, number: int) -> Path:
        """Make the folder of attempt `number`, counted from 0. Raises OSError."""
        folder = self.path / file_names.attempt_folder(number)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def _point_latest(log_dir: Path, name: str, held: int) -> str | None:
    new = f".latest-{name}"
    try:
        os.symlink(name, new, dir_fd=held)
        try:
            os.replace(new, file_names.LATEST, src_dir_fd=held, dst_dir_fd=held)
        except OSError:
            os.unlink(new, dir_fd=held)
            raise
    except OSError as error:
        return f"the link {log_dir / file_names.LATEST} was not set: {error.strerror}"
    return None


def read_object(folder: Path, name: str) -> dict[str, Any] | None:
    """A JSON object in a file of a run, read up to 1 MiB; None if there is none."""
    try:
        with open_run_file(folder, name) as file:
            found = json.loads(file.read(_MOST_OF_AN_OBJECT))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def entries_below(folders: Sequence[str | Path], most: int, deepest: int) -> Iterator[os.DirEntry[str]]:
    """What is below folders, links not followed: so many entries, so deep. What can't be read is left out."""
    waiting = [(str(folder), 0) for folder in folders]
    while waiting and most > 0:
        folder, depth = waiting.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in islice(entries, most):
                most -= 1
                if depth < deepest and entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
                yield entry


def next_data(fd: int, offset: int) -> int:
    """Where the data begins that isn't in a hole, from `offset` on; `offset` itself if nothing shows that."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return offset


def read_data(fd: int, size: int, offset: int) -> tuple[bytes, int]:
    """Up to `size` bytes of a file from `offset` on, without what is in holes, and where to go on. Raises OSError.

    A log has holes where --log-size-cap dropped its middle, and where it was truncated under a rank.
    """
    data = os.pread(fd, size, offset)
    if b"\0" in data and (start := next_data(fd, offset)) > offset:
        return read_data(fd, size, start)
    if b"\0" in data:
        with suppress(OSError):
            data = data[: os.lseek(fd, offset, os.SEEK_HOLE) - offset]
    return data, offset + len(data)


_MOST_OF_AN_OBJECT = 1 << 20
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_run_file(folder: Path, name: str, links: Collection[str] = ()) -> BinaryIO:
    """Open a regular file below `folder` to read, through no link, even if the folder changes meanwhile.

    Never waits, as opening a pipe would. `links`: targets of links that are allowed because ddp-run made them
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
        if not stat.S_ISREG(mode):  # not opened: the writer of a pipe, say, would notice
            raise OSError(errno.EINVAL, "not a regular file", str(folder / name))
        opened = os.open(last, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=held)
    finally:
        os.close(held)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a regular file", str(folder / name))
    return open(opened, "rb")
