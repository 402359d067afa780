"""Reads for the page what only a run's files have. A file that can't be read is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ddp_run.evidence.log_tail import read_tail
from ddp_run.evidence.model import LogText
from ddp_run.judge import catalogue
from ddp_run.judge.verdict import Verdict
from ddp_run.observe.from_outside import said_and_frames
from ddp_run.record import file_names
from ddp_run.record.attempt_events import attempts_made, of_attempt
from ddp_run.record.events import Event, RankStarted, StallSeen
from ddp_run.record.recorded_runs import NAME, recorded_run
from ddp_run.record.run_folder import open_run_file, read_object
from ddp_run.tell import catalogue_text
from ddp_run.tell.page.page import Known, LastLines, LogLine
from ddp_run.tell.page.timeline import Journal, journals, some_ranks
from ddp_run.tell.quotation import cut
from ddp_run.values.lines import neutral, neutral_text
from ddp_run.values.redaction import redact_lines

_FILE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 256 << 10
_END_BYTES: Final = 2 << 10
_LINES: Final = 30
_OTHERS_LINES: Final = 12
_MOST_LINES: Final = 120
_BEFORE_EVIDENCE: Final = 3
_LONGEST: Final = 400
_NUMBER: Final = re.compile(r"\d+")
_MOST_LOGS: Final = 24
_MOST_STACKS: Final = 40
_MOST_OPEN: Final = 4
_MOST_RUNS: Final = 40
"""How many earlier runs are looked at for one that succeeded."""
_PAGE_WIDTH: Final = 100


def known(
    verdict: Verdict,
    attempts: int | None,
    decision: str | None,
    folder: Path | None = None,
    parts: Sequence[tuple[Path, Sequence[Event]]] = (),
) -> Known:
    """What the page is made of. `folder`: the run's that the verdict is about; None for logs.

    `parts`: folder and events of the job's nodes.
    """
    cause = catalogue.cause_named(verdict.cause)
    about = "" if cause is None else catalogue_text.plain_page(cause, _PAGE_WIDTH)
    found = Known(verdict, attempts, decision, folder, advice_page=about)
    if not parts:
        return found
    folder = folder or parts[0][0]
    shared = journals([events for _folder, events in parts])
    plan = read_object(folder, file_names.PLAN)
    good = _last_good(folder, plan)
    stacks = [each for where, events in parts for each in said_and_frames(where, _last_starts(events).values())]
    return replace(
        found,
        parts=shared,
        logs=tuple(_logs(verdict, [*zip((each for each, _ in parts), shared, strict=True)])),
        stacks=tuple((neutral(said), redact_lines(frames)) for said, frames in stacks[:_MOST_STACKS]),
        plan=plan,
        good_plan=None if good is None else read_object(good, file_names.PLAN),
        good_run="" if good is None else neutral(good.name),
        facts=_text(folder, f"{file_names.NODES}/{file_names.FACTS}"),
    )


def _last_starts(events: Sequence[Event]) -> dict[int, RankStarted]:
    """The last start of each rank in the last attempt."""
    made = attempts_made(events)
    return {event.rank: event for event in of_attempt(events, made[-1]).of(RankStarted)} if made else {}


def _text(folder: Path, name: str) -> str:
    try:
        with open_run_file(folder, name) as file:
            return neutral_text(file.read(_FILE_BYTES).decode("utf-8", "replace"))
    except OSError:
        return ""


def _last_good(folder: Path, plan: dict[str, Any] | None) -> Path | None:
    """The newest run of the same script before this one in the same folder of runs that succeeded."""
    try:
        earlier = sorted(p for p in folder.parent.iterdir() if NAME.fullmatch(p.name) and p.name < folder.name)
    except OSError:
        return None
    for path in earlier[: -_MOST_RUNS - 1 : -1] if plan is not None else ():
        run = recorded_run(path)
        if run is not None and run.outcome == "succeeded" and [*run.script[:1]] == [(plan or {}).get("script")]:
            return run.folder
    return None


# ------------------------------------------------------------------------------------------- last lines


@dataclass(frozen=True, slots=True)
class _Log:
    """`rank`: None for one that another node has sent. `weight`: the largest come first; 0 if nothing blames it."""

    node: str
    rank: int | None
    name: str
    folder: Path
    source: str
    links: frozenset[str]
    weight: int

    def read(self, limit: int) -> LogText:
        """Its last `limit` bytes."""
        return read_tail(self.folder, self.source, limit, self.links)


def _logs(verdict: Verdict, parts: Sequence[tuple[Path, Journal]]) -> Iterator[LastLines]:
    """Those that matter first, each alone; of the others, those that differ only in numbers as one."""
    found = [log for folder, part in parts for log in _of_ranks(verdict, folder, part)]
    if len(parts) == 1:  # else each node's own folder has them
        found += _of_other_nodes(parts[0][0])
    groups: dict[object, list[_Log]] = {}
    for log in found:
        end = tuple(_NUMBER.sub("#", line) for line in log.read(_END_BYTES).lines[-_OTHERS_LINES:])
        if any(line.strip() for line in end):
            groups.setdefault(log.source if log.weight else (log.node, log.name, end), []).append(log)
    order = sorted(groups.values(), key=lambda logs: (-logs[0].weight, len(logs)))
    for place, logs in enumerate(order[:_MOST_LOGS]):
        log, ranks = logs[0], [each.rank for each in logs if each.rank is not None]
        who = ": ".join(filter(None, (log.node, some_ranks(ranks) if ranks else "")))
        opened = place < _MOST_OPEN and log.weight > 0
        lines = _last_lines(verdict, log)
        yield LastLines(f"{who}, {log.name}", neutral(log.source), lines, opened, alike=len(logs) > 1)


def _of_ranks(verdict: Verdict, folder: Path, part: Journal) -> Iterator[_Log]:
    first = verdict.first_failure.rank if verdict.first_failure is not None else None
    culprits = {rank for event in part.events if isinstance(event, StallSeen) for rank in event.culprits}
    quoted = {quote.source for quote in verdict.evidence}
    starts = _last_starts(part.events)
    links = frozenset(link for start in starts.values() for link in start.links)
    for rank, start in sorted(starts.items()):
        for name in file_names.OF_A_STREAM.values():
            source = f"{start.folder}/{name}"
            weight = 2 * (source in quoted) + (rank == first or rank in culprits)
            yield _Log(part.node, rank, name, folder, source, links, weight)


def _of_other_nodes(folder: Path) -> Iterator[_Log]:
    for path in sorted(folder.glob(f"{file_names.NODES}/node_*/{file_names.STDERR_END}"))[:_MOST_LOGS]:
        node, name = neutral(path.parent.name), "end of the named rank's stderr"
        yield _Log(node, None, name, folder, str(path.relative_to(folder)), frozenset(), 1)


def _last_lines(verdict: Verdict, log: _Log) -> tuple[LogLine, ...]:
    """The last lines, and those since the first that the verdict quotes."""
    text = log.read(_READ_BYTES)
    places = {(quote.source, quote.line) for quote in verdict.evidence if quote.line is not None}
    texts = {quote.text for quote in verdict.evidence} if log.rank is None else set()
    evidence = [(log.source, text.number(index)) in places or line in texts for index, line in enumerate(text.lines)]
    begin = max(0, len(text.lines) - (_LINES if log.weight else _OTHERS_LINES))
    if True in evidence:
        begin = min(begin, max(0, evidence.index(True) - _BEFORE_EVIDENCE))
    clean = redact_lines([*map(neutral, text.lines[begin : begin + _MOST_LINES])])
    return tuple(
        LogLine(text.number(index), cut(line, _LONGEST), evidence[index]) for index, line in enumerate(clean, begin)
    )
