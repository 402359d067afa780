"""Space and inodes where the run's folder, temporary files and caches go."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.observe.space import StatvfsProbe
from ddp_run.record.events import MonotonicNs, SpaceCounted
from ddp_run.values.finding import Finding, failed, warned
from ddp_run.values.helper_process import reap
from ddp_run.values.words import size_in_words

_WANTED, _NEEDED = 1 << 30, 16 << 20
_INODES_WANTED, _INODES_NEEDED = 10_000, 100


def _look(around: Surroundings) -> Iterator[Finding]:
    places = {
        "logs": _existing(around.log_dir),
        "temporary files": Path(tempfile.gettempdir()),
        "home": Path(around.environ.get("HOME", "/")),
    }
    counts = _ask([str(path) for path in places.values()])
    shown: set[tuple[int, int]] = set()
    for name, path in places.items():
        found = counts.get(str(path))
        if found is None:
            helps = f"timeout 5 stat -f {path}; mount | grep -E 'nfs|lustre|fuse'"
            yield failed(f"disk for {name}", "no answer", f"{path}: its file system did not answer in 1 s", helps)
            continue
        same = (found.total, found.total_inodes)
        if same not in shown:
            yield judged(name, path, found, writable=os.access(path, os.W_OK))
        shown.add(same)


def _existing(path: Path) -> Path:
    """The folder, or where it would be made."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _ask(paths: list[str]) -> Mapping[str, SpaceCounted]:
    probe = StatvfsProbe.ask(list(dict.fromkeys(paths)))
    found: dict[str, SpaceCounted] = {}
    over = False
    try:
        while not over and not probe.process.late:
            probe.process.wait()
            answers, over = probe.answers(MonotonicNs(time.monotonic_ns()))
            found |= {each.path: each for each in answers}
    finally:
        probe.process.end()
        reap(probe.process.pid)
    return found


def judged(name: str, path: Path, found: SpaceCounted, *, writable: bool) -> Finding:
    """One file system."""
    what, value = f"disk for {name}", f"{size_in_words(found.free)} free of {size_in_words(found.total)}"
    place = str(path)
    if not writable:
        return failed(what, "not writable", place, "--log-dir DIR   # TMPDIR=DIR for temporary files")
    if found.free < _WANTED:
        why = f"{place}: checkpoints and logs need {size_in_words(_WANTED)} at least"
        helps = f"df -h {path}; du -xh --max-depth=2 {path} | sort -h | tail"
        return (failed if found.free < _NEEDED else warned)(what, value, why, helps)
    if found.total_inodes and found.free_inodes < _INODES_WANTED:
        why = f"{place}: {_INODES_WANTED} inodes at least: no file can be made without one, however much space is free"
        few = f"{found.free_inodes} of {found.total_inodes} inodes free"
        return (failed if found.free_inodes < _INODES_NEEDED else warned)(what, few, why, f"df -i {path}")
    return Finding(what, value, against=place)


CHECK = Check(
    "disk_space",
    Group.DISK,
    "Space and inodes for logs, temporary files and the home folder; warns below 1 GiB or 10,000 inodes, fails if"
    " almost nothing is left, it is not writable, or the file system gives no answer.",
    _look,
)
