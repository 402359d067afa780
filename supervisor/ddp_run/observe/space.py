"""Free space of file systems. A separate process asks, because statvfs on a dead NFS server blocks forever."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

from ddp_run.record.events import MonotonicNs, SpaceCounted
from ddp_run.values.helper_process import HelperProcess, fork

WAIT_S = 1.0
"""How long to wait for all answers together."""


@final
@dataclass(slots=True)
class StatvfsProbe:
    """The process that asks."""

    process: HelperProcess
    _told: int = 0

    @classmethod
    def ask(cls, paths: Sequence[str]) -> Self:
        """Ask for the file systems of these paths, in this order. Raises OSError."""
        return cls(fork(lambda fd: _answer(paths, fd), WAIT_S))

    def answers(self, at: MonotonicNs) -> tuple[list[SpaceCounted], bool]:
        """The answers since the last call, and whether there will be no more."""
        held, over = self.process.read()
        lines = held.split(b"\n")[:-1]
        fresh, self._told = lines[self._told :], len(lines)
        return [SpaceCounted(at, *json.loads(line)) for line in fresh], over


def _answer(paths: Sequence[str], fd: int) -> None:
    """Runs after a fork: only makes system calls, and uses only what is in memory already."""
    for path in paths:
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        counts = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail, found.f_files)
        os.write(fd, json.dumps([path, *counts]).encode() + b"\n")
