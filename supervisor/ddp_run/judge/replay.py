"""The verdict for a run's folder: its journal goes through the code that judged it live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddp_run.judge import judging, of_nodes
from ddp_run.judge.of_nodes import NodeReport
from ddp_run.judge.verdict import Verdict
from ddp_run.record import file_names, journal
from ddp_run.record.attempt_events import attempts_made
from ddp_run.record.events import Event, RunStarted


def replay(folder: Path) -> tuple[Verdict, tuple[Event, ...]]:
    """The verdict of a run's last attempt, and its journal. Raises OSError; ValueError where there was no attempt."""
    recorded = journal.load(folder / file_names.EVENTS)
    events = recorded.events
    made = attempts_made(events)
    if not made:
        raise ValueError(f"{folder / 'events.jsonl'} records no attempt")
    verdict = judging.judged(folder, events, made[-1])
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is not None and started.nodes > 1:
        ends = of_nodes.ends_of(events, made[-1])
        own = NodeReport(started.node_rank, started.host, str(folder), verdict, here=True, ends=ends)
        verdict = of_nodes.again(verdict, own, events)
    verdict = judging.final(verdict, events)
    return replace(verdict, notes=(*verdict.notes, *recorded.notes)), events
