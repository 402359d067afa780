"""The one run that a word of a command means."""

from __future__ import annotations

from pathlib import Path

from ddp_run.record import file_names
from ddp_run.record.recorded_runs import recorded_runs
from ddp_run.record.runs_meant import is_run


class NoRun(Exception):
    """There is none; the message says where it was looked for."""


def run_named(word: str | None, log_dir: Path) -> Path:
    """The absolute folder of a run: a path of one, or of a folder of runs (the newest), or a name in `log_dir`.

    Without a word, the newest in `log_dir`. Raises NoRun.
    """
    if word is None:
        return _newest(log_dir)
    for path in (Path(word), log_dir / word):
        if is_run(str(path)):
            return path.resolve()
    if Path(word).is_dir():
        return _newest(Path(word))
    raise NoRun(f"{word} is neither a run's folder nor the name of one in {log_dir}")


def _newest(log_dir: Path) -> Path:
    latest = log_dir / file_names.LATEST
    if is_run(str(latest)):
        return latest.resolve()
    try:
        runs = recorded_runs(log_dir)
    except OSError as error:
        why = "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
        raise NoRun(f"no runs in {log_dir}{why}") from error
    if not runs:
        raise NoRun(f"no runs in {log_dir}")
    return runs[-1].folder
