"""The table of `ddp-run runs`, and the same as JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_run.record.recorded_runs import RecordedRun
from ddp_run.values.lines import neutral
from ddp_run.values.words import duration_in_words, size_in_words

_LEAST_COMMAND = 24
_GIVEN_UP_FIRST = ("STARTED", "SIZE", "TRIES", "NODE", "RANKS", "CAUSE")
"""Columns that a narrow terminal has no room for. A run's name tells when it started."""
_RIGHT = ("EXIT", "TRIES", "TIME", "RANKS", "SIZE")


@dataclass(frozen=True, slots=True)
class Row:
    """A run, and what of it is not in its files."""

    run: RecordedRun
    bytes: int
    now_ns: int

    @property
    def state(self) -> str:
        """The outcome; of a run without a verdict `running`, `killed`, `ended` or `unknown`."""
        run = self.run
        if run.outcome is not None:
            return run.outcome
        if run.alive:
            return "running"
        if run.exit_code is not None:
            return "ended"
        return "unknown" if run.alive is None else "killed"

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken until now; to its last event where it was killed."""
        run = self.run
        if run.started is None:
            return None
        end = self.now_ns if self.state == "running" else run.ended_ns
        return None if end is None else max(0.0, (end - run.started.wall_ns) / 1e9)


def table(rows: Sequence[Row], *, width: int | None, local: Callable[[int], str]) -> str:
    """Lines of columns; `width`: of the terminal, null for all columns uncut, as scripts want them.

    `local` makes a local date of nanoseconds since the epoch.
    """
    cells = [_cells(row, local) for row in rows]
    names = list(cells[0]) if cells else []
    if width is not None and len({cell["NODE"] for cell in cells}) == 1 and "/" not in cells[0]["NODE"]:
        names = [name for name in names if name != "NODE"]
    widths = {name: max(len(name), *(len(cell[name]) for cell in cells)) for name in names}
    for name in _GIVEN_UP_FIRST if width is not None else ():
        if _fixed(names, widths) + _LEAST_COMMAND > (width or 0) and name in names:
            names.remove(name)
    room = None if width is None else max(_LEAST_COMMAND, width - _fixed(names, widths))
    lines = [{name: name for name in names}, *cells]
    return "".join(_line(line, names, widths, room) + "\n" for line in lines)


def as_json(row: Row, iso: Callable[[int], str]) -> dict[str, object]:
    """The fields of one run; null: not known."""
    run, started = row.run, row.run.started
    return {
        "run": neutral(run.folder.name),
        "folder": str(run.folder),
        "started": iso(started.wall_ns) if started is not None else None,
        "state": neutral(row.state),
        "outcome": None if run.outcome is None else neutral(run.outcome),
        "exit_code": run.exit_code,
        "cause": None if run.cause is None else neutral(run.cause),
        "attempts": run.attempts,
        "seconds": None if row.seconds is None else round(row.seconds, 3),
        "ranks": run.ranks,
        "host": neutral(started.host) if started is not None else None,
        "node_rank": started.node_rank if started is not None else None,
        "nodes": started.nodes if started is not None else None,
        "bytes": row.bytes,
        "script": [neutral(word) for word in run.script],
        "command": [neutral(word) for word in started.argv] if started is not None else None,
    }


def _cells(row: Row, local: Callable[[int], str]) -> dict[str, str]:
    run, started = row.run, row.run.started
    host = started.host if started is not None else "-"
    cells = {
        "RUN": run.folder.name,
        "STARTED": local(run.started_ns),
        "OUTCOME": row.state,
        "EXIT": _known(run.exit_code),
        "CAUSE": _known(run.cause),
        "TRIES": _known(run.attempts),
        "TIME": _known(None if row.seconds is None else duration_in_words(row.seconds)),
        "RANKS": _known(run.ranks),
        "NODE": f"{started.node_rank}/{started.nodes}:{host}" if started is not None and started.nodes > 1 else host,
        "SIZE": size_in_words(row.bytes).replace(" ", ""),
        "COMMAND": shlex.join(run.script or (started.argv if started is not None else ())) or "-",
    }
    shown = {name: neutral(text)[:200] for name, text in cells.items()}
    return {name: text if name == "COMMAND" else "_".join(text.split()) or "-" for name, text in shown.items()}


def _known(value: object) -> str:
    return "-" if value is None else str(value)


def _fixed(names: Sequence[str], widths: Mapping[str, int]) -> int:
    """Columns of everything before the command."""
    return sum(widths[name] + 2 for name in names if name != "COMMAND")


def _line(cells: Mapping[str, str], names: Sequence[str], widths: Mapping[str, int], room: int | None) -> str:
    shown = [
        cells[name].rjust(widths[name]) if name in _RIGHT else cells[name].ljust(widths[name])
        for name in names
        if name != "COMMAND"
    ]
    command = cells["COMMAND"]
    if room is not None and len(command) > room:
        command = command[: room - 1] + "…"
    return "  ".join([*shown, command])
