"""The kernel's log since an attempt began, if it may be read. Never waits.

Source: Documentation/ABI/testing/dev-kmsg. Each read gives one record "PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT" and
lines of properties that begin with a space. SEEK_END is the current end; EAGAIN: no more; EPIPE: records were
overwritten before they were read, and the next read continues after them. Needs CAP_SYSLOG if kernel.dmesg_restrict
is 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self, final

from ddp_run.observe.process_look import in_first_pid_namespace
from ddp_run.record.events import KernelLogged, MonotonicNs

_KMSG = "/dev/kmsg"
_RECORD_BYTES = 8192
_MOST_RECORDS = 50_000
_MOST_LINES = 200
_MOST_CHARACTERS = 400
_WORTH = re.compile(
    r"invoked oom-killer|oom-kill:|oom_reaper|oom\.group|out of memory|killed process|page allocation failure"
    r"|segfault at|\btraps: |general protection|trap invalid opcode|trap divide error"
    r"|NVRM|\bXid\b|amdgpu|\bi915\b|\bxe \w|nvidia"
    r"|\bmce: |machine check|\bEDAC\b|memory failure|hardware error"
    r"|I/O error|read-only|EXT4-fs|XFS \(|BTRFS|No space left"
    r"|\bnfs: |blocked for more than|soft lockup|hard LOCKUP|rcu.{0,80}stall"
    r"|mlx5|infiniband|link is down",
    re.IGNORECASE,
)


@final
@dataclass(slots=True)
class KernelLog:
    """The log, from the position that `open` chose."""

    _fd: int
    """-1 if it can't be read."""

    @classmethod
    def open(cls, *, from_start: bool = False) -> Self:
        """Start at the end of the log, or at its oldest record. A log that cannot be read acts as an empty one."""
        try:
            fd = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return cls(-1)
        try:
            os.lseek(fd, 0, os.SEEK_SET if from_start else os.SEEK_END)
        except OSError:
            os.close(fd)
            return cls(-1)
        return cls(fd)

    @property
    def is_readable(self) -> bool:
        """Whether there is a log here that this user may read."""
        return self._fd >= 0

    def read(self, at: MonotonicNs) -> KernelLogged | None:
        """The lines logged since the last call that may concern a death; None if there are none."""
        lines = [line for line in map(text_of, self._records()) if line is not None and _WORTH.search(line)]
        if not lines:
            return None
        kept = lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES // 2], *lines[-_MOST_LINES // 2 :]]
        return KernelLogged(at, tuple(kept), len(lines) - len(kept), in_first_pid_namespace())

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _records(self) -> Iterator[bytes]:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BrokenPipeError:
                continue
            except OSError:  # BlockingIOError: that was all
                return
            if not record:  # a plain file in place of the device
                return
            yield record


def text_of(record: bytes) -> str | None:
    """One record as dmesg shows it, "[seconds] text", without control characters; None if it is malformed."""
    head, semicolon, text = record.partition(b"\n")[0].partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3 or not fields[2].isdigit():
        return None
    seconds, microseconds = divmod(int(fields[2]), 1_000_000)
    shown = "".join(char if char.isprintable() else " " for char in text.decode("utf-8", "replace"))
    return f"[{seconds:5d}.{microseconds:06d}] {shown[:_MOST_CHARACTERS]}"
