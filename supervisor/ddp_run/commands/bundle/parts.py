"""What goes into a bundle: a list of parts, each a function that gives texts, files, and what is left out.

The order is that of the archive, and of importance: where room or time run out, the later ones are left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from ddp_run.commands.bundle import run_files, surroundings
from ddp_run.commands.explain.answer import Answer, block_text, json_text
from ddp_run.record import file_names
from ddp_run.record.attempt_events import attempts_made
from ddp_run.record.events import Event, Rank, RunEnded, RunStarted
from ddp_run.values.redaction import redact_words

LAST_LINES = 100
_SMALL_BYTES = 1 << 20
_AGENT_BYTES = 8 << 20
_COLUMNS = 100
_RANK_FILE = re.compile(r"attempt_(\d{1,6})/(?:restart_\d{1,6}/)?rank_(\d{1,9})/([^/]+)")
_ATTEMPT_FILE = re.compile(r"attempt_\d{1,6}/([^/]+)")
_NODE_FILE = re.compile(rf"{file_names.NODES}/(?:node_\d{{1,9}}/)?[\w.\-]+\.(?:json|log|txt)")


@dataclass(frozen=True, slots=True)
class Text:
    """Made here."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class File:
    """A copy of `root / source`: its last lines, or with `limit` all of it up to so many bytes."""

    name: str
    root: Path
    source: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What could have been expected, and why it is not there."""

    name: str
    why: str


Part = Text | File | LeftOut


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder, what its journal says, and its verdict, which is null where there was no attempt."""

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
    """What the bundle is of: runs of one job, or logs of any launcher; the verdict on all; bytes of a long log."""

    runs: tuple[Run, ...]
    logs: tuple[Path, ...]
    answer: Answer | None
    no_answer: str | None
    limit: int
    environ: Mapping[str, str]


def parts(asked: Asked) -> Iterator[Part]:
    """All of them, in order."""
    for each in _PARTS:
        yield from each(asked)


def is_of_failing_rank(name: str, run: Run) -> bool:
    """Whether a file of the archive is one of those of which all is wanted."""
    top, _slash, source = name.partition("/")
    found = _RANK_FILE.fullmatch(source)
    return top == _top(run) and found is not None and (int(found[1]), int(found[2])) == run.failing


# ------------------------------------------------------------------------------------------------- parts


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
        yield LeftOut("command.txt", "no journal tells the command: add it by hand")


def _versions(_asked: Asked) -> Iterator[Part]:
    yield Text("versions.txt", surroundings.versions())


def _environment(asked: Asked) -> Iterator[Part]:
    yield Text("environment.txt", surroundings.environment(asked.environ))


def _programs(asked: Asked) -> Iterator[Part]:
    for program in surroundings.PROGRAMS:
        said = surroundings.said_by(program, asked.environ)
        match said:
            case surroundings.Said(text):
                yield Text(program.file, text)
            case surroundings.NotAsked(why):
                yield LeftOut(program.file, why)
            case _:
                assert_never(said)


def _files_of_runs(asked: Asked) -> Iterator[Part]:
    for run in asked.runs:
        ranked = sorted(_files_of(run, asked.limit), key=lambda found: found[0])
        yield from (part for _importance, part in ranked)


def _logs(asked: Asked) -> Iterator[Part]:
    names: dict[str, int] = {}
    for log in asked.logs:
        plain = re.sub(r"[^\w.\-]", "_", log.name, flags=re.ASCII)[:100]
        number = names[plain] = names.get(plain, 0) + 1
        name = f"logs/{plain}" if number == 1 else f"logs/{number}-{plain}"
        yield File(name, log.parent, log.name, asked.limit)


_PARTS: tuple[Callable[[Asked], Iterator[Part]], ...] = (
    _verdict,
    _command,
    _versions,
    _environment,
    _programs,
    _files_of_runs,
    _logs,
)


# ----------------------------------------------------------------------------------------- a run's folder


def _files_of(run: Run, limit: int) -> Iterator[tuple[tuple[int, int], Part]]:
    """Each with how important it is, the least number first; those of later attempts before earlier ones'."""
    for entry in run_files.entries(run.folder):
        name, source = f"{_top(run)}/{entry.name}", entry.name
        importance, most = _place(source, run.failing, limit)
        if importance is None:
            yield (9, 0), LeftOut(name, entry.unfit or "not one of the files that ddp-run writes for a run")
        elif entry.unfit is not None:
            yield importance, LeftOut(name, entry.unfit)
        else:
            yield importance, File(name, run.folder, source, most)


def _top(run: Run) -> str:
    """The run's folder in the archive."""
    return re.sub(r"[^\w.\-]", "_", run.folder.name, flags=re.ASCII)


def _place(source: str, failing: tuple[int, int] | None, limit: int) -> tuple[tuple[int, int] | None, int | None]:
    """How important a file of a run is, null for one that is unknown; and how much of it is copied, as in `File`."""
    if source in file_names.OF_A_RUN:
        return (0, 0), limit
    if (found := _RANK_FILE.fullmatch(source)) is not None and found[3] in file_names.OF_A_RANK:
        attempt, rank, name = int(found[1]), int(found[2]), found[3]
        if (attempt, rank) == failing:
            return (1, 0), limit
        is_log = name in (file_names.STDOUT, file_names.STDERR, file_names.NCCL)
        return (4, -attempt), None if is_log else _SMALL_BYTES
    if (found := _ATTEMPT_FILE.fullmatch(source)) is not None and found[1] in (file_names.AGENT_LOG, file_names.RAS):
        return (2, 0), min(limit, _AGENT_BYTES)
    return ((3, 0), _SMALL_BYTES) if _NODE_FILE.fullmatch(source) else (None, None)
