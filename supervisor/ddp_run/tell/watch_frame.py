"""What `ddp-run watch` shows: a snapshot of a job, as one screen or as JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ddp_run.values.words import duration_in_words, rank_list, size_in_words

_MOST_TOLD = 6
_LEAST_ROWS = 3
_LEAST_LINE = 20
"""Columns for the ranks' last lines: others give way."""
_GIVEN_UP_FIRST = ("GPU", "MEMORY", "BEHIND", "AGE", "RATE")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A rank's share of a GPU: `bytes` that it holds. `busy`: the whole GPU's use in per cent."""

    gpu: int
    bytes: int | None
    busy: int | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank, or several that are alike: then the slowest rate, the largest memory, the newest line. None: unknown.

    `behind`: steps behind the first rank. `line_age_s`: seconds since it wrote anything.
    """

    ranks: tuple[int, ...]
    phase: str
    step: int | None = None
    steps_per_s: float | None = None
    behind: int | None = None
    collectives: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    line_age_s: float | None = None
    line: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the program itself prints: `done` of `total`. `eta_s`: seconds until then, None as long as unknown."""

    done: int
    total: int
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank that the others wait for, and how it shows."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class Told:
    """A line that ddp-run has told, and how long ago."""

    ago_s: float
    line: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job at one moment. None: unknown. Texts can't move a terminal's cursor.

    `state`: as in `ddp-run runs`. `attempt`: counted from 0. `note`: why something isn't known. `started`: seconds
    since the epoch. `version`: ddp-run's. `restarts`: by torch's agent in this attempt. `stalls`: how many were
    reported so far. `stalled_s`: how long the one that lasts has.
    """

    time: str
    run: str
    folder: str
    host: str | None
    command: str
    state: str
    attempt: int | None
    attempts_allowed: int
    elapsed_s: float | None
    world_size: int | None
    steps_per_s: float | None
    slowest: Slowest | None
    progress: Progress | None
    ranks: tuple[RankRow, ...]
    told: tuple[Told, ...]
    note: str | None = None
    exit_code: int | None = None
    started: float | None = None
    version: str | None = None
    node_rank: int | None = None
    restarts: int | None = None
    stalls: int = 0
    stalled_s: float | None = None
    cause: str | None = None

    def as_json(self) -> dict[str, object]:
        """The object of `--json`, with a row for each rank."""
        found = asdict(self)
        return {**found, "ranks": [{"rank": row.pop("ranks")[0], **row} for row in found["ranks"]]}


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
    parts = [] if job.world_size is None else [f"{job.world_size} rank{'s' * (job.world_size > 1)}"]
    steps = [row.step for row in job.ranks if row.step]
    parts += [f"step {min(steps)}"] if steps else []
    parts += [_rate(job.steps_per_s, "steps/")] if job.steps_per_s is not None else []
    parts += [f"slowest: rank {job.slowest.rank} ({job.slowest.why})"] if job.slowest is not None else []
    if job.progress is not None:
        eta_s = job.progress.eta_s
        left = "" if eta_s is None else f", {duration_in_words(eta_s)} left"
        parts.append(f"printed: {job.progress.done}/{job.progress.total}{left}")
    yield ", ".join(parts) or "no rank has started"
    if job.note is not None:
        yield job.note


def _cells(row: RankRow) -> dict[str, str]:
    gpus = [f"{gpu.gpu}:{_size(gpu.bytes)}" + (f" {gpu.busy}%" if gpu.busy is not None else "") for gpu in row.gpus[:2]]
    return {
        "RANK": rank_list(row.ranks),
        "PHASE": row.phase,
        "STEP": str(row.step) if row.step else "",
        "RATE": _rate(row.steps_per_s),
        "BEHIND": str(row.behind) if row.behind else "",
        "MEMORY": _size(row.memory_bytes),
        "GPU": ", ".join(gpus) + ("…" if len(row.gpus) > 2 else ""),
        "AGE": "" if row.line_age_s is None else duration_in_words(row.line_age_s),
        "LAST LINE": row.line,
    }


def _rate(per_s: float | None, unit: str = "/") -> str:
    """`2.1/s`, `3/min`; with a unit `2.1 steps/s`."""
    if per_s is None:
        return ""
    number, per = (f"{60 * per_s:.2g}", "min") if 0 < per_s < 0.1 else (f"{per_s:.3g}", "s")
    return f"{number} {unit}{per}" if unit != "/" else f"{number}/{per}"


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
