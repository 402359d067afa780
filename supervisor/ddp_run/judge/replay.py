"""The verdict for a run's folder: its journal goes through the code that judged it live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddp_run.judge import judging
from ddp_run.judge.verdict import Verdict
from ddp_run.record import file_names, journal
from ddp_run.record.attempt_events import attempts_made
from ddp_run.record.events import Event


def replay(folder: Path) -> tuple[Verdict, tuple[Event, ...]]:
    """The verdict of a run's last attempt, and its journal. Raises OSError; ValueError where there was no attempt."""
    recorded = journal.load(folder / file_names.EVENTS)
    events = recorded.events
    made = attempts_made(events)
    if not made:
        raise ValueError(f"{folder / 'events.jsonl'} records no attempt")
    verdict = judging.final(judging.judged(folder, events, made[-1]), events)
    return replace(verdict, notes=(*verdict.notes, *recorded.notes)), events
