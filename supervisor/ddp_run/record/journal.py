"""Events to JSON lines and back. A journal is appended as things happen and survives the death of its writer."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import final

from ddp_run.record.events import (
    KINDS,
    Event,
    GpuSampled,
    MemorySampled,
    MonotonicNs,
    ProgressSampled,
    Rank,
    RankStarted,
    RunStarted,
)
from ddp_run.record.run_folder import open_run_file
from ddp_run.values import typed_fields
from ddp_run.values.private_files import open_private
from ddp_run.values.redaction import redact_value

_LONGEST_LINE = 16 << 20
KIND_WITHIN = 40
"""The kind of an event, as `encode` writes it, is within this many characters from the beginning of its line."""


def now() -> MonotonicNs:
    """The present, on the clock of all events."""
    return MonotonicNs(time.monotonic_ns())


def iso(wall_ns: int) -> str:
    """Nanoseconds since the epoch as UTC, with microseconds."""
    seconds, ns = divmod(wall_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ns // 1000:06d}Z"


def clock(recorded: Iterable[Event]) -> Callable[[MonotonicNs], str]:
    """How to turn this journal's stamps into dates, from its RunStarted. Raises ValueError if it has none."""
    for event in recorded:
        if isinstance(event, RunStarted):
            offset = event.wall_ns - event.at
            return lambda at: iso(at + offset)
    raise ValueError("a journal without RunStarted has no dates")


_SAMPLES = (MemorySampled, GpuSampled, ProgressSampled)
RECENT = 2048
"""How many of the latest samples of each kind are kept; now and then there are up to twice as many."""


@final
class KeptEvents(list[Event]):
    """A list to append to. Of samples it keeps the latest, and the first look at a rank's memory."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__()
        self._samples: dict[type[Event], list[Event]] = {}
        """Those that may go, by kind."""
        self._looked_at: set[Rank] = set()
        for event in events:
            self.append(event)

    def append(self, event: Event) -> None:
        """Add one. Now and then this drops old samples."""
        super().append(event)
        if not isinstance(event, _SAMPLES):
            return
        if isinstance(event, MemorySampled) and not self._looked_at.issuperset(event.ranks):
            self._looked_at.update(event.ranks)  # trends begin here
            return
        samples = self._samples.setdefault(type(event), [])
        samples.append(event)
        if len(samples) >= 2 * RECENT:
            old = set(map(id, samples[:-RECENT]))
            self[:] = [each for each in self if id(each) not in old]
            del samples[:-RECENT]


class Journal:
    """Appends events to a file, and keeps them, except old samples. A failed write is never an error."""

    def __init__(self, path: Path) -> None:
        self._fd = open_private(path, os.O_WRONLY | os.O_APPEND)
        self._offset = 0
        self.events = KeptEvents()
        self.broken: OSError | None = None

    def record(self, event: Event) -> None:
        """Append one event as a whole line, without secrets: what is kept and what a replay reads are the same."""
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


_PARALLEL: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "MemorySampled": (("ranks", "own", "children"),),
    "GpuSampled": (
        ("gpus", "uuids", "used", "free", "total", "busy"),
        ("pids", "on", "held", "names", "members"),
        ("ranks", "visible"),
    ),
    "NodeReported": (("finished", "finished_at"),),
    "ProgressSampled": (("ranks", "phases", "steps", "collectives"), ("ranks", "calls")),
}
"""Fields of equal length; one that is empty by default may stay empty."""
_LEAST: Mapping[str, int] = {
    "rank": 0,
    "local_rank": 0,
    "attempt": 0,
    "restart": 0,
    "pid": 1,
    "code": -127,
    "signum": 1,
}


def decode(line: str) -> Event | None:
    """Turn one line back into an event; None for a kind that this version doesn't know. Ignores newer fields.

    Raises ValueError if the line isn't one of a journal: a full disk cut it, for example. Also raises it if a field is
    missing, of another type, out of any range, or contradicts another field.
    """
    try:
        recorded = json.loads(line)
        if not isinstance(recorded, dict):
            raise ValueError("not an event")
        kind = KINDS.get(typed_fields.text(recorded.get("event")))
        if kind is None:
            return None
        event = typed_fields.read(kind, recorded)
    except (RecursionError, OverflowError) as error:
        raise ValueError("not an event") from error
    for name, least in _LEAST.items():
        value = getattr(event, name, None)
        if isinstance(value, int) and value < least:
            raise ValueError(f"{name} is {value}")
    for group in _PARALLEL.get(kind.__name__, ()):
        counts = {len(getattr(event, name)) for name in group if name != "calls" or getattr(event, name)}
        if len(counts) > 1:
            raise ValueError(f"{', '.join(group)} differ in length")
    if isinstance(event, RankStarted):
        _check_folder(event.folder)
    return event


def _check_folder(folder: str) -> None:
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts or "\0" in folder or len(folder) > 1024:
        raise ValueError("the rank's folder is not within the run's")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a journal's file holds: its events in order, and the numbers of damaged lines, from 1."""

    events: tuple[Event, ...]
    damaged: tuple[int, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know about it."""
        if not self.damaged:
            return ()
        first, more = self.damaged[0], len(self.damaged) - 1
        if not more:
            return (f"events.jsonl: line {first} is damaged and was left out",)
        return (f"events.jsonl: line {first} and {more} more are damaged and were left out",)


def load(path: Path) -> Recorded:
    """Read a journal, which isn't trusted. An unfinished last line (the writer was killed) doesn't count as damage.

    Raises OSError, also if it is not a file or has endless lines.
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
    """The events of a journal, or those of one kind, in order, read on demand. Raises like `load`."""
    word = b"" if kind is None else f'"{kind.__name__}"'.encode()
    return (event for _number, event in _lines(path, word) if event is not None)


@final
class Follower:
    """Reads a journal while it grows. Raises OSError if there is none, or if it has endless lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_run_file(path.parent, path.name)
        self._unfinished = b""

    def more(self) -> list[Event]:
        """The events since the last call. Of samples, which are most of a long journal, the last two of each kind."""
        found: list[tuple[int, bytes]] = []
        samples = {f'"{kind.__name__}"'.encode(): deque[tuple[int, bytes]](maxlen=2) for kind in _SAMPLES}
        for number, line in enumerate(iter(lambda: self._file.readline(_LONGEST_LINE), b"")):
            line, self._unfinished = self._unfinished + line, b""  # noqa: PLW2901
            if not line.endswith(b"\n"):
                if len(line) >= _LONGEST_LINE:
                    raise OSError(errno.EFBIG, "a line is longer than any event", str(self._path))
                self._unfinished = line
                break
            kind = next((word for word in samples if word in line[:KIND_WITHIN]), None)
            (found if kind is None else samples[kind]).append((number, line))
        numbered = sorted([*found, *(each for kept in samples.values() for each in kept)])
        return [event for _number, line in numbered if (event := _decoded(line)) is not None]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _decoded(line: bytes) -> Event | None:
    """None for a damaged line too."""
    try:
        return decode(line.decode("utf-8", "replace"))
    except ValueError:
        return None


def _lines(path: Path, word: bytes = b"") -> Iterator[tuple[int, Event | None]]:
    """The number of each line, from 1, with its event; None if it is damaged. Skips unknown kinds, and lines that don't
    begin with that word."""
    with open_run_file(path.parent, path.name) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
            if word not in line[:KIND_WITHIN]:
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
