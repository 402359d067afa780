"""The run's folder: where it is, what is in it, and the link to the latest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from ddp_run.record import file_names
from ddp_run.values import private_files

if TYPE_CHECKING:
    from datetime import datetime


@final
@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's folder `<log_dir>/<YYYYmmdd-HHMMSS-xxxx>/`; the promise about its names is in the README."""

    path: Path
    """Absolute."""
    note: str | None = None
    """Why the link `latest` could not be set, where it could not: no reason to stop a run."""

    @classmethod
    def create(cls, log_dir: Path, now: datetime, *, trusted: bool = True) -> Self:
        """Make a new folder, readable by its owner alone, and point `latest` at it.

        `now` gives the local time in its name. Without `trusted`, `log_dir` may not be somebody else's in a place like
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

    def attempt(self, number: int) -> Path:
        """The folder of attempt `number`, counted from 0; it is not made here."""
        return self.path / file_names.attempt_folder(number)

    def attempt_folder(self, number: int) -> Path:
        """Make the folder of attempt `number`, counted from 0. Raises OSError."""
        folder = self.attempt(number)
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
