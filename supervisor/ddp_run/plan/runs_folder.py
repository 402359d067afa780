"""Where the runs of launches from here are: for commands that look at runs, in place of a launch that makes one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.launch_plan import DEFAULT_LOG_DIR
from ddp_run.plan.project_files import project_files
from ddp_run.settings.parse import parse
from ddp_run.values import private_files
from ddp_run.values.problem import Refused


def runs_folder(given: str | None, environ: Mapping[str, str]) -> Path:
    """What a command was given; else what PET_LOG_DIR, a preset or a pyproject.toml say; else the default, or where
    runs go if that takes none.

    A launch from here that would be refused, for an option of another kind as well, counts as one without options.
    """
    if given is not None:
        return Path(given)
    try:
        options = parse(["x"], environ, torch_rows=torch_rows(), read_file=_read_file, projects=project_files)
        chosen = options.log_dir
    except Refused:
        chosen = None
    if chosen is not None:
        return Path(chosen)
    usual, other = Path(DEFAULT_LOG_DIR), private_files.fallback(Path(tempfile.gettempdir()))
    return other if not usual.is_dir() and other.is_dir() else usual


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
