"""Free space of file systems. A separate process asks, because statvfs on a dead NFS server blocks forever."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ddp_run.record.events import MonotonicNs, SpaceCounted
from ddp_run.values.helper_process import HelperProcess, fork

WAIT_S = 1.0
"""How long to wait for all answers together."""


def ask(paths: Sequence[str]) -> HelperProcess:
    """Ask for the file systems of these paths, in this order. Raises OSError."""
    return fork(lambda fd: _answer(paths, fd), WAIT_S)


def answers(process: HelperProcess, at: MonotonicNs) -> tuple[list[SpaceCounted], bool]:
    """The answers since the last call, and whether there will be no more."""
    lines, over = process.lines()
    return [SpaceCounted(at, *json.loads(line)) for line in lines], over


def _answer(paths: Sequence[str], fd: int) -> None:
    """Runs after a fork: only makes system calls, and uses only what is in memory already."""
    for path in paths:
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        counts = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail, found.f_files)
        os.write(fd, json.dumps([path, *counts]).encode() + b"\n")
