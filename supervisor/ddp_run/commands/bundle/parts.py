"""What goes into a bundle: of runs with their journals and verdicts, or of logs of any launcher.

A list of functions gives texts, files, and what is left out. Their order is that of the archive, by importance: if
room or time run out, the later ones are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_run.commands.bundle import surroundings
from ddp_run.commands.explain.answer import Answer, NotReadable, block_text, explain, json_text, log_files
from ddp_run.record import file_names, journal
from ddp_run.record.attempt_events import attempts_made
from ddp_run.record.events import Event, Rank, RunEnded, RunStarted
from ddp_run.record.runs_meant import is_run
from ddp_run.values.redaction import redact_words

_SMALL_BYTES = 1 << 20
_AGENT_BYTES = 8 << 20
_COLUMNS = 100
_DEEPEST = 6
_MOST_FILES = 20_000
_RANK_FILE = re.compile(r"attempt_(\d{1,6})/(?:restart_\d{1,6}/)?rank_(\d{1,9})/([^/]+)")
_ATTEMPT_FILE = re.compile(r"attempt_\d{1,6}/([^/]+)")
_NODE_FILE = re.compile(rf"{file_names.NODES}/(?:node_\d{{1,9}}/)?[\w.\-]+\.(?:json|log|txt)")


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
    answer, why = _answer(paths)
    folders = [path for path in paths if is_run(path)]
    try:
        runs = tuple(_run(folder, answer if len(folders) == 1 else _answer((folder,))[0]) for folder in folders)
        logs = () if runs else tuple(_log(file) for path in paths for file in log_files(path))
    except OSError as error:
        raise NotReadable(f"{error.filename} cannot be read: {error.strerror}") from error
    return Asked(runs, logs, answer, why, limit, dict(os.environ))


def _run(folder: str, answer: Answer | None) -> Run:
    path = Path(folder).resolve()
    return Run(path, journal.load(path / file_names.EVENTS).events, answer)


def _log(file: str) -> Path:
    path = Path(file).resolve()
    if not stat.S_ISREG(path.stat().st_mode):
        raise NotReadable(f"{file} is neither a run's folder nor a log")
    return path


def _answer(paths: tuple[str, ...]) -> tuple[Answer | None, str | None]:
    """The verdict, or why there is none: a bundle does not need one."""
    try:
        return explain(paths, rank_from_filename=False), None
    except NotReadable as error:
        return None, str(error)


# -------------------------------------------------------------------------------------------------- parts


def parts(asked: Asked) -> Iterator[Part]:
    """All parts, in order."""
    for each in _PARTS:
        yield from each(asked)


def is_of_failing_rank(name: str, run: Run) -> bool:
    """Whether a file of the archive belongs to the rank whose files are copied whole."""
    top, _slash, source = name.partition("/")
    found = _RANK_FILE.fullmatch(source)
    return top == _safe(run.folder.name) and found is not None and (int(found[1]), int(found[2])) == run.failing


def _verdict(asked: Asked) -> Iterator[Part]:
    if asked.answer is None:
        yield LeftOut("verdict.txt", asked.no_answer or "there is none")
        return
    yield Text("verdict.txt", block_text(asked.answer, width=_COLUMNS, colour=False))
    yield Text("verdict.json", json_text(asked.answer))


def _command(asked: Asked) -> Iterator[Part]:
    told = [run.started for run in asked.runs if run.started is not None]
    if told:
        lines = [f"# {each.host}, node {each.node_rank}\n{shlex.join(redact_words(each.argv))}\n" for each in told]
        yield Text("command.txt", "".join(lines))
    else:
        yield LeftOut("command.txt", "no journal records the command: add it by hand")


def _surroundings(asked: Asked) -> Iterator[Part]:
    yield Text("versions.txt", surroundings.versions())
    yield Text("environment.txt", surroundings.environment(asked.environ))
    for file, words, within_s in surroundings.PROGRAMS:
        try:
            yield Text(file, surroundings.said_by(words, within_s, asked.environ))
        except surroundings.NoAnswer as error:
            yield LeftOut(file, str(error))


def _files_of_runs(asked: Asked) -> Iterator[Part]:
    for run in asked.runs:
        ranked = sorted(_files_of(run, asked.limit), key=lambda found: found[0])
        yield from (part for _importance, part in ranked)


def _logs(asked: Asked) -> Iterator[Part]:
    names: dict[str, int] = {}
    for log in asked.logs:
        plain = _safe(log.name)[:100]
        number = names[plain] = names.get(plain, 0) + 1
        name = f"logs/{plain}" if number == 1 else f"logs/{number}-{plain}"
        yield File(name, log.parent, log.name, asked.limit)


_PARTS: tuple[Callable[[Asked], Iterator[Part]], ...] = (_verdict, _command, _surroundings, _files_of_runs, _logs)


def _safe(name: str) -> str:
    """A name for the archive."""
    return re.sub(r"[^\w.\-]", "_", name, flags=re.ASCII)


# ----------------------------------------------------------------------------------------- a run's folder


def _files_of(run: Run, limit: int) -> Iterator[tuple[tuple[int, int], Part]]:
    """Each with its importance, the lowest number first; later attempts before earlier ones."""
    for source, unfit in _below(run.folder):
        name = f"{_safe(run.folder.name)}/{source}"
        importance, most = _place(source, run.failing, limit)
        if importance is None:
            yield (9, 0), LeftOut(name, unfit or "not one of the files that ddp-run writes for a run")
        else:
            yield importance, LeftOut(name, unfit) if unfit else File(name, run.folder, source, most)


def _place(source: str, failing: tuple[int, int] | None, limit: int) -> tuple[tuple[int, int] | None, int | None]:
    """A file's importance, None if it is unknown; and how many bytes of it are copied, as in `File`."""
    if source in file_names.OF_A_RUN:
        return (0, 0), limit
    if source == file_names.REPORT:
        return (3, 0), _AGENT_BYTES
    if (found := _RANK_FILE.fullmatch(source)) is not None and found[3] in file_names.OF_A_RANK:
        attempt, rank, name = int(found[1]), int(found[2]), found[3]
        if (attempt, rank) == failing:
            return (1, 0), limit
        is_log = name in (file_names.STDOUT, file_names.STDERR, file_names.NCCL)
        return (4, -attempt), None if is_log else _SMALL_BYTES
    if (found := _ATTEMPT_FILE.fullmatch(source)) is not None and found[1] in (file_names.AGENT_LOG, file_names.RAS):
        return (2, 0), min(limit, _AGENT_BYTES)
    return ((3, 0), _SMALL_BYTES) if _NODE_FILE.fullmatch(source) else (None, None)


def _below(root: Path) -> Iterator[tuple[str, str | None]]:
    """Everything below a folder, by name, and why it can't be copied: no regular file, too deep, or not readable.

    Another user may have made the folder, so no link is followed.
    """
    errors: list[OSError] = []
    count = 0
    for folder, folders, names in os.walk(root, onerror=errors.append):
        folders.sort()
        deep = len(Path(folder).relative_to(root).parts) == _DEEPEST - 1
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted((*names, *(folders if deep else links))):
            if count == _MOST_FILES:
                yield "", f"more than {_MOST_FILES} files"
                return
            count += 1
            path = Path(folder, name)
            yield str(path.relative_to(root)), _unfit(path)
        if deep:
            folders.clear()
    for error in errors:
        yield str(Path(error.filename).relative_to(root)), f"cannot be listed: {error.strerror}"


def _unfit(path: Path) -> str | None:
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISLNK(mode):
        return "a link: it is not followed"
    if stat.S_ISDIR(mode):
        return f"a folder more than {_DEEPEST} folders deep"
    return None if stat.S_ISREG(mode) else "not a regular file (a pipe, a socket or a device)"
