"""The runs in a folder of runs, each in a few words, and which of them are one job."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddp_run.record import file_names, journal, own_process, rank_logs
from ddp_run.record.events import Event, OwnProcess, RankStarted, RunEnded, RunStarted
from ddp_run.record.run_folder import entries_below, open_run_file, read_object
from ddp_run.record.time_spent import TimeSpent
from ddp_run.values import typed_fields
from ddp_run.values.lines import neutral

NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
"""The name that `RunFolder` gives a run's folder."""
_HEAD_BYTES = 64 << 10
_END_BYTES = 64 << 10
_MOST_ENTRIES = 100_000
_MOST_DEPTH = 16
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run, or one node's part of it. None: its files don't show it."""

    folder: Path
    """Absolute."""
    started: RunStarted | None
    alive: bool | None
    """Whether its ddp-run still runs; None if that can't be known from here."""
    outcome: str | None
    """As in verdict.json; None while it has none."""
    exit_code: int | None
    cause: str | None
    attempts: int | None
    script: tuple[str, ...]
    """The script and its arguments, without secrets."""
    ranks: int | None
    """The world size, according to the first rank that said hello."""
    written_ns: int
    """When the journal was last written to; nanoseconds since the epoch, like the two below."""
    ended_ns: int | None
    """When its last event happened."""
    time: TimeSpent | None = None
    """Where the time of its ranks went, from verdict.json."""
    meets: tuple[str | None, ...] | None = None
    """Where its nodes were told to meet, from plan.json: master, endpoint and name of the rendezvous."""

    @property
    def started_ns(self) -> int:
        """When it started; if the journal doesn't say, when that was last written to."""
        return self.started.wall_ns if self.started is not None else self.written_ns

    @property
    def process(self) -> OwnProcess | None:
        """Its ddp-run."""
        return None if self.started is None else self.started.process

    @property
    def state(self) -> str:
        """The outcome; without a verdict `running`, `killed`, `ended` or `unknown`."""
        if self.outcome is not None:
            return self.outcome
        if self.alive:
            return "running"
        if self.exit_code is not None:
            return "ended"
        return "unknown" if self.alive is None else "killed"

    @property
    def went_wrong(self) -> bool:
        """Whether it has ended other than well: this includes a signal, or an end without a verdict."""
        return self.state not in ("succeeded", "running", "unknown") and (self.state != "ended" or self.exit_code != 0)

    def seconds(self, now_ns: int) -> float | None:
        """How long it has been running, or took; until its last event if it was killed. `now_ns`: since the epoch."""
        end = now_ns if self.state == "running" else self.ended_ns
        return None if self.started is None or end is None else max(0.0, (end - self.started.wall_ns) / 1e9)

    def why_not_running(self, command: str) -> str:
        """For people who gave this command a run that isn't known to be running."""
        if self.state == "unknown":
            host = self.started.host if self.started is not None else "another host"
            where = f"run ddp-run {command} there"
            return neutral(f"belongs to {host}: this host cannot tell whether it is still running ({where})")
        return f"is not running: {neutral(self.outcome or 'ddp-run was killed')}"

    @property
    def is_ours(self) -> bool:
        """Whether this is certainly a run's folder under its own name, neither copied nor renamed."""
        named = NAME.fullmatch(self.folder.name) is not None
        return named and self.started is not None and self.started.run_id == self.folder.name


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is read from verdict.json."""

    outcome: str
    exit_code: int | None
    attempts: int | None
    cause: str | None = None
    time: TimeSpent | None = None


@dataclass(frozen=True, slots=True)
class _Option:
    value: str | None = None


_NOT_GIVEN = _Option()


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Options that tell a job's nodes where to meet."""

    master_addr: _Option = _NOT_GIVEN
    rdzv_endpoint: _Option = _NOT_GIVEN
    rdzv_id: _Option = _NOT_GIVEN


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is read from plan.json."""

    script: str
    script_args: tuple[str, ...]
    options: _Meeting = _Meeting()

    @property
    def meets(self) -> tuple[str | None, ...]:
        """The values of these options."""
        return self.options.master_addr.value, self.options.rdzv_endpoint.value, self.options.rdzv_id.value


def recorded_runs(log_dir: Path) -> list[RecordedRun]:
    """All runs in a folder of runs, by the time of their start, the newest last. Raises OSError."""
    with os.scandir(log_dir.resolve()) as entries:
        folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    runs = [run for run in map(recorded_run, folders) if run is not None]
    return sorted(runs, key=lambda run: (run.started_ns, run.folder.name))


def closed_runs(log_dir: Path) -> int:
    """How many runs in a folder of runs can't be read, such as other users'. Raises OSError."""
    with os.scandir(log_dir) as entries:
        named = [entry.path for entry in entries if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    return sum(not os.access(path, os.R_OK | os.X_OK) for path in named)


def recorded_run(folder: Path) -> RecordedRun | None:
    """The run whose folder this is; None if it isn't a run's."""
    try:
        with open_run_file(folder, file_names.EVENTS) as file:
            status = os.fstat(file.fileno())
            head = file.read(_HEAD_BYTES).split(b"\n")[:-1]
            file.seek(max(0, status.st_size - _END_BYTES))
            end = file.read(_END_BYTES).split(b"\n")[:-1]
    except OSError:
        return None
    first, last = next(_events(head[:1]), None), next(_events(reversed(end)), None)
    started = first if isinstance(first, RunStarted) else None
    ranks = _events(line for line in head if b'"RankStarted"' in line[: journal.KIND_WITHIN])
    if started is None and not NAME.fullmatch(folder.name):
        return None
    answer = _read(_Answer, folder, file_names.VERDICT)
    plan = _read(_Plan, folder, file_names.PLAN)
    exit_code = last.exit_code if isinstance(last, RunEnded) else None
    return RecordedRun(
        folder=folder,
        started=started,
        alive=own_process.still_runs(started.process if started is not None else None),
        outcome=answer.outcome if answer is not None else None,
        exit_code=answer.exit_code if answer is not None else exit_code,
        cause=answer.cause if answer is not None else None,
        attempts=answer.attempts if answer is not None else len(rank_logs.attempts(folder)) or None,
        script=() if plan is None else (plan.script, *plan.script_args),
        ranks=next((event.world_size for event in ranks if isinstance(event, RankStarted)), None),
        written_ns=status.st_mtime_ns,
        ended_ns=None if started is None or last is None else started.wall_ns + last.at - started.at,
        time=answer.time if answer is not None else None,
        meets=None if plan is None else plan.meets,
    )


def size_of(folder: Path) -> int:
    """Bytes on disk below a folder, links not followed. What can't be read, or exceeds 100,000 entries, is 0."""
    total = 0
    for entry in entries_below([folder], _MOST_ENTRIES, _MOST_DEPTH):
        with suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events in these lines, read on demand; skips lines that have none."""
    for line in lines:
        try:
            event = journal.decode(line.decode("utf-8", "replace"))
        except ValueError:
            continue
        if event is not None:
            yield event


def _read(kind: type[_T], folder: Path, name: str) -> _T | None:
    """A JSON object of this type; None if there is none."""
    try:
        return typed_fields.read(kind, read_object(folder, name))
    except (ValueError, RecursionError):
        return None


_ONE_JOB_NS = 900 * 10**9
"""The nodes of one job start within a quarter of an hour: torch's static rendezvous waits that long."""


_Nodes = list[tuple[RunStarted, RecordedRun]]
"""Of one job, or of what is known of it so far."""


def by_job(runs: Sequence[RecordedRun]) -> list[list[RecordedRun]]:
    """The runs by job, the newest job last, and within a job by their start. `runs` are in the order of their start.

    A run of one node, or one whose start isn't known, is a separate job.
    """
    places = {run.folder: place for place, run in enumerate(runs)}
    nodes: list[_Nodes] = []
    jobs: list[list[RecordedRun]] = []
    for run in runs:
        if run.started is not None and run.started.nodes > 1:
            nodes.append([(run.started, run)])
        else:
            jobs.append([run])
    for may_join in (_meet_there, _have_other_numbers, _have_no_numbers):
        nodes = _joined(nodes, may_join)
    jobs += [sorted((run for _, run in job), key=lambda run: places[run.folder]) for job in nodes]
    return sorted(jobs, key=lambda job: places[job[-1].folder])


def _joined(found: Sequence[_Nodes], may_join: Callable[[_Nodes, _Nodes], bool]) -> list[_Nodes]:
    """Each of them with the first newer one that may belong to the same job."""
    joined: list[_Nodes] = []
    waiting: list[_Nodes] = []
    for nodes in sorted(found, key=_start_ns, reverse=True):
        waiting = [job for job in waiting if _start_ns(job) - _start_ns(nodes) <= _ONE_JOB_NS]
        job = next((job for job in waiting if _fit(job, nodes) and may_join(job, nodes)), None)
        if job is not None:
            job.extend(nodes)
            continue
        joined.append(nodes)
        waiting.append(nodes)
    return joined


def _fit(job: _Nodes, nodes: _Nodes) -> bool:
    size = job[0][0].nodes
    return nodes[0][0].nodes == size and len(job) + len(nodes) <= size


def _meet_there(job: _Nodes, nodes: _Nodes) -> bool:
    """They had the same place to meet, which other jobs at that time had not."""
    return job[0][1].meets == nodes[0][1].meets is not None and _have_other_numbers(job, nodes)


def _have_other_numbers(job: _Nodes, nodes: _Nodes) -> bool:
    numbers = [start.node_rank for start, _ in (*job, *nodes)]
    return None not in numbers and len({*numbers}) == len(numbers)


def _have_no_numbers(job: _Nodes, nodes: _Nodes) -> bool:
    """All have number 0 or none, as nodes that were given none, and are on different hosts."""
    if any(start.node_rank for start, _ in (*job, *nodes)):
        return False
    return {start.host for start, _ in job}.isdisjoint(start.host for start, _ in nodes)


def _start_ns(nodes: _Nodes) -> int:
    """When the last of them started; nanoseconds since the epoch."""
    return max(start.wall_ns for start, _ in nodes)
