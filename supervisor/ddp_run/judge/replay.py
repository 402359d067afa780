"""Computes the verdict for a run's folder: replays its journal through the code that judged it live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddp_run.judge import judging, of_nodes
from ddp_run.judge.of_nodes import Ends, NodeReport
from ddp_run.judge.verdict import Verdict
from ddp_run.record import file_names, journal
from ddp_run.record.attempt_events import (
    after_retry_was_decided,
    attempts_made,
    ended_before_retry,
    of_attempt,
    since_waiting,
)
from ddp_run.record.events import Event, RunStarted


def replay(folder: Path) -> tuple[Verdict, tuple[Event, ...]]:
    """Return the verdict and journal of a run's last attempt. Raises OSError, or ValueError if there was none."""
    recorded = journal.load(folder / file_names.EVENTS)
    events = recorded.events
    made = attempts_made(events)
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    waited = since_waiting(events)
    if waited and started is not None:
        verdict = _agreed(folder, started, judging.as_spare(waited), Ends(), waited)
        return judging.with_time(replace(verdict, notes=(*verdict.notes, *recorded.notes)), events), events
    if not made:
        raise ValueError(f"{folder / 'events.jsonl'} records no attempt")
    verdict = judging.judged(folder, events, made[-1])
    if started is None or started.nodes == 1:
        verdict = judging.final(verdict, events)
    else:
        part = of_attempt(events, made[-1])
        ends = of_nodes.ends_of(events, made[-1])
        verdict = _agreed(folder, replace(started, node_rank=part.node_rank), verdict, ends, part.events)
        verdict = of_nodes.noted(verdict, events)
        if ended_before_retry(events) is not None:
            verdict = judging.final(verdict, events)
            verdict = _agreed(folder, started, verdict, Ends(), after_retry_was_decided(events))
            verdict = of_nodes.noted(verdict, events)
    return judging.with_time(replace(verdict, notes=(*verdict.notes, *recorded.notes)), events), events


def _agreed(folder: Path, run: RunStarted, verdict: Verdict, ends: Ends, said: Sequence[Event]) -> Verdict:
    """Return the job's verdict from this node's own and the other nodes' reports."""
    own = NodeReport(run.node_rank, run.host, str(folder), verdict, here=True, ends=ends)
    return of_nodes.again(verdict, own, said)
