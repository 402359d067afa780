"""The archive: parts cleaned of secrets on their way into it, and README.txt, which says what is in it."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, assert_never, final

from ddp_run.commands.bundle import cleaned_copy
from ddp_run.commands.bundle.cleaned_copy import Cleaner, Copy, Removed
from ddp_run.commands.bundle.parts import Asked, File, LeftOut, Text, is_of_failing_rank, parts
from ddp_run.record.run_folder import open_run_file
from ddp_run.values.lines import neutral_text
from ddp_run.values.words import size_in_words

LOOK = "Look through it before you post it: ddp-run removes secrets that it knows by name or by form, and nothing else."
_LAST_LINES = 100
_MOST_PLACES = 1000
_WITHIN_S = 40.0
_ONE_WITHIN_S = 6.0
_LEAST_BYTES_PER_S = 2 << 20
"""Even a gigabyte is copied if asked for, unless the file system or the processor is slower than this.

An idle processor takes a second for 50 MiB of ordinary lines, ten for lines with a secret each."""
_MOST_BYTES_OF_LIMIT = 4
"""How many times the limit of one long log all files together may have."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A file of the archive."""

    name: str
    size: int
    removed: Removed
    left_out: str | None = None


@final
class Packing:
    """The archive of what was asked for, written to a stream; what is in it, and what isn't. Raises OSError."""

    def __init__(self, out: BinaryIO, top: str, asked: Asked) -> None:
        self.files: list[Packed] = []
        self.left_out: list[LeftOut] = []
        self._top, self._asked, self._cleaner = top, asked, Cleaner(asked.environ)
        self._room = _MOST_BYTES_OF_LIMIT * asked.limit
        self._deadline = time.monotonic() + _WITHIN_S + self._room / _LEAST_BYTES_PER_S
        with (
            gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=out) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as self._tar,
        ):
            for part in parts(asked):
                match part:
                    case Text():
                        self._pack(part.name, Copy(*self._cleaner.clean(part.text)), time.time())
                    case File():
                        self._add_file(part)
                    case LeftOut():
                        self.left_out.append(part)
                    case _:
                        assert_never(part)
            self._write("README.txt", self._readme(), time.time())

    @property
    def removed(self) -> dict[str, int]:
        """Kinds of secrets, with the number of lines; the most frequent first."""
        return dict(sum((each.removed.kinds for each in self.files), Counter[str]()).most_common())

    @property
    def state(self) -> Iterator[str]:
        """Sentences on the runs: which rank failed, and whether everything that it wrote is there."""
        for run in self._asked.runs:
            if not run.ended:
                yield f"{run.folder.name} has not ended, or ddp-run was killed: its journal has no end yet."
        for run in self._asked.runs:
            if run.failing is None:
                continue
            attempt, rank = run.failing
            packed = [each for each in self.files if is_of_failing_rank(each.name, run)]
            cut = [Path(each.name).name for each in packed if each.left_out]
            missing = [Path(each.name).name for each in self.left_out if is_of_failing_rank(each.name, run)]
            of = f"the failing rank (rank {rank} of attempt {attempt} of {run.folder.name})"
            if cut or missing:
                names, more = ", ".join((*cut, *missing)), "; a larger --max-size keeps more" if cut else ""
                yield f"The files of {of} are incomplete: {names}. README.txt says what was left out{more}."
            else:
                yield f"All files of {of} are included." if packed else f"The run's folder has no files of {of}."

    def _add_file(self, part: File) -> None:
        now = time.monotonic()
        if now >= self._deadline or self._room <= 0:
            why = "there was no time" if now >= self._deadline else "there was no room"
            self.left_out.append(LeftOut(part.name, f"{why} left for it"))
            return
        try:
            with open_run_file(part.root, part.source) as log:
                modified = os.fstat(log.fileno()).st_mtime
                self._pack(part.name, self._copy(log, part.limit, now), modified)
        except OSError as error:
            self.left_out.append(LeftOut(part.name, f"cannot be read: {error.strerror or error}"))

    def _copy(self, log: BinaryIO, limit: int | None, now: float) -> Copy:
        if limit is None:
            return cleaned_copy.last_lines(log, _LAST_LINES, self._cleaner)
        deadline = min(now + _ONE_WITHIN_S + limit / _LEAST_BYTES_PER_S, self._deadline)
        return cleaned_copy.whole(log, min(limit, self._room), deadline, self._cleaner)

    def _pack(self, name: str, copy: Copy, modified: float) -> None:
        size = self._write(name, copy.text, modified)
        self._room -= size
        self.files.append(Packed(name, size, copy.removed, copy.left_out))

    def _write(self, name: str, text: str, modified: float) -> int:
        """Returns the bytes of the file."""
        data = text.encode("utf-8", "backslashreplace")
        entry = tarfile.TarInfo(f"{self._top}/{name}")
        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(modified)
        self._tar.addfile(entry, io.BytesIO(data))
        return len(data)

    def _readme(self) -> str:
        """What is in the archive, what is not, and what was removed: names and kinds of secrets, never values."""
        lines = [self._top, "=" * len(self._top), "", *self.state, LOOK, ""]
        lines += ["Files", "-----"]
        for packed in self.files:
            part = f": {packed.left_out}" if packed.left_out else ""
            lines.append(f"{packed.name} ({size_in_words(packed.size)}){part}")
        lines += ["", "Left out", "--------", *(f"{each.name}: {each.why}" for each in self.left_out), ""]
        removed = [f"{kind}: {count} {'line' if count == 1 else 'lines'}" for kind, count in self.removed.items()]
        lines += [
            "Removed secrets",
            "---------------",
            "Each is replaced by [redacted]; plan.json, events.jsonl and verdict.json were written without any.",
            *(removed or ["None found."]),
            "",
            *_places(self.files),
            "What only you can add",
            "---------------------",
            "- what changed since it last worked",
            "- the size of the dataset, and what one step does",
            "- what the same job does with one process, with two ranks, on one node",
        ]
        return neutral_text("\n".join(lines) + "\n")


def _places(files: Sequence[Packed]) -> list[str]:
    """`file:lines kind` of the copies here; neighbouring lines of one kind as one."""
    places = [f"{packed.name}:{span} {kind}" for packed in files for span, kind in _spans(packed.removed.lines)]
    more = ["and more"] if len(places) > _MOST_PLACES else []
    return [*places[:_MOST_PLACES], *more, ""] if places else []


def _spans(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    first = 0
    for index, (line, kind) in enumerate(lines):
        if index + 1 < len(lines) and lines[index + 1][1] == kind and lines[index + 1][0] <= line + 1:
            continue
        begin = lines[first][0]
        yield f"{begin}-{line}" if begin < line else str(line), kind
        first = index + 1
