"""Where a launch writes: the folder of all runs, where commands look for them too, and the file of `--metrics`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import DEFAULT_LOG_DIR, log_dir
from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.plan.read_options import read_options
from ddp_run.settings.options import Options, Setting, Source
from ddp_run.values import private_files
from ddp_run.values.problem import Problem, Refused

_LEAST_FREE_BYTES = 1 << 20


def runs_folder(given: str | None) -> Path:
    """Where the runs of launches from here are: `given`, PET_LOG_DIR, a preset's, a pyproject.toml's, or the default.

    If no run can be made in the default folder now: that folder, or the one where runs go instead, by the newest run.
    A launch from here that would be refused, for any option, counts as one without options.
    """
    if given is not None:
        return Path(given)
    usual = Path(DEFAULT_LOG_DIR)
    try:
        options = read_options(["x"], os.environ, torch_rows())
        if options.log_dir is not None:
            return Path(options.log_dir)
        moved = log_dir(_check(Launch(options, os.environ, Path.cwd())).options)
    except (Refused, FileNotFoundError):  # the second if the working directory was removed
        return usual
    if private_files.is_planted(usual.absolute()) and moved.is_dir():
        return moved
    return max(usual, moved, key=_newest)


def _newest(folder: Path) -> str:
    """The name of the newest run there, which begins with its date; empty if there is none."""
    try:
        return max((each.name for each in folder.iterdir() if each.name[0].isdigit()), default="")
    except OSError:
        return ""


def _check(launch: Launch) -> Answer:
    options = launch.options
    folder = launch.cwd / log_dir(options)
    problems = _problems(options, folder)
    planted = options.log_dir is None and private_files.is_planted(folder)
    if options.log_dir is not None or not (problems or planted):
        return Answer(options, problems)
    # torchrun runs in a folder that cannot be written to, so ddp-run does too.
    import tempfile

    other = str(private_files.fallback(Path(tempfile.gettempdir())))
    why = f"{folder} belongs to another user" if planted else f"cannot write to {folder.parent}"
    moved = Setting(other, Source.DEFAULT, "default, as the working directory is not usable")
    options = replace(options, settings={**options.settings, "log_dir": moved})
    return Answer(options, _problems(options, Path(other)), warnings=(f"logs go to {other}: {why}",))


def _problems(options: Options, folder: Path) -> tuple[Problem, ...]:
    found = _unwritable(folder)
    if found is None:
        return ()
    helps = ("--log-dir=FOLDER, a writable folder on a disk with free space",)
    code, title, label = found
    problem = options.problem("log_dir", title, label, code=code, helps=helps)
    is_given = "log_dir" in options.given
    return (problem if is_given else replace(problem, origin=str(folder)),)


def _unwritable(folder: Path) -> tuple[str, str, str] | None:
    """Why logs cannot go to a folder: the problem's code, title and label."""
    existing = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), Path("/"))
    if not existing.is_dir():
        return "DDP904", f"{existing} is not a folder, so logs cannot go to {folder}", "not a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return "DDP904", f"no permission to write logs to {folder}", f"{existing} is not writable"
    try:
        disk = os.statvfs(existing)
    except OSError:
        return None
    free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
    if disk.f_blocks and free < _LEAST_FREE_BYTES:  # file systems without a size report 0
        return "DDP905", f"the disk of {existing} is full: {free // 1024} KiB free", "no room for logs"
    if disk.f_files and not disk.f_ffree:
        return "DDP905", f"the disk of {existing} has no free inodes", "no room for logs"
    return None


def _check_metrics(launch: Launch) -> Answer:
    """Whether the file can be written, and has a name that node_exporter's textfile collector reads."""
    options = launch.options
    if not options.metrics:
        return Answer(options)
    path = launch.cwd / options.metrics
    if found := _metrics_unwritable(path):
        code, title, label = found
        helps = ("--metrics=FILE in a folder that exists and that you can write to",)
        return Answer(options, (options.problem("metrics", title, label, code=code, helps=helps),))
    ignored = f"node_exporter's textfile collector ignores {path.name}: it reads files that end in .prom"
    return Answer(options, warnings=() if path.suffix == ".prom" else (ignored,))


def _metrics_unwritable(path: Path) -> tuple[str, str, str] | None:
    """Why metrics cannot go there: the problem's code, title and label. The file itself is replaced by another."""
    folder = path.parent
    if path.is_dir():
        return "DDP101", f"{path} is a folder", "expected a file"
    if not folder.is_dir():
        return "DDP101", f"there is no folder {folder} for metrics", "no such folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "DDP904", f"no permission to write metrics to {folder}", "not writable"
    return None


LOGS = Check("the log folder", _check, needed=True)
METRICS = Check("--metrics", _check_metrics, needed=True)
