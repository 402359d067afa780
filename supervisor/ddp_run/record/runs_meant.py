"""Which runs a command's arguments mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_run.record import file_names
from ddp_run.record.file_names import attempt_folder
from ddp_run.record.rank_logs import attempts
from ddp_run.record.recorded_runs import NAME, RecordedRun, by_job, recorded_run, recorded_runs
from ddp_run.values.problem import Problem, Refused


@dataclass(frozen=True, slots=True)
class Meant:
    """Paths to explain, and a note on the choice."""

    paths: tuple[str, ...]
    note: str | None = None


def runs_meant(paths: Sequence[str], log_dir: Callable[[], Path], *, failed_first: bool = False) -> Meant:
    """The paths. A run's folder replaces a file in it; the newest run, with its other nodes, replaces a folder of runs.

    A word that is not a path may be the name of a run in `log_dir`. `failed_first`: prefer the newest that failed.
    """
    found = tuple(_folder_of(path, log_dir) for path in paths)
    if len(found) != 1 or not Path(found[0]).is_dir() or is_run(found[0]):
        return Meant(found)
    runs = _runs_in(Path(found[0]))
    if not runs:
        return Meant(found)
    all_jobs = by_job(runs)
    failed = [nodes for nodes in all_jobs if failed_first and any(run.went_wrong for run in nodes)]
    nodes = (failed or all_jobs)[-1]
    names = " and ".join(run.folder.name for run in nodes)
    which = " that did not succeed" if failed else "; none of them failed" if failed_first else ""
    note = f"{names}: the newest of {len(runs)} runs in {found[0]}{which}"
    return Meant(tuple(str(run.folder) for run in nodes), None if len(all_jobs) == 1 else note)


def is_run(path: str) -> bool:
    """Whether the path is the folder of a run."""
    return (Path(path) / file_names.EVENTS).is_file()


def last_attempt(run: str) -> str:
    """The folder of a run's last attempt; the run's own if there is none."""
    made = attempts(Path(run))
    return str(Path(run) / attempt_folder(made[-1])) if made else run


def _folder_of(path: str, log_dir: Callable[[], Path]) -> str:
    given = Path(path)
    if NAME.fullmatch(path) and not given.exists():
        return str(log_dir() / path)
    return str(given.parent) if given.name in file_names.OF_A_RUN and is_run(str(given.parent)) else path


def _runs_in(folder: Path) -> list[RecordedRun]:
    try:
        return recorded_runs(folder)
    except OSError:
        return []


def run_named(word: str | None, log_dir: Path, hint: str = "") -> Path:
    """The absolute folder of a run, given by its path, by the path of a folder of runs (the newest), or by name.

    Names are those in `log_dir`; without a word, its newest run. Raises Refused, whose text ends with the hint.
    """
    if word is None:
        return _newest(log_dir, hint)
    for path in (Path(word), log_dir / word):
        if is_run(str(path)):
            return path.resolve()
    if Path(word).is_dir():
        return _newest(Path(word), hint)
    raise _no_run(f"{word} is neither a run's folder nor the name of one in {log_dir}{hint}")


def recorded(word: str | None, log_dir: Path) -> RecordedRun:
    """The run that is named so. Raises Refused."""
    folder = run_named(word, log_dir)
    found = recorded_run(folder)
    if found is None:
        raise _no_run(f"{folder} is not a run's folder")
    return found


def running(log_dir: Path) -> list[list[RecordedRun]]:
    """The jobs that run on this host, the newest last."""
    return by_job([run for run in _runs_in(log_dir) if run.alive])


def run_to_look_at(word: str | None, log_dir: Path) -> RecordedRun:
    """The named run; without a word, the newest that runs on this host, else the newest. Raises Refused."""
    jobs = running(log_dir) if word is None else []
    return jobs[-1][0] if jobs else recorded(word, log_dir)


def _newest(log_dir: Path, hint: str) -> Path:
    latest = log_dir / file_names.LATEST
    if is_run(str(latest)):
        return latest.resolve()
    try:
        runs, why = recorded_runs(log_dir), ""
    except OSError as error:
        runs, why = [], "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
    if not runs:
        raise _no_run(f"no runs in {log_dir}{why}{hint}")
    return runs[-1].folder


def _no_run(said: str) -> Refused:
    return Refused((Problem("", said),))
