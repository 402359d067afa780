"""Where the runs of launches from here are: for commands that look at runs, in place of a launch that makes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddp_run.plan.check import Launch
from ddp_run.plan.checks import log_folder
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import DEFAULT_LOG_DIR
from ddp_run.plan.project_files import project_files
from ddp_run.settings.parse import parse
from ddp_run.values import private_files
from ddp_run.values.problem import Refused


def runs_folder(given: str | None, environ: Mapping[str, str]) -> Path:
    """What a command was given; else what PET_LOG_DIR, a preset or a pyproject.toml say; else the default. Where no run
    can be made there now, that of the newest run: there, or where runs go instead.

    A launch from here that would be refused, for an option of another kind as well, counts as one without options.
    """
    if given is not None:
        return Path(given)
    usual = Path(DEFAULT_LOG_DIR)
    try:
        options = parse(["x"], environ, torch_rows=torch_rows(), read_file=_read_file, projects=project_files)
        if options.log_dir is not None:
            return Path(options.log_dir)
        answer = log_folder.CHECK.run(Launch(options, environ, Path.cwd(), lambda _line: None))
    except (Refused, FileNotFoundError):  # of the second kind where the working directory is gone
        return usual
    moved = Path(answer.options.log_dir) if answer.options is not None and answer.options.log_dir else usual
    if private_files.is_planted(usual.absolute()) and moved.is_dir():
        return moved
    return max(usual, moved, key=_newest)


def _newest(folder: Path) -> str:
    """The name of the newest run there, which begins with its date; empty where there is none."""
    try:
        return max((each.name for each in folder.iterdir() if each.name[0].isdigit()), default="")
    except OSError:
        return ""


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
