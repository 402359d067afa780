"""Whether `--metrics FILE` can be written, and has a name that node_exporter's textfile collector reads."""

from __future__ import annotations

import os
from pathlib import Path

from ddp_run.plan.preflight import Answer, Check, Launch


def _check(launch: Launch) -> Answer:
    options = launch.options
    if not options.metrics:
        return Answer(options)
    path = launch.cwd / options.metrics
    if found := _unwritable(path):
        code, title, label = found
        helps = ("--metrics=FILE in a folder that exists and that you can write to",)
        return Answer(options, (options.problem("metrics", title, label, code=code, helps=helps),))
    ignored = f"node_exporter's textfile collector ignores {path.name}: it reads files that end in .prom"
    return Answer(options, warnings=() if path.suffix == ".prom" else (ignored,))


def _unwritable(path: Path) -> tuple[str, str, str] | None:
    """Why metrics cannot go there: the problem's code, title and label. The file itself is replaced by another."""
    folder = path.parent
    if path.is_dir():
        return "DDP101", f"{path} is a folder", "expected a file"
    if not folder.is_dir():
        return "DDP101", f"there is no folder {folder} for metrics", "no such folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "DDP904", f"no permission to write metrics to {folder}", "not writable"
    return None


CHECK = Check("--metrics", _check, needed=True)
