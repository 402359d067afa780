"""What the page shows, from values: events, the verdict, lines of logs, plans. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ddp_run.judge.verdict import Verdict
from ddp_run.record.attempt_events import attempts_made, of_attempt
from ddp_run.record.events import (
    NodesCompared,
    ProgressSampled,
    Rank,
    RankStarted,
    RunStarted,
    StallSeen,
    StragglerSeen,
)
from ddp_run.record.journal import iso
from ddp_run.record.time_spent import TimeSpent, time_spent
from ddp_run.tell import verdict_file, verdict_text
from ddp_run.tell.page.drawing import Chart, charts
from ddp_run.tell.page.failure_order import Failure, failures, part_of
from ddp_run.tell.page.timeline import Attempt, Journal, attempts, some_ranks
from ddp_run.tell.told import told
from ddp_run.values.lines import neutral
from ddp_run.values.words import duration_in_words

_MOST_ROWS: Final = 40
_MOST_VALUE: Final = 300
_SPENT_ON: Final = {
    "start": "start-up",
    "init": "init_process_group to the first optimizer step",
    "steps": "optimizer steps",
    "other": "running, without optimizer steps",
    "waiting": "waiting for a slow rank",
    "stalled": "no progress",
    "after_failure": "after the first failure or the signal to stop",
    "shutdown": "shutting down",
    "between_attempts": "between attempts",
}
"""By the names of `RankSeconds`."""


@dataclass(frozen=True, slots=True)
class Known:
    """All that the page is made of. `plan`, `good_plan`: the objects of plan.json, of this run and of the last good one
    in the same folder of runs; empty if there is none."""

    verdict: Verdict
    attempts: int | None
    decision: str | None
    folder: Path | None
    parts: tuple[Journal, ...] = ()
    logs: tuple[LastLines, ...] = ()
    stacks: tuple[tuple[str, Sequence[str]], ...] = ()
    """What ranks with one stack do, in words, and its frames."""
    plan: Mapping[str, Any] | None = None
    good_plan: Mapping[str, Any] | None = None
    good_run: str = ""
    facts: str = ""
    """The comparison of the nodes, as `nodes/facts.txt` has it."""
    advice_page: str = ""
    """More on the cause, as `ddp-run rules` prints it."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """`number`: in its file, from 1; None if it wasn't counted. `evidence`: the verdict quotes it."""

    number: int | None
    text: str
    evidence: bool


@dataclass(frozen=True, slots=True)
class LastLines:
    """The last lines of a file. `open`: shown at once. `alike`: those of other ranks differ only in numbers."""

    who: str
    source: str
    lines: tuple[LogLine, ...]
    open: bool
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Ranks that stood at the same place when they were last seen."""

    who: str
    phase: str
    steps: int
    collectives: int
    note: str


@dataclass(frozen=True, slots=True)
class Row:
    """A name with one value or two, and where they come from."""

    name: str
    value: str
    other: str


@dataclass(frozen=True, slots=True)
class Page:
    """The page's parts, from top to bottom; those that are empty are left out. Some are as they are known."""

    known: Known
    title: str
    outcome: str
    block: str
    markdown: str
    facts: tuple[tuple[str, str], ...]
    advice: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    failures: tuple[Failure, ...]
    moment: tuple[float, str] | None
    """When it happened, in seconds since the job's start, and what that is."""
    charts: tuple[Chart, ...]
    missing: str
    """Which nodes' ranks aren't shown; empty if all are."""
    told: tuple[str, ...]
    standing: tuple[Standing, ...]
    nodes: tuple[str, ...]
    differences: tuple[Row, ...] | None
    """From the last good run; None if there is none to compare with."""
    options: tuple[Row, ...]
    defaults: tuple[Row, ...]
    environment: tuple[Row, ...]
    agent: str
    time_went: tuple[tuple[str, float], ...]
    """What, and how many seconds of all ranks together."""
    lost: str


def page_of(known: Known) -> Page:
    """The page."""
    verdict, parts, plan = known.verdict, known.parts, known.plan or {}
    block = verdict_text.verdict_block(
        verdict, folder=known.folder or Path(), attempts=known.attempts or 1, decision=known.decision
    )
    title = verdict_text.headline(verdict, known.attempts or 1)
    line = verdict_file.verdict_line(verdict, attempts=known.attempts, folder=known.folder)
    block = "\n".join((block or title, line))
    shown = attempts(parts, verdict)
    facts = tuple((name, neutral(value)) for name, value in _facts(known, parts, plan))
    options = [*_settings(plan.get("options"))]
    first = verdict.first_failure
    stalls = [event for part in parts for event in part.events if isinstance(event, StallSeen)]
    culprits = {rank for stall in stalls[-1:] for rank in stall.culprits}
    slow = {rank for part in parts for e in part.events if isinstance(e, StragglerSeen) for rank in e.late}
    spent = [each for part in parts if (each := time_spent(part.events)) is not None]
    named = {*culprits, *slow, *(() if first is None or first.rank is None else (first.rank,))}
    return Page(
        known,
        title=title,
        outcome=verdict.outcome or "unknown",
        block=block,
        markdown=_markdown(title, block, facts),
        facts=facts,
        advice=tuple(neutral(line) for text in verdict.advice for line in text.splitlines()),
        attempts=shown,
        failures=failures(parts, verdict),
        moment=_moment(verdict, parts, shown),
        charts=charts(parts, named),
        missing=_missing(parts),
        told=tuple(_told(parts)),
        standing=tuple(_standing(parts, culprits)[:_MOST_ROWS]) if stalls else (),
        nodes=tuple(_nodes(parts)),
        differences=tuple(_differences(plan, known.good_plan)) if plan and known.good_plan else None,
        options=tuple(row for row in options if row.other != "default"),
        defaults=tuple(row for row in options if row.other == "default"),
        environment=tuple(_settings(plan.get("environment"))),
        agent=_words(plan.get("agent")),
        time_went=tuple(_time_went(spent)),
        lost="; ".join(dict.fromkeys(each.lost_words for each in spent if each.lost_words is not None)),
    )


def _time_went(spent: Sequence[TimeSpent]) -> Iterator[tuple[str, float]]:
    """Of all nodes that are known."""
    nodes = [asdict(each.rank_seconds) for each in spent]
    for name, label in _SPENT_ON.items():
        if seconds := sum(each[name] or 0.0 for each in nodes):
            yield label, seconds


def _missing(parts: Sequence[Journal]) -> str:
    nodes = max((event.nodes for part in parts for event in part.events if isinstance(event, RunStarted)), default=1)
    if len(parts) >= nodes:
        return ""
    return f"The ranks of {len(parts)} of {nodes} nodes. For all: ddp-run report with the folders of all nodes."


def _moment(verdict: Verdict, parts: Sequence[Journal], shown: Sequence[Attempt]) -> tuple[float, str] | None:
    since = [part.seconds(event.since) for part in parts for event in part.events if isinstance(event, StallSeen)]
    if verdict.outcome == "hung" and since:
        return since[-1], "no progress since"
    views = shown[-1].views[:1] if shown else ()
    marks = [mark.at for view in views for lane in view.lanes for mark in lane.marks if mark.first]
    return (marks[0], part_of(verdict)) if marks else None


def _markdown(title: str, block: str, facts: Sequence[tuple[str, str]]) -> str:
    """For an issue. A fence longer than any in the text keeps the text in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", block)), default=0))
    about = "".join(f"- {name}: {value}\n" for name, value in facts)
    return f"### {title}\n\n{fence}text\n{block}\n{fence}\n\n{about}"


def _facts(known: Known, parts: Sequence[Journal], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    runs = [event for part in parts for event in part.events if isinstance(event, RunStarted)]
    ranks = [event for part in parts for event in part.events if isinstance(event, RankStarted)]
    for run in runs[:1]:
        yield "run", run.run_id
        end = max(part.seconds(part.events[-1].at) for part in parts)
        yield "started", f"{iso(min(each.wall_ns for each in runs))[:19]} UTC, took {duration_in_words(end)}"
        yield ("host" if len(runs) == 1 else "hosts"), ", ".join(dict.fromkeys(each.host for each in runs))
        world = f"{ranks[-1].world_size}" if ranks else "none started"
        yield "ranks", world + (f", on {run.nodes} nodes" if run.nodes > 1 else "")
        made = max(len(attempts_made(part.events)) for part in parts)
        yield "attempts", f"{made if known.attempts is None else known.attempts} of {run.max_retries + 1} allowed"
    if plan:
        yield "command", _words(plan.get("command"))
        versions = plan.get("versions")
        if isinstance(versions, dict):
            yield "versions", ", ".join(f"{name} {_shown(value)}" for name, value in versions.items())
    if known.folder is not None:
        yield "folder", str(known.folder)


# --------------------------------------------------------------------------------- where the ranks stood


def _told(parts: Sequence[Journal]) -> Iterator[str]:
    """What ddp-run told of stalls and slow ranks, with the time."""
    for part in parts:
        lines = [(part.seconds(event.at), line) for event in part.events for _level, line in told(event)]
        for at, line in lines[-_MOST_ROWS:]:
            yield f"{at:9.1f} s  {part.node + ': ' if part.node else ''}{neutral(line)}"


def _standing(parts: Sequence[Journal], culprits: set[Rank]) -> list[Standing]:
    """The ranks at the last look at them, the fewest first; empty if all stood at one place."""
    found: dict[tuple[str, int, int, str], list[int]] = {}
    for part in parts:
        made = attempts_made(part.events)
        looks = of_attempt(part.events, made[-1]).of(ProgressSampled) if made else []
        for look in looks[-1:]:
            calls = look.calls or ("",) * len(look.ranks)
            each = zip(look.ranks, look.phases, look.steps, look.collectives, calls, strict=True)
            for rank, phase, steps, collectives, call in each:
                note = ", ".join(filter(None, (neutral(call), "others wait for it" if rank in culprits else "")))
                found.setdefault((neutral(phase), steps, collectives, note), []).append(rank)
    if len(found) < 2:
        return []
    return [Standing(some_ranks(ranks), *where) for where, ranks in sorted(found.items(), key=lambda e: len(e[1]))]


# ------------------------------------------------------------------------------------------- differences


def _nodes(parts: Sequence[Journal]) -> Iterator[str]:
    compared = [event for part in parts for event in part.events if isinstance(event, NodesCompared)]
    for event in compared[-1:]:
        yield from (f"often breaks jobs: {line}" for line in event.breaking)
        yield from event.differing


def _settings(given: object) -> Iterator[Row]:
    for name, each in given.items() if isinstance(given, dict) else ():
        if isinstance(each, dict):
            now = f" -> {_shown(each['resolved'])}" if "resolved" in each else ""
            yield Row(_shown(name), _shown(each.get("value")) + now, _shown(each.get("origin")))


def _differences(plan: Mapping[str, Any], good: Mapping[str, Any]) -> Iterator[Row]:
    """What this run's plan says differently from another's."""
    mine, others = _compared(plan), _compared(good)
    for name in dict.fromkeys((*mine, *others)):
        if mine.get(name, "-") != others.get(name, "-"):
            yield Row(name, mine.get(name, "-"), others.get(name, "-"))


def _compared(plan: Mapping[str, Any]) -> dict[str, str]:
    found = {"script": _shown(plan.get("script")), "arguments": _shown(plan.get("script_args"))}
    node = plan.get("node")
    for about in ("versions", "options", "environment"):
        values = plan.get(about)
        for name, each in values.items() if isinstance(values, dict) else ():
            found[_shown(name)] = _shown(each.get("value") if isinstance(each, dict) else each)
    facts = node.get("facts") if isinstance(node, dict) else None
    return found | {_shown(name): _shown(each) for name, each in facts.items()} if isinstance(facts, dict) else found


def _words(value: object) -> str:
    """A command line of plan.json, however long; empty if there is none."""
    return shlex.join(neutral(str(word)) for word in value) if isinstance(value, list) else ""


def _shown(value: object) -> str:
    """A value of plan.json in one line."""
    if value is None or value in ("", []):
        return "-"
    text = neutral(" ".join(map(str, value)) if isinstance(value, list) else str(value))
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}… ({len(text)} characters)"
