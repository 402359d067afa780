"""The table of `ddp-run runs`, and the same as JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ddp_run.record.events import RunStarted
from ddp_run.record.recorded_runs import RecordedRun
from ddp_run.values.lines import neutral
from ddp_run.values.words import duration_in_words, size_in_words

_LEAST_COMMAND = 24
_GIVEN_UP_FIRST = ("STARTED", "SIZE", "LOST", "TRIES", "NODE", "RANKS", "CAUSE")
"""Columns that a narrow terminal has no room for. A run's name says when it started."""
_RIGHT = ("EXIT", "TRIES", "TIME", "LOST", "RANKS", "SIZE")


@dataclass(frozen=True, slots=True)
class Row:
    """A run, its size on disk in bytes, and the present in nanoseconds since the epoch."""

    run: RecordedRun
    bytes: int
    now_ns: int


def table(rows: Sequence[Row], *, width: int | None, local: Callable[[int], str]) -> str:
    """Lines of columns. `width`: the terminal's; None: all columns uncut, as scripts want them.

    `local` turns nanoseconds since the epoch into a local date.
    """
    cells = [_cells(row, local) for row in rows]
    names = [name for name in cells[0] if name != "COMMAND"] if cells else []
    widths = {name: max(len(name), *(len(cell[name]) for cell in cells)) for name in names}
    room = None
    if width is not None:
        if len({cell["NODE"] for cell in cells}) == 1 and "/" not in cells[0]["NODE"]:
            names.remove("NODE")
        for name in _GIVEN_UP_FIRST:
            if name in names and sum(widths[each] + 2 for each in names) + _LEAST_COMMAND > width:
                names.remove(name)
        room = max(_LEAST_COMMAND, width - sum(widths[each] + 2 for each in names))
    lines = [{name: name for name in (*names, "COMMAND")}, *cells]
    return "".join(_line(line, names, widths, room) + "\n" for line in lines)


def _line(cells: Mapping[str, str], names: Sequence[str], widths: Mapping[str, int], room: int | None) -> str:
    shown = [f"{cells[name]:{'>' if name in _RIGHT else '<'}{widths[name]}}" for name in names]
    command = cells["COMMAND"]
    if room is not None and len(command) > room:
        command = command[: room - 1] + "…"
    return "  ".join([*shown, command])


def _node_rank(started: RunStarted) -> int | str:
    return "-" if started.node_rank is None else started.node_rank


def as_json(row: Row, iso: Callable[[int], str]) -> dict[str, object]:
    """The fields of one run; None: unknown."""
    run, started, seconds = row.run, row.run.started, row.run.seconds(row.now_ns)
    return {
        "run": neutral(run.folder.name),
        "folder": str(run.folder),
        "started": iso(started.wall_ns) if started is not None else None,
        "state": neutral(run.state),
        "outcome": None if run.outcome is None else neutral(run.outcome),
        "exit_code": run.exit_code,
        "cause": None if run.cause is None else neutral(run.cause),
        "attempts": run.attempts,
        "seconds": None if seconds is None else round(seconds, 3),
        "ranks": run.ranks,
        "time": None if run.time is None else asdict(run.time),
        "host": neutral(started.host) if started is not None else None,
        "node_rank": started.node_rank if started is not None else None,
        "nodes": started.nodes if started is not None else None,
        "bytes": row.bytes,
        "script": [neutral(word) for word in run.script],
        "command": [neutral(word) for word in started.argv] if started is not None else None,
    }


def _cells(row: Row, local: Callable[[int], str]) -> dict[str, str]:
    run, started, seconds = row.run, row.run.started, row.run.seconds(row.now_ns)
    host = started.host if started is not None else None
    lost = None if run.time is None else run.time.lost
    cells = {
        "RUN": run.folder.name,
        "STARTED": local(run.started_ns),
        "OUTCOME": run.state,
        "EXIT": run.exit_code,
        "CAUSE": run.cause,
        "TRIES": run.attempts,
        "TIME": None if seconds is None else duration_in_words(seconds),
        "LOST": None if lost is None else duration_in_words(lost.seconds),
        "RANKS": run.ranks,
        "NODE": host if started is None or started.nodes == 1 else f"{_node_rank(started)}/{started.nodes}:{host}",
        "SIZE": size_in_words(row.bytes).replace(" ", ""),
    }
    command = shlex.join(run.script or (started.argv if started is not None else ()))
    shown = {name: "_".join(neutral(str(value))[:200].split()) for name, value in cells.items() if value is not None}
    return {**{name: shown.get(name) or "-" for name in cells}, "COMMAND": neutral(command)[:200] or "-"}
