"""Whether the folder of all runs can be written to, and has room."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddp_run.plan.check import Answer, Check, Launch
from ddp_run.plan.launch_plan import log_dir
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.values import private_files
from ddp_run.values.problem import Problem

_LEAST_FREE_BYTES = 1 << 20


def _check(launch: Launch) -> Answer:
    options = launch.options
    folder = launch.cwd / log_dir(options)
    problem = _folder_problem(options, folder)
    planted = options.log_dir is None and private_files.is_planted(folder)
    if options.log_dir is not None or (problem is None and not planted):
        return Answer(problems=(problem,) if problem is not None else ())
    # torchrun runs in a folder that cannot be written to, so ddp-run does too.
    import tempfile

    other = str(private_files.fallback(Path(tempfile.gettempdir())))
    why = f"{folder} belongs to another user" if planted else f"cannot write to {folder.parent}"
    moved = Setting(other, Source.DEFAULT, "default, as the working directory is not usable")
    options = replace(options, settings={**options.settings, "log_dir": moved})
    problem = _folder_problem(options, Path(other))
    problems = (problem,) if problem is not None else ()
    return Answer(problems=problems, warnings=(f"logs go to {other}: {why}",), options=options)


def _folder_problem(options: Options, folder: Path) -> Problem | None:
    existing = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), Path("/"))
    setting = options.settings["log_dir"]
    place = None if setting.word is not None or setting.source is Source.DEFAULT else setting.origin

    def problem(code: str, title: str, label: str) -> Problem:
        helps = ("--log-dir=FOLDER, a writable folder on a disk with free space",)
        return Problem(code, title, setting.word, label, place or str(folder), helps=helps)

    if not existing.is_dir():
        return problem("DDP904", f"{existing} is not a folder, so logs cannot go to {folder}", "not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        title = f"no permission to write logs to {folder}"
        return problem("DDP904", title, f"{existing} is not writable")
    return _no_room(existing, problem)


def _no_room(folder: Path, problem: Callable[[str, str, str], Problem]) -> Problem | None:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
    if disk.f_blocks and free < _LEAST_FREE_BYTES:  # file systems without a size say 0
        return problem("DDP905", f"the disk of {folder} is full: {free // 1024} KiB free", "no room for logs")
    if disk.f_files and not disk.f_ffree:
        return problem("DDP905", f"the disk of {folder} has no free inodes", "no room for logs")
    return None


CHECK = Check("the log folder", _check, needed=True)
