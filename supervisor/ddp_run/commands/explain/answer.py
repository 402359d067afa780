"""The verdict of a finished run's folder, or of any launcher's logs, and how to show it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ddp_run.evidence import scan
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.judge import judging, retry
from ddp_run.judge.pasted_logs import explain_logs, wanted_words
from ddp_run.judge.replay import replay
from ddp_run.judge.verdict import Verdict
from ddp_run.record import file_names, journal
from ddp_run.record.attempt_events import attempts_made
from ddp_run.record.events import AttemptEnded, Event, NodeReported, Rank, RunEnded, RunStarted, VerdictAgreed
from ddp_run.record.recorded_runs import by_job, recorded_run
from ddp_run.record.runs_meant import is_run, last_attempt
from ddp_run.tell import catalogue_text, verdict_file, verdict_text

STANDARD_INPUT = "-"
_LOGS = (".log", ".txt", ".out", ".err", ".stderr", ".stdout")
_RANK = re.compile(r"(?:rank|worker|trainer|task|proc)[_.\- ]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_MOST_FILES = 1024
_MOST_NOTES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, with the folder of its sources, the number of attempts, what was decided, and verdict.json's object.

    None: unknown. `events`: the run's; none of a log.
    """

    verdict: Verdict
    folder: Path | None
    attempts: int | None
    decision: str | None
    document: dict[str, object]
    events: tuple[Event, ...] = ()


class NotReadable(click.ClickException):
    """There is nothing to explain; the message says why."""


def explain(paths: Sequence[str], *, rank_from_filename: bool) -> Answer:
    """The verdict of a run's folder, of a job's nodes' folders together, or of log files, folders of them, or `-`.

    Raises NotReadable, naming the path.
    """
    folders = [path for path in paths if path != STANDARD_INPUT and is_run(path)]
    if len(folders) == 1 and len(paths) == 1:
        return _of_run(Path(folders[0]).resolve())
    if folders and len(folders) < len(paths):
        raise NotReadable(f"{folders[0]} is a run's folder: explain it without other logs")
    agreed = _of_one_job(folders) if folders else None
    if agreed is not None:
        return _of_run(agreed)
    return _of_logs([last_attempt(path) for path in folders] or paths, rank_from_filename)


def json_text(answer: Answer) -> str:
    """The object of verdict.json."""
    return json.dumps(answer.document, indent=2) + "\n"


def block_text(answer: Answer, *, width: int, colour: bool, wrap: int | None = None) -> str:
    """The block and the line for scripts; `wrap`: the terminal's columns, None without one."""
    verdict, block = answer.verdict, ""
    if verdict.outcome != "succeeded":
        block = verdict_text.verdict_block(
            verdict,
            folder=answer.folder or Path(),
            attempts=answer.attempts or 1,
            decision=answer.decision,
            colour=colour,
            width=width,
            wrap=wrap,
        )
    line = verdict_file.verdict_line(verdict, attempts=answer.attempts, folder=answer.folder)
    return "\n".join(filter(None, (block, line))) + "\n"


def _of_one_job(folders: Sequence[str]) -> Path | None:
    """The folder of a node that knows the verdict of them all, node 0's if it is there; None if there is none."""
    runs = [run for run in (recorded_run(Path(folder).resolve()) for folder in folders) if run is not None]
    if len(runs) < len(folders) or len(by_job(sorted(runs, key=lambda run: run.started_ns))) > 1:
        return None
    for kind in (NodeReported, VerdictAgreed):
        for run in runs:
            if next(journal.read(run.folder / file_names.EVENTS, kind), None) is not None:
                return run.folder
    return None


def _of_run(folder: Path) -> Answer:
    try:
        verdict, events = replay(folder)
    except (OSError, ValueError) as error:
        raise NotReadable(f"{folder} is not a run's folder: {error}") from error
    running = verdict.cause is None and _still_runs(folder, events)
    if running:
        verdict = Verdict(None, None, title="the job is still running, and no failure was seen")
    attempts = max(attempts_made(events), default=-1) + 1
    run = next((event for event in events if isinstance(event, RunStarted)), None)
    decided = [event.reason for event in events if isinstance(event, AttemptEnded)]
    reason = judging.final_reason(decided[-1], events) if decided and not running else None
    document = verdict_file.as_json(
        verdict,
        run_id=run.run_id if run else None,
        attempts=attempts,
        folder=str(folder),
        decision_reason=retry.UNDECIDED if reason is None else reason,
        wall_at=journal.clock(events) if run else lambda _stamp: None,
    )
    return Answer(verdict, folder, attempts, None if reason is None else f"not retried: {reason}", document, events)


def _still_runs(folder: Path, events: Sequence[Event]) -> bool:
    run = None if any(isinstance(event, RunEnded) for event in events) else recorded_run(folder)
    return run is not None and run.alive is True


# ------------------------------------------------------------------------------------------------- logs


def _of_logs(paths: Sequence[str], rank_from_filename: bool) -> Answer:
    files = [file for path in paths for file in log_files(path)]
    if len(files) > _MOST_FILES:
        raise NotReadable(f"{len(files)} files are too many: name at most {_MOST_FILES}")
    wanted, logs, unread = wanted_words(), list[Log](), list[str]()
    for file in files:
        read = _read(file, wanted, len(files))
        named = file != STANDARD_INPUT and (rank_from_filename or file not in paths)
        logs.append(Log(read.text, rank_of(Path(file)) if named else None))
        unread += [read.left_out] if read.left_out else []
    if len(unread) > _MOST_NOTES:
        unread = [unread[0], f"{len(unread) - 1} other logs were only read in part too"]
    verdict = explain_logs(logs)
    verdict = replace(verdict, notes=(*verdict.notes, *unread))
    helps = verdict.retry
    document = verdict_file.as_json(
        verdict,
        decision="retry" if helps is not None and helps.helps else "stop",
        decision_reason=helps.reason if helps is not None else None,
    )
    return Answer(verdict, None, None, catalogue_text.retry_text(helps) if helps is not None else None, document)


def _read(file: str, wanted: Collection[str], logs: int) -> scan.Excerpt:
    """What matters of a log, one of `logs`. Raises NotReadable."""
    try:
        if file == STANDARD_INPUT:
            return scan.read_stream(sys.stdin.buffer, "standard input", wanted, logs=logs)
        return scan.read_log(Path(file), file, wanted, logs=logs)
    except OSError as error:
        raise NotReadable(f"{file} cannot be read: {error.strerror}") from error


def log_files(path: str) -> Sequence[str]:
    """The path, or the logs below it by name, stderr before stdout. Raises NotReadable if there is none."""
    if path == STANDARD_INPUT or not Path(path).is_dir():
        return (path,)
    named = ((file, file.name.removesuffix(".gz")) for file in Path(path).rglob("*"))
    found = sorted(file for file, name in named if name.endswith(_LOGS) or name in ("stdout", "stderr"))
    files = [str(file) for file in found if file.is_file()]
    if not files:
        raise NotReadable(f"{path} contains neither a run's events.jsonl nor logs ({', '.join(_LOGS)})")
    return files


def rank_of(path: Path) -> Rank | None:
    """The rank in a log's path: `rank_3`, `worker-3`, torchrun's folder `…/attempt_0/3/stderr.log`; else the last
    number in the file's name.
    """
    for part in reversed(path.parts[-3:]):
        named = _RANK.findall(part)
        if named:
            return Rank(int(named[-1]))
    if path.name in (file_names.STDERR, file_names.STDOUT) and _NUMBER.fullmatch(path.parent.name):
        return Rank(int(path.parent.name))
    numbers = _NUMBER.findall(path.stem)
    return Rank(int(numbers[-1])) if numbers else None
