"""What the words of `ddp-run bundle` mean: runs with their journals and verdicts, or logs of any launcher."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ddp_run.commands.bundle.parts import Asked, Run
from ddp_run.commands.explain.answer import Answer, NotReadable, explain, log_files
from ddp_run.record import file_names, journal
from ddp_run.record.runs_meant import is_run


def asked(paths: tuple[str, ...], limit: int) -> Asked:
    """The runs or the logs there, with their verdict. Raises NotReadable."""
    runs = tuple(_run(Path(path).resolve()) for path in paths if is_run(path))
    logs = () if runs else tuple(_log(file) for path in paths for file in log_files(path))
    answer, why = _answer(paths)
    return Asked(runs, logs, answer, why, limit, dict(os.environ))


def _run(folder: Path) -> Run:
    try:
        events = journal.load(folder / file_names.EVENTS).events
    except OSError as error:
        raise NotReadable(f"{folder} cannot be read: {error.strerror}") from error
    return Run(folder, events, _answer((str(folder),))[0])


def _log(file: str) -> Path:
    path = Path(file).resolve()
    try:
        if stat.S_ISREG(path.stat().st_mode):
            return path
    except OSError as error:
        raise NotReadable(f"{file} cannot be read: {error.strerror}") from error
    raise NotReadable(f"{file} is neither a run's folder nor a log")


def _answer(paths: tuple[str, ...]) -> tuple[Answer | None, str | None]:
    """The verdict, or why there is none: a bundle can be made without."""
    try:
        return explain(paths, rank_from_filename=False), None
    except NotReadable as error:
        return None, str(error)
