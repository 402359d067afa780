"""The last lines of the ranks that failed by themselves, for `--console failed` and for the other nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_run.judge.verdict import Verdict
from ddp_run.record import file_names
from ddp_run.record.events import Event, Rank, RankExited, RankStarted
from ddp_run.record.run_folder import open_run_file
from ddp_run.tell.tail import Chunk
from ddp_run.values.redaction import redact_lines

_LAST_BYTES = 64 << 10
_LAST_LINES = 200
_SENT_LINES = 50


def failed_lines(verdict: Verdict, events: Sequence[Event], folder: Path) -> Iterator[Chunk]:
    """At most 200 lines and 64 KiB of each stream, from the files of a run's last attempt."""
    started = {event.rank: event for event in events if isinstance(event, RankStarted)}
    for rank in sorted(_failed(verdict, events)):
        start = started.get(rank)
        if start is None:
            continue
        for stream, name in file_names.OF_A_STREAM.items():
            data = _ending(folder, start, name)
            if data:
                yield Chunk(rank, start.local_rank, stream, data)


def last_lines(verdict: Verdict, events: Sequence[Event], folder: Path) -> tuple[str, ...]:
    """The end of the stderr of the rank that the verdict names, without secrets: for the other nodes of the job."""
    named = verdict.first_failure.rank if verdict.first_failure is not None else None
    start = next((event for event in events if isinstance(event, RankStarted) and event.rank == named), None)
    data = _ending(folder, start, file_names.STDERR) if start is not None else b""
    return tuple(redact_lines(data.decode("utf-8", "replace").splitlines()[-_SENT_LINES:]))


def _failed(verdict: Verdict, events: Sequence[Event]) -> set[Rank]:
    """Those that ended with a code or signal of their own; the one that the verdict names among them."""
    followed = {each.rank for each in verdict.collateral}
    codes = {event.rank: event.code for event in events if isinstance(event, RankExited)}
    found = {rank for rank, code in codes.items() if code and rank not in followed}
    first = verdict.first_failure
    return found | ({first.rank} if first is not None and first.rank is not None else set())


def _ending(folder: Path, start: RankStarted, name: str) -> bytes:
    """The file's last whole lines; nothing where it cannot be read."""
    try:
        with open_run_file(folder, f"{start.folder}/{name}", start.links) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _LAST_BYTES))
            data = file.read(_LAST_BYTES)
    except OSError:
        return b""
    if size > _LAST_BYTES:
        data = data.partition(b"\n")[2]
    lines = data.removesuffix(b"\n").split(b"\n")[-_LAST_LINES:]
    return b"\n".join(lines) + b"\n" if data else b""
