"""What `ddp-run watch` shows of a job: one screen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ddp_run.tell.snapshot import RankRow, Snapshot, in_words, rate
from ddp_run.values.words import duration_in_words, rank_list, size_in_words

_MOST_TOLD = 6
_LEAST_ROWS = 3
_LEAST_LINE = 20
"""Columns for the ranks' last lines: others give way."""
_GIVEN_UP_FIRST = ("GPU", "MEMORY", "BEHIND", "AGE", "RATE")


@dataclass(frozen=True, slots=True)
class Frame:
    """The snapshot for rich: fills the width that there is, and no more than the height, or so many `rows` of ranks."""

    snapshot: Snapshot
    rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width, options.height or options.size.height
        height = height if self.rows is None else self.rows
        first, *more = map(Text, _head(self.snapshot))
        first.truncate(width, overflow="ellipsis")
        head = [first, *(line for text in more for line in text.wrap(console, width))]
        last = [f"{duration_in_words(each.ago_s)} ago: {each.line}" for each in self.snapshot.told[-_MOST_TOLD:]]
        told = [line for text in last for line in Text(text).wrap(console, width)]
        told = told[max(0, len(told) - min(_MOST_TOLD, max(0, height - len(head) - _LEAST_ROWS - 3))) :]
        room = max(1, height - len(head) - (len(told) + 1 if told else 0) - 2)
        yield from head
        if self.snapshot.ranks:
            yield Text("")
            yield _table(rows_that_fit(self.snapshot.ranks, room), width)
        if told:
            yield Text("")
            yield from told


def rows_that_fit(ranks: Sequence[RankRow], room: int) -> list[RankRow]:
    """Ranks that show the same as one row; with more rows than there is room for, those in the same step.

    If that isn't enough, the last row has all that are in front: the slowest ones matter.
    """
    rows = _merged(ranks, lambda row: (row.phase, row.step, row.line))
    if len(rows) > room:
        rows = _merged(ranks, lambda row: (row.phase, row.step))
        rows.sort(key=lambda row: (row.step is None, row.step, row.ranks))
    if len(rows) > room:
        rows = [*rows[: room - 1], _one(rows[room - 1 :])]
    return rows


def _merged(ranks: Sequence[RankRow], key: Callable[[RankRow], object]) -> list[RankRow]:
    groups: dict[object, list[RankRow]] = {}
    for row in ranks:
        groups.setdefault(key(row), []).append(row)
    return [_one(rows) for rows in groups.values()]


def _one(rows: Sequence[RankRow]) -> RankRow:
    newest = min(rows, key=lambda row: float("inf") if row.line_age_s is None else row.line_age_s)
    phases = {row.phase for row in rows}
    return replace(
        newest,
        ranks=tuple(sorted(rank for row in rows for rank in row.ranks)),
        phase=newest.phase if len(phases) == 1 else f"{len(phases)} phases",
        step=min((row.step for row in rows if row.step is not None), default=None),
        steps_per_s=min((row.steps_per_s for row in rows if row.steps_per_s is not None), default=None),
        behind=max((row.behind for row in rows if row.behind is not None), default=None),
        memory_bytes=max((row.memory_bytes for row in rows if row.memory_bytes is not None), default=None),
        gpus=max((row.gpus for row in rows), key=lambda gpus: sum(gpu.bytes or 0 for gpu in gpus)),
    )


def _head(job: Snapshot) -> Iterator[str]:
    attempt = "" if job.attempt is None else f", attempt {job.attempt + 1}"
    attempt += f" of {job.attempts_allowed}" if attempt and job.attempts_allowed > 1 else ""
    where = f" on {job.host}" if job.host is not None else ""
    since = "" if job.elapsed_s is None else f", {duration_in_words(job.elapsed_s)}"
    yield f"{job.run}{where}: {job.state}{attempt}{since}   {job.command}"
    yield in_words(job) or "no rank has started"
    if job.note is not None:
        yield job.note


def _cells(row: RankRow) -> dict[str, str]:
    gpus = [f"{gpu.gpu}:{_size(gpu.bytes)}" + (f" {gpu.busy}%" if gpu.busy is not None else "") for gpu in row.gpus[:2]]
    return {
        "RANK": rank_list(row.ranks),
        "PHASE": row.phase,
        "STEP": str(row.step) if row.step else "",
        "RATE": rate(row.steps_per_s),
        "BEHIND": str(row.behind) if row.behind else "",
        "MEMORY": _size(row.memory_bytes),
        "GPU": ", ".join(gpus) + ("…" if len(row.gpus) > 2 else ""),
        "AGE": "" if row.line_age_s is None else duration_in_words(row.line_age_s),
        "LAST LINE": row.line,
    }


def _size(count: int | None) -> str:
    return "" if count is None else size_in_words(count).replace("iB", "").replace(" ", "")


def _table(rows: Sequence[RankRow], width: int) -> Table:
    """Columns that show something; those that matter least give way to the last lines."""
    cells = [_cells(row) for row in rows]
    names = [name for name in cells[0] if any(line[name] for line in cells)]
    widths = {name: max(len(name), *(len(line[name]) for line in cells)) for name in names}
    for name in _GIVEN_UP_FIRST:
        used = sum(widths[each] + 2 for each in names if each != "LAST LINE")
        if name in names and used + _LEAST_LINE > width:
            names.remove(name)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand="LAST LINE" in names, header_style="bold")
    for name in names:
        last, right = name == "LAST LINE", name in ("STEP", "RATE", "BEHIND", "MEMORY", "AGE")
        table.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if right else "left",
            width=None if last else min(widths[name], width // 3),
            ratio=1 if last else None,
        )
    for line in cells:
        table.add_row(*(Text(line[name]) for name in names))
    return table
