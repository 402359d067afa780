"""Where the kernel put a core dump: /proc/sys/kernel/core_pattern, and the file if there is one.

Source: core(5). A pattern that begins with "|" names a program that gets the dump, "@" a socket (Linux 6.16).
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from pathlib import Path

from ddp_run.record.events import CoreDumped, MonotonicNs, RankStarted
from ddp_run.values import kernel_text

_PATTERN = Path("/proc/sys/kernel/core_pattern")
_USES_PID = Path("/proc/sys/kernel/core_uses_pid")
_FRESH_S = 60.0
"""A file last written longer ago is another process's dump."""
_SPECIFIER = re.compile(r"%(.?)")


def find(at: MonotonicNs, start: RankStarted) -> CoreDumped:
    """What is known about the core dump of a rank that has just died."""
    try:
        pattern = os.fsdecode(_PATTERN.read_bytes()).strip()
    except OSError:
        return CoreDumped(at, start.rank, start.restart, None, None)
    path: Path | None = None
    if not pattern.startswith(("|", "@")):
        try:
            path = _file(pattern, start.pid, Path.cwd(), with_pid=kernel_text.read(_USES_PID).strip() == "1")
        except OSError:  # our working directory is gone
            pass
    return CoreDumped(at, start.rank, start.restart, pattern, None if path is None else str(path))


def _file(pattern: str, pid: int, cwd: Path, *, with_pid: bool) -> Path | None:
    """The newest fresh file that matches the pattern. A name with the pid can't be another process's."""
    name = _SPECIFIER.sub(lambda found: _known(found[1], pid), pattern or "core")
    if with_pid and not re.search(r"%[pP]", pattern):
        name += f".{pid}"
    wanted = cwd / name
    if "*" in str(wanted.parent):
        return None
    try:
        with os.scandir(wanted.parent) as entries:
            named = [entry for entry in entries if fnmatch.fnmatchcase(entry.name, wanted.name)]
        files = [(entry.stat().st_mtime, Path(entry.path)) for entry in named if entry.is_file(follow_symlinks=False)]
    except OSError:
        return None
    written, newest = max(files, default=(0.0, None))
    return newest if time.time() - written < _FRESH_S else None


def _known(specifier: str, pid: int) -> str:
    # %P is the pid in the first namespace, which may not be ours: accept any number
    return {"%": "%", "": "", "p": str(pid)}.get(specifier, "*")
