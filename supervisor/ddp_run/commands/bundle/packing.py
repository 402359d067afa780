"""Parts into one archive, each cleaned of secrets on the way, and what is to be told of that."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, assert_never, final

from ddp_run.commands.bundle import cleaned_copy
from ddp_run.commands.bundle.cleaned_copy import Cleaner, Copy, Removed
from ddp_run.commands.bundle.parts import LAST_LINES, File, LeftOut, Part, Text
from ddp_run.record.run_folder import open_run_file

_WITHIN_S = 40.0
_ONE_WITHIN_S = 6.0
_LEAST_BYTES_PER_S = 2 << 20
"""What is asked for is copied, and be it a gigabyte, unless the file system or the processor is slower than this.
Ordinary lines take a second per 50 MiB, lines with a secret each ten, on an idle processor."""
_MOST_BYTES_OF_LIMIT = 4
"""All files together: so many times what one long log may have."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A file of the archive."""

    name: str
    size: int
    removed: Removed
    left_out: str | None = None


@final
@dataclass(slots=True)
class Contents:
    """What is in the archive, and what is not."""

    files: list[Packed] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def removed(self) -> dict[str, int]:
        """Kinds of secrets, with the number of lines; the most frequent first."""
        every = Removed()
        for each in self.files:
            every.kinds += each.removed.kinds
        return dict(every.kinds.most_common())


@final
class Packing:
    """An archive that is being written to a stream. Raises OSError."""

    def __init__(self, out: BinaryIO, top: str, cleaner: Cleaner, limit: int, scratch: Path | None) -> None:
        self.contents = Contents()
        self._top, self._cleaner, self._scratch = top, cleaner, scratch
        self._room = _MOST_BYTES_OF_LIMIT * limit
        self._deadline = time.monotonic() + _WITHIN_S + self._room / _LEAST_BYTES_PER_S
        self._zipped = gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=out)
        self._tar = tarfile.open(fileobj=self._zipped, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, parts: Iterable[Part]) -> None:
        """In their order."""
        for part in parts:
            match part:
                case Text():
                    self._pack(part.name, cleaned_copy.of_text(part.text, self._cleaner), time.time())
                case File():
                    self._add_file(part)
                case LeftOut():
                    self.contents.left_out.append(part)
                case _:
                    assert_never(part)

    def finish(self, readme: str) -> None:
        """The last file, which tells of the others, and the archive's end."""
        data = readme.encode("utf-8", "backslashreplace")
        self._write("README.txt", len(data), io.BytesIO(data), time.time())
        self._tar.close()
        self._zipped.close()

    def _add_file(self, part: File) -> None:
        now = time.monotonic()
        if now >= self._deadline or self._room <= 0:
            why = "there was no time" if now >= self._deadline else "there was no room"
            self.contents.left_out.append(LeftOut(part.name, f"{why} left for it"))
            return
        try:
            with open_run_file(part.root, part.source) as log:
                modified = os.fstat(log.fileno()).st_mtime
                self._pack(part.name, self._copy(log, part.limit, now), modified)
        except OSError as error:
            self.contents.left_out.append(LeftOut(part.name, f"cannot be read: {error.strerror or error}"))

    def _copy(self, log: BinaryIO, limit: int | None, now: float) -> Copy:
        if limit is None:
            return cleaned_copy.last_lines(log, LAST_LINES, self._cleaner)
        deadline = min(now + _ONE_WITHIN_S + limit / _LEAST_BYTES_PER_S, self._deadline)
        return cleaned_copy.whole(log, min(limit, self._room), deadline, self._cleaner, self._scratch)

    def _pack(self, name: str, copy: Copy, modified: float) -> None:
        with copy.file:
            self._write(name, copy.size, copy.file, modified)
        self._room -= copy.size
        self.contents.files.append(Packed(name, copy.size, copy.removed, copy.left_out))

    def _write(self, name: str, size: int, file: BinaryIO, modified: float) -> None:
        entry = tarfile.TarInfo(f"{self._top}/{name}")
        entry.size, entry.mode, entry.mtime = size, 0o600, int(modified)
        self._tar.addfile(entry, file)
