"""Reads what ranks and the agent left in a run's folder: logs, exceptions, stacks. Never fails for a missing file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_run.evidence import exception_chain, traceback_text
from ddp_run.evidence.crash_text import code_before_the_dump
from ddp_run.evidence.exception_frames import begins_in_function
from ddp_run.evidence.last_exception import last_exception
from ddp_run.evidence.launcher_exceptions import starts_a_launcher
from ddp_run.evidence.log_tail import read_tail
from ddp_run.evidence.model import Death, LogText
from ddp_run.evidence.scan import TAIL_BYTES
from ddp_run.record import file_names
from ddp_run.record.events import ExceptionInfo, Rank
from ddp_run.record.run_folder import open_run_file

_RESTART = re.compile(r"restart_[0-9]{1,9}")
_LONGEST_ERROR_FILE = 16 << 20


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of one run. `links`: where its links may lead."""

    folder: Path
    links: frozenset[str]

    def tail(self, source: str, limit: int = TAIL_BYTES) -> LogText:
        """Return the last `limit` bytes of one of its logs; empty if it cannot be read."""
        return read_tail(self.folder, source, limit, self.links)


def rank_folder(folder: Path, attempt: int, rank: Rank) -> str:
    """Return where a rank's files are if there is no RankStarted: in the last restart's folder that has them."""
    base = folder / file_names.attempt_folder(attempt)
    named = [path for path in base.glob(f"restart_*/rank_{rank}") if _RESTART.fullmatch(path.parent.name)]
    restarts = sorted(named, key=lambda path: int(path.parent.name[8:]))
    return str(restarts[-1].relative_to(folder)) if restarts else file_names.rank_folder(attempt, rank)


def with_logs(files: RunFiles, rank_folder: str, death: Death, share: int) -> Death:
    """Return the death with what the rank left: the last `share` bytes of each log, and its exception."""

    def read(name: str) -> LogText:
        return files.tail(f"{rank_folder}/{name}", share)

    stderr, stdout, stack = read(file_names.STDERR), read(file_names.STDOUT), read(file_names.STACKS)
    death = replace(death, code=code_before_the_dump(death.code, stack))
    exception = death.exception or _error_file(files, f"{rank_folder}/{file_names.ERROR}")
    exception = exception_chain.at_its_origin(exception) if exception is not None else None
    raised_in_child = None
    if exception is not None:
        raised_in_child = exception_chain.of_child(exception) or _of_started(exception, stderr)
    if raised_in_child is not None:  # its phase is unknown
        exception, death = raised_in_child, replace(death, phase=None, step=None, call=None)
    reported, exception = exception, _cause_of_exit(death.code, exception, stderr)
    return replace(
        death,
        stderr=stderr,
        stdout=stdout,
        stack=stack,
        nccl=_nccl(read(file_names.NCCL), stdout),
        exception=exception,
        only_printed=reported is None and exception is not None and begins_in_function(exception),
    )


def _of_started(exception: ExceptionInfo, stderr: LogText) -> ExceptionInfo | None:
    """Return the exception of a Python program that the rank had started, if the rank only says that it failed."""
    own = traceback_text.last(stderr.lines) if starts_a_launcher(exception) else None
    if own is None or own.info.type != exception.type:
        return None
    return last_exception(None, replace(stderr, lines=stderr.lines[: own.start]))


def _nccl(own: LogText, stdout: LogText) -> LogText:
    """Return NCCL's output: from its own file, else from stdout, its destination if the user has set NCCL_DEBUG."""
    if own.lines:
        return own
    said = [index for index, line in enumerate(stdout.lines) if "NCCL WARN " in line or "NCCL INFO " in line]
    numbers = tuple(stdout.number(index) or 0 for index in said) if stdout.first_line is not None else None
    return LogText(stdout.source, tuple(stdout.lines[index] for index in said), None, numbers)


def _cause_of_exit(code: int | None, exception: ExceptionInfo | None, stderr: LogText) -> ExceptionInfo | None:
    """Return the exception; for a plain `sys.exit`, the one that led to it, handled or printed."""
    if exception is None:
        return last_exception(code, stderr)
    if exception.type != "SystemExit":
        return exception
    led_to_it = exception_chain.before_last(exception.traceback)
    if led_to_it is not None:
        return exception_chain.origin_of(led_to_it, exception)
    return last_exception(code, stderr) or exception


def _error_file(files: RunFiles, source: str) -> ExceptionInfo | None:
    """Return the exception in the file of torch's `@record`.

    Form: {"message": {"message": …, "extraInfo": {"py_callstack": …}}}.
    """
    try:
        with open_run_file(files.folder, source, files.links) as file:
            content = json.loads(file.read(_LONGEST_ERROR_FILE))
        callstack = content["message"]["extraInfo"]["py_callstack"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return traceback_text.from_text(callstack) if isinstance(callstack, str) else None
