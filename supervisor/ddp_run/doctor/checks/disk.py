"""Space and inodes where the run's folder, temporary files and caches go."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Group, Surroundings, check
from ddp_run.doctor.findings import Finding, failed, warned
from ddp_run.observe.file_systems import ask_for_space
from ddp_run.record.events import MonotonicNs, SpaceCounted
from ddp_run.values import private_files
from ddp_run.values.helper_process import HelperProcess, answer_of
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import size_in_words

_WANTED, _NEEDED = 1 << 30, 16 << 20
_INODES_WANTED, _INODES_NEEDED = 10_000, 100
_TEMPORARY = "temporary files"
_OTHER_TMPDIR = "export TMPDIR=DIR"


@frozen
class Place:
    """A folder that jobs write to. `instead`: what happens if it's unusable; if empty, jobs cannot work then."""

    name: str
    path: Path
    instead: str
    helps: str


@check(Group.DISK, "disk space")
def disk_space(around: Surroundings) -> Iterator[Finding]:
    """Space and inodes for logs, temporary files and the home folder; warns below 1 GiB or 10,000 inodes, and of an
    unusable folder that jobs can do without; fails if almost nothing is left, `--log-dir` is not writable, or the file
    system doesn't answer."""
    try:
        Path.cwd()
    except FileNotFoundError:
        yield failed("working directory", "gone", "it was removed or recreated", 'cd "$PWD"')
        return
    try:
        temporary = tempfile.gettempdir()  # skips a folder that is missing or full
    except FileNotFoundError:
        temporary = None
    places = list(_places(around, temporary))
    probes = [ask_for_space([str(place.path)]) for place in places]
    if temporary is None:
        against = "TMPDIR, /tmp and /var/tmp are all unusable"
        yield failed(f"disk for {_TEMPORARY}", "nowhere", against, _OTHER_TMPDIR)
    shown: set[tuple[int, int]] = set()
    for place, probe in zip(places, probes, strict=True):
        found, has_answered = answer(probe)
        if not has_answered:
            helps = f"timeout 5 stat -f {place.path}; mount | grep -E 'nfs|lustre|fuse'"
            against = f"{place.path}: its file system didn't answer in 1 s"
            yield failed(f"disk for {place.name}", "no answer", against, helps)
        elif (why := _why_unusable(place, temporary)) or found is None:
            yield unusable(place, why or "statvfs failed")
        elif (found.total, found.total_inodes) not in shown:
            yield room(place, found)
            shown.add((found.total, found.total_inodes))


def _places(around: Surroundings, temporary: str | None) -> Iterator[Place]:
    is_chosen = around.options.log_dir is not None or temporary is None
    other = "" if is_chosen else f"a launch writes to {private_files.fallback(Path(str(temporary)))}"
    path = around.log_dir.absolute()
    existing = next(each for each in (path, *path.parents) if each.exists())
    yield Place("logs", existing, other, "--log-dir DIR")
    if (folder := around.environ.get("TMPDIR") or temporary) is not None:
        other = f"Python uses {temporary}" if temporary else ""
        yield Place(_TEMPORARY, Path(folder), other, _OTHER_TMPDIR)
    if home := around.environ.get("HOME"):
        caches = "torch, triton and Hugging Face keep their caches there"
        yield Place("home", Path(home), caches, "export HOME=DIR, or XDG_CACHE_HOME, TRITON_CACHE_DIR and HF_HOME")


def answer(probe: HelperProcess) -> tuple[SpaceCounted | None, bool]:
    """Return what was counted, and whether the file system answered at all."""
    said = answer_of(probe)
    counted = json.loads(said.splitlines()[0]) if said else None
    return (SpaceCounted(MonotonicNs(time.monotonic_ns()), *counted) if counted else None), said is not None


def _why_unusable(place: Place, temporary: str | None) -> str:
    if not place.path.is_dir():
        return "no such folder"
    if not os.access(place.path, os.W_OK | os.X_OK):
        return "not writable"
    here = place.path.resolve()
    is_asked_first = place.name == _TEMPORARY and here == Path(os.environ.get("TMPDIR") or "/").resolve()
    is_skipped = is_asked_first and temporary is not None and here != Path(temporary).resolve()
    return "files cannot be created there" if is_skipped else ""


def unusable(place: Place, why: str) -> Finding:
    """Report a folder that is missing, or that nothing can be written to."""
    if not place.instead:
        return failed(f"disk for {place.name}", why, str(place.path), place.helps)
    return warned(f"disk for {place.name}", why, f"{place.path}; {place.instead}", place.helps)


def room(place: Place, found: SpaceCounted) -> Finding:
    """Judge the space and inodes left on a folder's file system."""
    what, path = f"disk for {place.name}", place.path
    if not found.total:
        return Finding(what, "size unknown", against=str(path))
    value = f"{size_in_words(found.free)} free of {size_in_words(found.total)}"
    if found.free < _WANTED:
        why = f"{path}: checkpoints and logs need at least {size_in_words(_WANTED)}"
        helps = f"df -h {path}; du -xh --max-depth=2 {path} | sort -h | tail"
        return (failed if found.free < _NEEDED else warned)(what, value, why, helps)
    if found.total_inodes and found.free_inodes < _INODES_WANTED:
        why = f"{path}: at least {_INODES_WANTED} inodes are needed: each file needs one, however much space is free"
        few = f"{found.free_inodes} of {found.total_inodes} inodes free"
        return (failed if found.free_inodes < _INODES_NEEDED else warned)(what, few, why, f"df -i {path}")
    return Finding(what, value, against=str(path))
