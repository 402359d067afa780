"""Events to JSON lines and back. A journal is appended as things happen and survives the death of its writer."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddp_run.record.events import Event, MonotonicNs, RunStarted
from ddp_run.record.kept_events import KeptEvents
from ddp_run.record.run_files import open_run_file
from ddp_run.values.private_files import open_private
from ddp_run.values.redaction import redact_value

_LONGEST_LINE = 16 << 20
_KIND_WITHIN = 40
"""Characters at the beginning of a line that have the kind of its event, as `encode` writes it."""


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
    """Appends events to a file, and keeps them but for old samples. Failing to write is never an error."""

    def __init__(self, path: Path) -> None:
        self._fd = open_private(path, os.O_WRONLY | os.O_APPEND)
        self._offset = 0
        self.events = KeptEvents()
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
    from ddp_run.record.event_fields import event_of

    try:
        return event_of(json.loads(line))
    except (RecursionError, OverflowError) as error:
        raise ValueError("not an event") from error


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a journal's file holds: its events in order, and the numbers of the lines that are none, from 1."""

    events: tuple[Event, ...]
    damaged: tuple[int, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know of it."""
        if not self.damaged:
            return ()
        first, more = self.damaged[0], len(self.damaged) - 1
        if not more:
            return (f"events.jsonl: line {first} is damaged and was left out",)
        return (f"events.jsonl: line {first} and {more} more are damaged and were left out",)


def load(path: Path) -> Recorded:
    """Read a journal, whoever wrote it. A last line without its end (the writer was killed) is no damage.

    Raises OSError, also where it is no file, or has lines without an end.
    """
    found = KeptEvents()
    damaged: list[int] = []
    for number, event in _lines(path):
        if event is not None:
            found.append(event)
        else:
            damaged.append(number)
    return Recorded(tuple(found), tuple(damaged))


def read(path: Path, kind: type[Event] | None = None) -> Iterator[Event]:
    """The events of a journal, or those of one kind, in order, read as they are asked for. Raises as `load`."""
    word = b"" if kind is None else f'"{kind.__name__}"'.encode()
    return (event for _number, event in _lines(path, word) if event is not None)


def _lines(path: Path, word: bytes = b"") -> Iterator[tuple[int, Event | None]]:
    """The number of each line, from 1, with its event; null where it is damaged. Unknown kinds are passed over, and
    lines that do not begin with that word."""
    with open_run_file(path.parent, path.name) as file:
        for number in itertools.count(1):
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            if word not in line[:_KIND_WITHIN]:
                continue
            try:
                event = decode(line.decode("utf-8", "replace"))
            except ValueError:
                if line.endswith(b"\n"):
                    yield number, None
                elif len(line) == _LONGEST_LINE:
                    raise OSError(errno.EFBIG, f"line {number} is longer than any event", str(path)) from None
                continue
            if event is not None:
                yield number, event
