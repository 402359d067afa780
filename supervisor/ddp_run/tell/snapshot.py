"""A job at one moment: what `watch`, `--metrics` and `--status` show, and rates between such moments. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import final

from ddp_run.values.words import duration_in_words


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


def in_words(job: Snapshot) -> str:
    """Its progress in one line: `8 ranks, step 1200, 3.2 steps/s, slowest: rank 5 (4 steps behind)`."""
    parts = [] if job.world_size is None else [f"{job.world_size} rank{'s' * (job.world_size > 1)}"]
    steps = [row.step for row in job.ranks if row.step]
    parts += [f"step {min(steps)}"] if steps else sorted({row.phase for row in job.ranks})
    parts += [rate(job.steps_per_s, "steps/")] if job.steps_per_s is not None else []
    parts += [f"slowest: rank {job.slowest.rank} ({job.slowest.why})"] if job.slowest is not None else []
    if job.progress is not None:
        eta_s = job.progress.eta_s
        left = "" if eta_s is None else f", {duration_in_words(eta_s)} left"
        parts.append(f"printed: {job.progress.done}/{job.progress.total}{left}")
    return ", ".join(parts)


def rate(per_s: float | None, unit: str = "/") -> str:
    """`2.1/s`, `3/min`; with a unit `2.1 steps/s`."""
    if per_s is None:
        return ""
    number, per = (f"{60 * per_s:.2g}", "min") if 0 < per_s < 0.1 else (f"{per_s:.3g}", "s")
    return f"{number} {unit}{per}" if unit != "/" else f"{number}/{per}"


# ----------------------------------------------------------------------------------------- several nodes

_MOST_HOSTS = 4
BEHIND = 2
"""The boards aren't read at one moment: a difference of one step means nothing."""


def joined(own: Snapshot, others: Sequence[Snapshot]) -> Snapshot:
    """One snapshot: of the given node, with the ranks of all. What waits for whom is as the node says that knows."""
    every = (own, *others)
    rows = sorted((row for each in every for row in each.ranks), key=lambda row: row.ranks)
    first = max((row.step for row in rows if row.step is not None), default=0)
    ranks = tuple(replace(row, behind=None if row.behind is None else first - (row.step or 0)) for row in rows)
    rates = [each.steps_per_s for each in every if each.steps_per_s is not None]
    notes = dict.fromkeys(each.note for each in every if each.note is not None)
    hosts = dict.fromkeys(each.host for each in every if each.host is not None)
    told = {each.line: each for one in every for each in one.told}
    return replace(
        own,
        host=", ".join(hosts) if len(hosts) <= _MOST_HOSTS else f"{len(hosts)} hosts",
        steps_per_s=min(rates, default=None),
        slowest=_slowest(every, ranks),
        progress=next((each.progress for each in every if each.progress is not None), None),
        ranks=ranks,
        told=tuple(sorted(told.values(), key=lambda each: -each.ago_s)),
        note="; ".join(notes) or None,
        stalls=max(each.stalls for each in every),
        stalled_s=max((each.stalled_s for each in every if each.stalled_s is not None), default=None),
    )


def _slowest(every: Sequence[Snapshot], ranks: Sequence[RankRow]) -> Slowest | None:
    said = [each.slowest for each in every if each.slowest is not None]
    waited_for = [each for each in said if not each.why.endswith("steps behind")]
    if waited_for:
        return waited_for[0]
    last = max(ranks, key=lambda row: row.behind or 0, default=None)
    if last is None or (last.behind or 0) < BEHIND:
        return None
    return Slowest(last.ranks[0], f"{last.behind} steps behind")


# -------------------------------------------------------------------------------------------------- rates

_LEAST_S = 3.0
"""Over less time a rate says little."""
_WINDOW_S = 10.0
_COUNTS = 5
_LONGEST_S = 60.0
"""A rate is over `_WINDOW_S` and as much longer as `_COUNTS` take, but no longer than this."""
_OF = re.compile(r"(?<![\w./-])(\d{1,9}) ?/ ?(\d{1,9})(?![\d./-])")
_TQDM = re.compile(r"[ |](\d{1,9})/(\d{1,9}) \[[\d:]+<([\d:]{4,12}),")
"""tqdm/std.py, `format_meter`: it has its own estimate."""


@final
@dataclass
class Rate:
    """How fast a counter grows. `at` is in seconds of any clock that all calls share."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def feed(self, at: float, count: int) -> None:
        """What it showed at a time; times before the last one are left out. A counter that falls starts again."""
        if self._seen and at <= self._seen[-1][0]:
            return
        if not count or (self._seen and count < self._seen[-1][1]):
            self._seen.clear()
        if count:
            self._seen.append((at, count))
        while len(self._seen) > 2:
            seconds, counts = at - self._seen[1][0], count - self._seen[1][1]
            if seconds < _WINDOW_S or (counts < _COUNTS and seconds < _LONGEST_S):
                break
            self._seen.popleft()

    @property
    def per_s(self) -> float | None:
        """Over the last seconds, or between the last two times; None until a few seconds have been seen."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < _LEAST_S:
            return None
        (begin, before), (end, now) = self._seen[0], self._seen[-1]
        return round((now - before) / (end - begin), 3)


@final
@dataclass
class PrintedProgress:
    """What a program prints of how much it has done."""

    _total: int | None = None
    _rate: Rate = field(default_factory=Rate)

    def look(self, at: float, lines: Sequence[str]) -> Progress | None:
        """The progress that the last of these lines with any shows; None if none does, or it does not move."""
        for line in reversed(lines):
            bars = _TQDM.findall(line)
            if bars:
                done, total, left = bars[-1]
                return Progress(int(done), int(total), _seconds(left))
            found = [(int(done), int(total)) for done, total in _OF.findall(line) if 0 < int(total) >= int(done)]
            if found:
                return self._moving(at, *found[-1])
        return None

    def _moving(self, at: float, done: int, total: int) -> Progress | None:
        """Not a date such as `11/27`, which does not grow."""
        if total != self._total:
            self._total, self._rate = total, Rate()
        self._rate.feed(at, done)
        per_s = self._rate.per_s
        return Progress(done, total, round((total - done) / per_s, 1)) if per_s else None


def _seconds(clock: str) -> float:
    """`1:02:03` in seconds."""
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part or 0)
    return float(total)


# ------------------------------------------------------------------------------------------------- metrics

_Sample = tuple[Mapping[str, object], float]
_Family = tuple[str, str, str, Sequence[_Sample]]
"""Name, type, help, and the samples: labels and value."""


def metrics_text(job: Snapshot, name: str, *, up: bool, now_s: float) -> str:
    """As Prometheus metrics, for node_exporter's textfile collector. What isn't known is left out.

    `name` tells this job's series from those of other files on the host: the label `job_name`. `now_s`: seconds since
    the epoch. `up`: ddp-run still runs. Source: prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4.
    """
    lines: list[str] = []
    for family, kind, meaning, samples in _families(job, up=up, now_s=now_s):
        if samples:
            lines += [f"# HELP ddp_run_{family} {meaning}", f"# TYPE ddp_run_{family} {kind}"]
            lines += [f"ddp_run_{family}{_labels({'job_name': name, **each})} {value!r}" for each, value in samples]
    return "\n".join(lines) + "\n"


def _families(job: Snapshot, *, up: bool, now_s: float) -> Iterator[_Family]:
    about = {"version": job.version, "node_rank": job.node_rank}
    yield "info", "gauge", "The ddp-run that writes this file.", [(about, 1)]
    yield "up", "gauge", "Whether ddp-run is running.", [({}, int(up))]
    yield "updated_timestamp_seconds", "gauge", "When this file was written.", _one(round(now_s, 3))
    yield "start_time_seconds", "gauge", "When the run started.", _one(job.started)
    yield "world_size", "gauge", "Ranks of the job, on all nodes.", _one(job.world_size)
    attempts = None if job.attempt is None else job.attempt + 1
    yield "attempts_total", "counter", "Attempts that were started.", _one(attempts)
    restarts = "Restarts of the ranks by torch's agent in this attempt (--max-restarts)."
    yield "agent_restarts_total", "counter", restarts, _one(job.restarts)
    yield "stalls_total", "counter", "Times that no rank made progress and ddp-run said so.", _one(job.stalls)
    if up:
        stalled = "How long no rank has made progress, once ddp-run says so; else 0."
        yield "stalled_seconds", "gauge", stalled, _one(job.stalled_s or 0.0)
        yield from _of_ranks(job.ranks)
        return
    yield "exit_code", "gauge", "What ddp-run exited with.", _one(job.exit_code)
    result = {"outcome": "killed" if job.state == "running" else job.state, "cause": job.cause or ""}
    yield "result_info", "gauge", "How the run ended; causes as in ddp-run rules.", [(result, 1)]


def _of_ranks(rows: Sequence[RankRow]) -> Iterator[_Family]:
    # Of one that has ended, steps are known less exactly; a counter that falls would look like a new start.
    going = [row for row in rows if row.behind is not None]
    for name, kind, meaning, values in (
        ("steps_total", "counter", "Optimizer steps of a rank.", [row.step for row in going]),
        ("steps_per_second", "gauge", "Optimizer steps per second of a rank.", [row.steps_per_s for row in going]),
        ("steps_behind", "gauge", "Steps that a rank is behind the first of this node.", [row.behind for row in going]),
    ):
        found = [({"rank": row.ranks[0]}, each) for row, each in zip(going, values, strict=True) if each is not None]
        yield f"rank_{name}", kind, meaning, found
    # `exit 3` is cut: a label has few values.
    phases = [({"rank": row.ranks[0], "phase": row.phase.partition(" ")[0]}, 1) for row in rows]
    yield "rank_phase", "gauge", "The phase that a rank of this node is in.", phases


def _one(value: float | None) -> list[_Sample]:
    return [] if value is None else [({}, value)]


def _labels(labels: Mapping[str, object]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(each)}"' for name, each in labels.items() if each is not None) + "}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
