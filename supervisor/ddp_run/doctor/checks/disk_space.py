"""Space and inodes where the run's folder, temporary files and caches go."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.observe.space import StatvfsProbe
from ddp_run.record.events import MonotonicNs, SpaceCounted
from ddp_run.values import private_files
from ddp_run.values.finding import Finding, failed, warned
from ddp_run.values.helper_process import reap
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import size_in_words

_WANTED, _NEEDED = 1 << 30, 16 << 20
_TEMPORARY = "temporary files"
_OTHER_TMPDIR = "export TMPDIR=DIR"
_INODES_WANTED, _INODES_NEEDED = 10_000, 100


@frozen
class Place:
    """A folder that jobs write to. `instead`: what happens where it takes nothing; empty: jobs cannot work then."""

    name: str
    path: Path
    instead: str
    helps: str


def _look(around: Surroundings) -> Iterator[Finding]:
    try:
        Path.cwd()
    except FileNotFoundError:
        yield failed("working directory", "gone", "it was removed, or made anew", 'cd "$PWD"')
        return
    temporary = _temporary()
    places = list(_places(around, temporary))
    probes = [StatvfsProbe.ask([str(place.path)]) for place in places]
    if temporary is None:
        yield failed(f"disk for {_TEMPORARY}", "nowhere", "TMPDIR, /tmp and /var/tmp take no file", _OTHER_TMPDIR)
    shown: set[tuple[int, int]] = set()
    for place, probe in zip(places, probes, strict=True):
        found, has_answered = answer(probe)
        if not has_answered:
            yield no_answer(place)
        elif (why := _why_unusable(place, temporary)) or found is None:
            yield unusable(place, why or "cannot be asked")
        elif (found.total, found.total_inodes) not in shown:
            yield judged(place, found)
            shown.add((found.total, found.total_inodes))


def _temporary() -> str | None:
    """What Python takes: a folder that is missing or full is passed over. Null where none is left."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None


def _places(around: Surroundings, temporary: str | None) -> Iterator[Place]:
    is_chosen = around.options.log_dir is not None or temporary is None
    other = "" if is_chosen else f"a launch writes to {private_files.fallback(Path(str(temporary)))}"
    yield Place("logs", _existing(around.log_dir), other, "--log-dir DIR")
    if (folder := around.environ.get("TMPDIR") or temporary) is not None:
        other = f"Python takes {temporary}" if temporary else ""
        yield Place(_TEMPORARY, Path(folder), other, _OTHER_TMPDIR)
    if home := around.environ.get("HOME"):
        caches = "torch, triton and Hugging Face keep their caches there"
        yield Place("home", Path(home), caches, "export HOME=DIR, or XDG_CACHE_HOME, TRITON_CACHE_DIR and HF_HOME")


def _existing(path: Path) -> Path:
    """The folder, or where it would be made."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def answer(probe: StatvfsProbe) -> tuple[SpaceCounted | None, bool]:
    """What was counted, and whether there was an answer at all."""
    try:
        while True:
            found, over = probe.answers(MonotonicNs(time.monotonic_ns()))
            if found or over or probe.process.late:  # of several, one may have used up the others' time
                return (found[0] if found else None), over or bool(found)
            probe.process.wait()
    finally:
        probe.process.end()
        reap(probe.process.pid)


def _why_unusable(place: Place, temporary: str | None) -> str:
    if not place.path.is_dir():
        return "no such folder"
    if not os.access(place.path, os.W_OK | os.X_OK):
        return "not writable"
    here = place.path.resolve()
    is_asked_first = place.name == _TEMPORARY and here == Path(os.environ.get("TMPDIR") or "/").resolve()
    return "takes no file" if is_asked_first and temporary is not None and here != Path(temporary).resolve() else ""


def no_answer(place: Place) -> Finding:
    """Its server may be gone."""
    helps = f"timeout 5 stat -f {place.path}; mount | grep -E 'nfs|lustre|fuse'"
    return failed(f"disk for {place.name}", "no answer", f"{place.path}: its file system did not answer in 1 s", helps)


def unusable(place: Place, why: str) -> Finding:
    """It is missing, or nothing can be written there."""
    if not place.instead:
        return failed(f"disk for {place.name}", why, str(place.path), place.helps)
    return warned(f"disk for {place.name}", why, f"{place.path}; {place.instead}", place.helps)


def judged(place: Place, found: SpaceCounted) -> Finding:
    """The room on its file system."""
    what, path = f"disk for {place.name}", place.path
    if not found.total:
        return Finding(what, "size not told", against=str(path))
    value = f"{size_in_words(found.free)} free of {size_in_words(found.total)}"
    if found.free < _WANTED:
        why = f"{path}: checkpoints and logs need {size_in_words(_WANTED)} at least"
        helps = f"df -h {path}; du -xh --max-depth=2 {path} | sort -h | tail"
        return (failed if found.free < _NEEDED else warned)(what, value, why, helps)
    if found.total_inodes and found.free_inodes < _INODES_WANTED:
        why = f"{path}: {_INODES_WANTED} inodes at least: no file can be made without one, however much space is free"
        few = f"{found.free_inodes} of {found.total_inodes} inodes free"
        return (failed if found.free_inodes < _INODES_NEEDED else warned)(what, few, why, f"df -i {path}")
    return Finding(what, value, against=str(path))


CHECK = Check(
    "disk_space",
    Group.DISK,
    "Space and inodes for logs, temporary files and the home folder; warns below 1 GiB or 10,000 inodes, and of a"
    " folder that takes nothing if jobs can do without; fails if almost nothing is left, `--log-dir` is not writable,"
    " or the file system gives no answer.",
    _look,
)
