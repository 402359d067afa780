"""The verdict of what is over, read from a run's folder or from logs of any launcher, and how it is shown."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_run.evidence import scan
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.judge import judging, retry
from ddp_run.judge.pasted_logs import explain_logs, wanted_words
from ddp_run.judge.replay import replay
from ddp_run.judge.verdict import Verdict
from ddp_run.record import file_names, journal
from ddp_run.record.attempt_events import attempts_made
from ddp_run.record.events import AttemptEnded, Rank, RunStarted
from ddp_run.record.runs_meant import is_run, last_attempt
from ddp_run.tell import verdict_file, verdict_text

STANDARD_INPUT = "-"
_LOGS = (".log", ".txt", ".out", ".err", ".stderr", ".stdout")
_RANK = re.compile(r"(?:rank|worker|trainer|task|proc)[_.\- ]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_MOST_FILES = 1024
_MOST_NOTES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, and how to show it: the folder that its sources are relative to, the attempts, what was decided."""

    verdict: Verdict
    folder: Path | None
    attempts: int | None
    decision: str | None
    document: dict[str, object]


class NotReadable(Exception):
    """Nothing to explain there; the message says why."""


def explain(paths: Sequence[str], *, rank_from_filename: bool) -> Answer:
    """The verdict for one run's folder, for those of a job's nodes together, for log files or folders of them, or for
    standard input (`-`).

    Raises NotReadable, naming the path.
    """
    folders = [path for path in paths if path != STANDARD_INPUT and is_run(path)]
    if len(folders) == 1 and len(paths) == 1:
        return _of_run(Path(folders[0]).resolve())
    if folders and len(folders) < len(paths):
        raise NotReadable(f"{folders[0]} is a run's folder: explain it without logs of another origin")
    if folders:
        paths = [last_attempt(path) for path in folders]
    return _of_logs(_logs(paths, rank_from_filename))


def json_text(answer: Answer) -> str:
    """The object of verdict.json."""
    return json.dumps(answer.document, indent=2) + "\n"


def block_text(answer: Answer, *, width: int, colour: bool, wrap: int | None = None) -> str:
    """The block and the line for scripts; `wrap`: the terminal's columns, null: for none."""
    verdict, attempts, block = answer.verdict, answer.attempts or 1, ""
    if verdict.outcome != "succeeded":
        block = verdict_text.verdict_block(
            verdict,
            colour=colour,
            width=width,
            wrap=wrap,
            folder=answer.folder or Path(),
            attempts=attempts,
            decision=answer.decision,
        )
    line = verdict_file.verdict_line(verdict, attempts=answer.attempts, folder=answer.folder)
    return "\n".join(filter(None, (block, line))) + "\n"


# ---------------------------------------------------------------------------------------- a run's folder


def _of_run(folder: Path) -> Answer:
    try:
        verdict, events = replay(folder)
    except (OSError, ValueError) as error:
        raise NotReadable(f"{folder} is not the folder of a run: {error}") from error
    attempts = len(attempts_made(events))
    run = next((event for event in events if isinstance(event, RunStarted)), None)
    decided = [event.reason for event in events if isinstance(event, AttemptEnded)]
    reason = judging.final_reason(decided[-1], events) if decided else None
    document = verdict_file.as_json(
        verdict,
        run_id=run.run_id if run else None,
        attempts=attempts,
        folder=str(folder),
        decision="stop",
        decision_reason=retry.UNDECIDED if reason is None else reason,
        wall_at=journal.clock(events) if run else lambda _stamp: None,
    )
    return Answer(verdict, folder, attempts, None if reason is None else f"not retried: {reason}", document)


# ------------------------------------------------------------------------------------------------- logs


def _of_logs(read: Sequence[tuple[Log, str | None]]) -> Answer:
    verdict = explain_logs([log for log, _left_out in read])
    verdict = replace(verdict, notes=(*verdict.notes, *_left_out([note for _log, note in read if note])))
    helps = verdict.retry is not None and verdict.retry.helps
    document = verdict_file.as_json(
        verdict,
        decision="retry" if helps else "stop",
        decision_reason=verdict.retry.reason if verdict.retry else None,
    )
    advice = f"a retry {'can help' if helps else 'does not help'}: {verdict.retry.reason}" if verdict.retry else None
    return Answer(verdict, None, None, advice, document)


def _left_out(notes: Sequence[str]) -> tuple[str, ...]:
    """A note for each log of which not all was read; of many alike the first."""
    if len(notes) <= _MOST_NOTES:
        return tuple(notes)
    return notes[0], f"of {len(notes) - 1} other logs not all was read either"


def _logs(paths: Sequence[str], rank_from_filename: bool) -> list[tuple[Log, str | None]]:
    files = [file for path in paths for file in log_files(path)]
    if len(files) > _MOST_FILES:
        raise NotReadable(f"{len(files)} files are too many: name at most {_MOST_FILES}")
    wanted = wanted_words()
    return [_log(file, paths, rank_from_filename, wanted, len(files)) for file in files]


def log_files(path: str) -> Iterable[str]:
    """The path, or the logs below it, stderr before stdout and by name."""
    if path == STANDARD_INPUT or not Path(path).is_dir():
        return (path,)
    found = sorted(file for file in Path(path).rglob("*") if _is_log(file.name.removesuffix(".gz")))
    found = [file for file in found if file.is_file()]
    if not found:
        raise NotReadable(f"{path} holds neither a run's events.jsonl nor logs ({', '.join(_LOGS)})")
    return tuple(str(file) for file in found)


def _is_log(name: str) -> bool:
    return name.endswith(_LOGS) or name in ("stdout", "stderr")


def _log(
    file: str, paths: Sequence[str], rank_from_filename: bool, wanted: frozenset[str], logs: int
) -> tuple[Log, str | None]:
    """The log, one of so many, and what of it was not looked at."""
    path = Path(file)
    try:
        if file == STANDARD_INPUT:
            read = scan.read_stream(sys.stdin.buffer, "standard input", wanted, logs=logs)
        else:
            read = scan.read_log(path, file, wanted, logs=logs)
    except OSError as error:
        raise NotReadable(f"{file} cannot be read: {error.strerror}") from error
    named = file != STANDARD_INPUT and (rank_from_filename or file not in paths)
    return Log(read.text, rank_of(path) if named else None), read.left_out


def rank_of(path: Path) -> Rank | None:
    """The rank that a log's path names: `rank_3`, `worker-3`, torchrun's folder `…/attempt_0/3/stderr.log`; else the
    last number in the file's own name.
    """
    for part in reversed(path.parts[-3:]):
        named = _RANK.findall(part)
        if named:
            return Rank(int(named[-1]))
    if path.name in (file_names.STDERR, file_names.STDOUT) and _NUMBER.fullmatch(path.parent.name):
        return Rank(int(path.parent.name))
    numbers = _NUMBER.findall(path.stem)
    return Rank(int(numbers[-1])) if numbers else None
