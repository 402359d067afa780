"""Events to JSON lines and back. A journal is appended as things happen and survives the death of its writer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from ddp_run import events
from ddp_run.events import Event, ExceptionInfo, MonotonicNs, RunStarted
from ddp_run.private_files import open_private
from ddp_run.redaction import redact_value

_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event)}


def now() -> MonotonicNs:
    """The present, on the clock of all events."""
    return MonotonicNs(time.monotonic_ns())


def iso(wall_ns: int) -> str:
    """Nanoseconds since the epoch as UTC, with microseconds."""
    seconds, ns = divmod(wall_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ns // 1000:06d}Z"


def clock(recorded: Iterable[Event]) -> Callable[[MonotonicNs], str]:
    """How to turn this journal's stamps into dates, from its RunStarted. Raises ValueError where it has none."""
    for event in recorded:
        if isinstance(event, RunStarted):
            offset = event.wall_ns - event.at
            return lambda at: iso(at + offset)
    raise ValueError("a journal without RunStarted has no dates")


class Journal:
    """Appends events to a file, and keeps them. Failing to write is a note for the console, never an error."""

    def __init__(self, path: Path) -> None:
        self._fd = open_private(path, os.O_WRONLY | os.O_APPEND)
        self._offset = 0
        self.events: list[Event] = []
        self.broken: OSError | None = None

    def record(self, event: Event) -> None:
        """Append one event, whole line at once, without secrets: what is kept and what a replay reads are the same."""
        event = redact_value(event)
        if isinstance(event, RunStarted):
            self._offset = event.wall_ns - event.at
        self.events.append(event)
        line = encode(event, iso(event.at + self._offset)) + "\n"
        try:
            os.write(self._fd, line.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self.broken = self.broken or error

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def encode(event: Event, date: str) -> str:
    """One event as one line of JSON, without its line feed."""
    return json.dumps({"event": type(event).__name__, "time": date} | asdict(event), ensure_ascii=False)


def decode(line: str) -> Event | None:
    """One line back into an event; null for a kind that this version does not know.

    Raises ValueError where the line is not one of a journal (a line cut by a full disk, say).
    """
    try:
        fields = json.loads(line)
        kind = _TYPES.get(fields.pop("event"))
        fields.pop("time", None)
        if kind is None:
            return None
        event: Event = kind(**{name: _value(value) for name, value in fields.items()})
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"not an event: {line[:200]}") from error
    return event


def _value(value: Any) -> Any:
    match value:
        case list():
            return tuple(map(_value, value))
        case dict():
            return ExceptionInfo(**value)
        case _:
            return value


def read(path: Path) -> Iterator[Event]:
    """The events of a journal, in order. A broken last line (its writer was killed) is left out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = decode(line)
            except ValueError:
                continue
            if event is not None:
                yield event
