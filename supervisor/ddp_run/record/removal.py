"""Which runs may be removed, and their removal: a run's own folder, nothing that it links to, and the link `latest`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ddp_run.record import file_names
from ddp_run.record.recorded_runs import RecordedRun, recorded_run

_DAY_NS = 86_400 * 10**9


def may_run(run: RecordedRun, now_ns: int) -> bool:
    """Whether it may still be running. If nobody can tell: whether it has no end, and wrote within the last day.

    While ranks run, the journal gets a line a minute.
    """
    return bool(run.alive) or (run.state == "unknown" and now_ns - run.written_ns < _DAY_NS)


def removable(
    jobs: Sequence[Sequence[RecordedRun]], *, keep: int | None, older_ns: int | None, only_succeeded: bool, now_ns: int
) -> list[list[RecordedRun]]:
    """The runs of all nodes of those jobs that are older than the newest `keep` and ended more than `older_ns` ago.

    `jobs`: the newest last. Leaves out jobs with a node that may still be running, and whatever is not certainly a
    run's folder under its own name.
    """
    beyond = jobs if keep is None else jobs[: max(0, len(jobs) - keep)]
    old = [
        [run for run in nodes if run.is_ours]
        for nodes in beyond
        if not any(may_run(run, now_ns) for run in nodes)
        and (older_ns is None or now_ns - max(run.ended_ns or run.written_ns for run in nodes) > older_ns)
        and (not only_succeeded or all(run.outcome == "succeeded" for run in nodes))
    ]
    return [nodes for nodes in old if nodes]


def remove(log_dir: Path, run: RecordedRun) -> None:
    """Remove a run's folder, its journal last: what an interrupted removal leaves can be removed later.

    Follows no link. Raises OSError, also if a link has taken the folder's place.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    parent = os.open(log_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = os.open(run.folder.name, flags, dir_fd=parent)
        try:
            with os.scandir(folder) as found:
                entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
            for name, is_folder in sorted(entries, key=lambda entry: entry[0] == file_names.EVENTS):
                if is_folder:
                    shutil.rmtree(name, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(run.folder.name, dir_fd=parent)
    finally:
        os.close(parent)


def still_removable(run: RecordedRun, now_ns: int) -> bool:
    """Whether it may still be removed, right before the removal: a question to the user may have taken a while."""
    again = recorded_run(run.folder)
    return again is not None and again.started == run.started and not may_run(again, now_ns)


def correct_latest(log_dir: Path, left: Sequence[RecordedRun]) -> None:
    """Point the link `latest` at the newest run that is left if the one it names is gone. Raises OSError."""
    link = log_dir / file_names.LATEST
    if not link.is_symlink() or link.exists():
        return
    if not left:
        link.unlink()
        return
    new = log_dir / f".{file_names.LATEST}-{left[-1].folder.name}"
    new.symlink_to(left[-1].folder.name)
    new.replace(link)
