"""What a bundle is asked for, runs with their journals and verdicts or logs of any launcher, and its kinds of parts."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_run.commands.explain.answer import Answer, NotReadable, explain, log_files
from ddp_run.record import file_names, journal
from ddp_run.record.attempt_events import attempts_made
from ddp_run.record.events import Event, Rank, RunEnded, RunStarted
from ddp_run.record.runs_meant import is_run


@dataclass(frozen=True, slots=True)
class Text:
    """A file of the archive that is made here."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class File:
    """A copy of `root / source`: its last lines, or with `limit` up to that many bytes of it."""

    name: str
    root: Path
    source: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is missing, and why."""

    name: str
    why: str


Part = Text | File | LeftOut


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder, its journal, and its verdict; None if there was no attempt."""

    folder: Path
    events: tuple[Event, ...]
    answer: Answer | None

    @property
    def started(self) -> RunStarted | None:
        """Its first event."""
        return next((event for event in self.events if isinstance(event, RunStarted)), None)

    @property
    def ended(self) -> bool:
        """Whether ddp-run lived to record its end."""
        return any(isinstance(event, RunEnded) for event in self.events)

    @property
    def failing(self) -> tuple[int, Rank] | None:
        """The attempt and the rank whose files are copied whole."""
        first = self.answer.verdict.first_failure if self.answer is not None else None
        made = attempts_made(self.events)
        return (made[-1], first.rank) if made and first is not None and first.rank is not None else None


@dataclass(frozen=True, slots=True)
class Asked:
    """Runs of one job, or logs of any launcher, with their verdict. `limit`: bytes of a long log."""

    runs: tuple[Run, ...]
    logs: tuple[Path, ...]
    answer: Answer | None
    no_answer: str | None
    limit: int
    environ: Mapping[str, str]


def asked(paths: tuple[str, ...], limit: int) -> Asked:
    """The runs or the logs at these paths. Raises NotReadable."""
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
    """The verdict, or why there is none: a bundle does not need one."""
    try:
        return explain(paths, rank_from_filename=False), None
    except NotReadable as error:
        return None, str(error)
