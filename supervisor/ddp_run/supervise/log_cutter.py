"""Keeps the ranks' logs within `--log-size-cap`. Runs beside a launch: `python -P log_cutter.py FOLDER BYTES`.

Ranks write into their files themselves, each at its own offset, so nobody can shorten a file meanwhile. Its middle is
given back to the file system (fallocate(2), FALLOC_FL_PUNCH_HOLE) and reads as zeros. What stays: a quarter of the
cap from its beginning, a line that says how much is missing, and half of the cap or more from its end. When the run is
over, a file without the zeros takes its place, with as many lines.

ddp-run holds the other end of its standard input. `s` on it: the ranks of this attempt have ended. It looks at their
logs once more, says `settled`, and leaves them alone from then on. The end: the run is over. For each log that it cuts,
it says `cut RANK RESTART STREAM BYTES`, the first time and before `settled`. Any other line is for people.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))
from ddp_run.record.rank_logs import RankLog, attempts, rank_logs
from ddp_run.values.lines import neutral
from ddp_run.values.signals import STOP_SIGNALS
from ddp_run.values.words import size_in_words

_LOOK_S = 1.0
_LINE_BYTES = 64 << 10
"""How far to look for the beginning of a line."""
_NOTICE_CHARS = 80
_BLOCK = 4096
_PUNCH_HOLE = 0x02 | 0x01
"""linux/falloc.h: FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE."""


@final
@dataclass
class CutLog:
    """A log, and what it lacks: the bytes from `place`, where it says so, to the newline at `end`."""

    log: RankLog
    place: int = 0
    end: int = 0
    _inode: int = 0

    def keep_within(self, cap: int) -> bool:
        """Drop from the middle what is too much. Returns whether the log has lost anything for the first time.

        Raises OSError.
        """
        status = self.log.path.lstat()
        if status.st_size < self.end or status.st_ino != self._inode:  # truncated, or another file
            self.place = self.end = 0
            self._inode = status.st_ino
        if status.st_size - (self.end - self.place) <= cap:
            return False
        first = not self.end
        with self.log.open() as file:  # only a regular file, through no link
            fd = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._cut(fd, cap, status)
        finally:
            os.close(fd)
        return first

    def _cut(self, fd: int, cap: int, status: os.stat_result) -> None:
        place = self.place or _line_start(fd, cap // 4)
        end = _line_start(fd, status.st_size - cap // 2) - 1
        # Whole blocks are a hole, which readers can skip; a part of one would be zeros in a block of data.
        block = max(_BLOCK, status.st_blksize)
        hole, hole_end = -(-(place + _NOTICE_CHARS) // block) * block, end // block * block
        _punch(fd, hole, hole_end)  # first: where that can't be done, nothing changes
        notice = f"[ddp-run dropped {size_in_words(end - place)} here: --log-size-cap]"
        os.pwrite(fd, f"\n{notice:{hole - place - 2}}\n".encode(), place)
        os.pwrite(fd, b" " * (end - hole_end) + b"\n", hole_end)  # a line: what follows is whole
        self.place, self.end = place, end

    def close_up(self) -> None:
        """Leave out the zeros, if nobody writes to it any longer. Raises OSError."""
        path, place = self.log.path, self.log.path.with_name(f".{self.log.path.name}")
        with self.log.open() as old:
            status = os.fstat(old.fileno())
            new = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, status.st_mode & 0o777)
            try:
                _copy(old.fileno(), new, 0, self.place + _NOTICE_CHARS - 1)
                os.write(new, b"\n")
                _copy(old.fileno(), new, self.end, status.st_size)
                os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
                now = path.lstat()
                if (now.st_ino, now.st_size) == (self._inode, status.st_size):
                    place.replace(path)
            finally:
                os.close(new)
                with suppress(FileNotFoundError):
                    place.unlink()

    @property
    def said(self) -> str:
        """The line about it for ddp-run."""
        return f"cut {self.log.rank} {self.log.restart} {self.log.stream} {self.end - self.place}"


def main(folder: Path, cap: int) -> None:
    """Look at the logs once a second, until the run is over."""
    for signum in STOP_SIGNALS:  # a scheduler sends these to all processes
        signal.signal(signum, signal.SIG_IGN)
    known: dict[Path, CutLog] = {}
    settled = -1
    word = None
    while word != b"":
        word = os.read(0, 1) if select.select([0], [], [], _LOOK_S)[0] else None
        now = [number for number in attempts(folder) if number > settled]
        logs = [known.setdefault(log.path, CutLog(log)) for number in now for log in rank_logs(folder, number)]
        if not _keep_within(cap, (each for each in logs if not each.log.links)):  # links lead to the user's own files
            return
        if word == b"s":
            _say(*(each.said for each in logs if each.end), "settled")
            settled = max([settled, *now])
    for each in known.values():
        if each.end and each.log.attempt <= settled:  # else its rank may still write: ddp-run was killed
            with suppress(OSError):
                each.close_up()


def _keep_within(cap: int, logs: Iterable[CutLog]) -> bool:
    """Returns whether it makes sense to go on."""
    for each in logs:
        try:
            if each.keep_within(cap):
                _say(each.said)
        except FileNotFoundError:
            continue
        except OSError as error:  # NFS before 4.2, for example
            place = neutral(str(each.log.path))
            _say(f"logs are not held within --log-size-cap: cannot drop a part of {place}: {error.strerror}")
            return False
    return True


def _say(*lines: str) -> None:
    os.write(1, "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def _line_start(fd: int, offset: int) -> int:
    """The first beginning of a line from there on; the offset itself if lines are very long."""
    return offset + os.pread(fd, _LINE_BYTES, offset).find(b"\n") + 1


def _copy(source: int, to: int, start: int, stop: int) -> None:
    while start < stop and (sent := os.sendfile(to, source, start, stop - start)):
        start += sent


def _punch(fd: int, start: int, end: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(end - start)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
