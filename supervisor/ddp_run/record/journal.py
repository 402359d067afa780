"""Events to JSON lines and back. A journal is appended as things happen and survives the death of its writer."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TypeVar, final

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

_T = TypeVar("_T")
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


_SAMPLES: tuple[type[Event], ...] = (MemorySampled, GpuSampled, ProgressSampled)
RECENT = 2048
"""How many of the latest samples of each kind are kept; now and then there are up to twice as many."""


class _Thinned(list[_T]):
    """A list to append to. Of items of a kind that may go it keeps the latest, `recent` or up to twice as many."""

    def __init__(self, recent: int) -> None:
        super().__init__()
        self._recent = recent
        self._may_go: dict[type[Event], list[_T]] = {}
        self.looked_at: set[Rank] = set()
        """Ranks whose memory was looked at: trends begin with the first look, so that stays."""

    def kind_that_may_go(self, event: Event) -> type[Event] | None:
        """The event's kind; None if it stays."""
        if isinstance(event, MemorySampled) and not self.looked_at.issuperset(event.ranks):
            self.looked_at.update(event.ranks)
            return None
        return type(event) if isinstance(event, _SAMPLES) else None

    def add(self, item: _T, kind: type[Event] | None) -> None:
        """Append an item; None: it stays. Now and then this drops old ones."""
        super().append(item)
        if kind is None:
            return
        items = self._may_go.setdefault(kind, [])
        items.append(item)
        if len(items) >= 2 * self._recent:
            old = set(map(id, items[: -self._recent]))
            self[:] = [each for each in self if id(each) not in old]
            del items[: -self._recent]


@final
class KeptEvents(_Thinned[Event]):
    """Events, of whose samples the latest are kept, and the first look at a rank's memory."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__(RECENT)
        for event in events:
            self.append(event)

    def append(self, event: Event) -> None:
        """Add one."""
        self.add(event, self.kind_that_may_go(event))


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
    content = {"event": type(event).__name__, "time": date} | asdict(event)
    return json.dumps(content, ensure_ascii=False, separators=(",", ": "))  # samples are long lists


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
    with closing(Follower(path)) as journal:
        return _thinned(journal.lines(), RECENT)


def read(path: Path, kind: type[Event] | None = None) -> Iterator[Event]:
    """The events of a journal, or those of one kind, in order, read on demand. Raises like `load`."""
    with closing(Follower(path)) as journal:
        for _number, line in journal.lines():
            if kind is None or _begins_with(line, kind):
                event = _decoded(line)
                if event is not None:
                    yield event


@final
class Follower:
    """Reads a journal, also while it grows. Raises OSError if there is none, or if it has endless lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_run_file(path.parent, path.name)
        self._unfinished = b""
        self._number = 0

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The whole lines since the last call, each with its number, from 1."""
        for line in iter(lambda: self._file.readline(_LONGEST_LINE), b""):
            whole = self._unfinished + line if self._unfinished else line
            if whole.endswith(b"\n"):
                self._unfinished = b""
                self._number += 1
                yield self._number, whole
            elif len(whole) >= _LONGEST_LINE:
                raise OSError(errno.EFBIG, f"line {self._number + 1} is longer than any event", str(self._path))
            else:
                self._unfinished = whole

    def more(self) -> tuple[Event, ...]:
        """The events since the last call; of samples, which are most of a long journal, only the latest."""
        return _thinned(self.lines(), 2).events

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _thinned(lines: Iterable[tuple[int, bytes]], recent: int) -> Recorded:
    """The events that `KeptEvents` keeps of these. Decoding a week's samples takes a minute, so most are never decoded.

    A sample that goes is not known to be damaged either, unless its line isn't whole.
    """
    kept = _Thinned[tuple[int, bytes, Event | None]](recent)
    damaged: list[int] = []
    started: set[Rank] = set()
    for number, line in lines:
        kind = next((each for each in _SAMPLES if _begins_with(line, each)), None)
        may_stay = kind is MemorySampled and (not kept.looked_at or not started <= kept.looked_at)
        if kind is not None and not may_stay and line.endswith(b"}\n"):
            kept.add((number, line, None), kind)
            continue
        event = _decoded(line, number, damaged)
        if event is None:
            continue
        if isinstance(event, RankStarted):
            started.add(event.rank)
        kept.add((number, line, event), kept.kind_that_may_go(event))
    found = (event or _decoded(line, number, damaged) for number, line, event in kept)
    return Recorded(tuple(event for event in found if event is not None), tuple(sorted(damaged)))


def _begins_with(line: bytes, kind: type[Event]) -> bool:
    return b'"%b"' % kind.__name__.encode() in line[:KIND_WITHIN]


def _decoded(line: bytes, number: int = 0, damaged: list[int] | None = None) -> Event | None:
    """None for an unknown kind, and for a damaged line, whose number goes into `damaged`."""
    try:
        return decode(line.decode("utf-8", "replace"))
    except ValueError:
        if damaged is not None:
            damaged.append(number)
        return None
