"""Which runs the words of a command mean: a run's folder, a file in it, the runs of all nodes, the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_run.record import file_names, journal
from ddp_run.record.events import RunStarted

_ONE_JOB_NS = 900 * 10**9
"""The nodes of one job start within a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class Meant:
    """Paths to explain, and what to say of the choice."""

    paths: tuple[str, ...]
    note: str | None = None


def runs_meant(paths: Sequence[str]) -> Meant:
    """The paths with a run's folder for a file in it, and for a folder of runs the newest, with its other nodes."""
    found = tuple(_folder_of(path) for path in paths)
    if len(found) != 1 or not Path(found[0]).is_dir() or is_run(found[0]):
        return Meant(found)
    runs = _runs_in(Path(found[0]))
    if not runs:
        return Meant(found)
    newest = runs[-1]
    nodes = [newest] if newest.started is None else _of_one_job(newest.started, runs)
    names = " and ".join(run.folder.name for run in nodes)
    note = None if len(runs) == len(nodes) else f"{names}: the newest of {len(runs)} runs in {found[0]}"
    return Meant(tuple(str(run.folder) for run in nodes), note)


def is_run(path: str) -> bool:
    """Whether the path is the folder of a run."""
    return (Path(path) / file_names.EVENTS).is_file()


def last_attempt(run: str) -> str:
    """The folder of a run's last attempt; the run's own where it has none."""
    attempts = [each for each in Path(run).glob("attempt_*") if each.name.removeprefix("attempt_").isdigit()]
    return str(max(attempts, key=lambda each: int(each.name.removeprefix("attempt_")), default=Path(run)))


def _folder_of(path: str) -> str:
    given = Path(path)
    return str(given.parent) if given.name in file_names.OF_A_RUN and is_run(str(given.parent)) else path


@dataclass(frozen=True, slots=True)
class _Run:
    folder: Path
    started: RunStarted | None
    wall_ns: int


def _runs_in(folder: Path) -> list[_Run]:
    """By the time of their start, the newest last."""
    try:
        folders = [each for each in folder.iterdir() if not each.is_symlink() and is_run(str(each))]
    except OSError:
        return []
    return sorted(map(_run, folders), key=lambda run: (run.wall_ns, run.folder.name))


def _run(folder: Path) -> _Run:
    path = folder / file_names.EVENTS
    try:
        first = next(iter(journal.read(path)), None)
        modified_ns = path.stat().st_mtime_ns
    except OSError:
        first, modified_ns = None, 0
    if isinstance(first, RunStarted):
        return _Run(folder, first, first.wall_ns)
    return _Run(folder, None, modified_ns)


def _of_one_job(newest: RunStarted, runs: Sequence[_Run]) -> list[_Run]:
    """The newest run, and those of the other nodes of its job, in the order of their start."""
    nodes: dict[tuple[str, int], _Run] = {}
    for run in runs:
        started = run.started
        if started is not None and abs(newest.wall_ns - started.wall_ns) <= _ONE_JOB_NS and _alike(newest, started):
            nodes[started.host, started.node_rank] = run
    return list(nodes.values())


def _alike(one: RunStarted, other: RunStarted) -> bool:
    if one is other:
        return True
    same_job = one.nodes > 1 and one.nodes == other.nodes
    return same_job and (one.host, one.node_rank) != (other.host, other.node_rank)
