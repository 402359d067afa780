"""The verdict of a run that is over, from its folder: the journal through the same code that ran live."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ddp_run import diagnose, evidence, journal, verdict_file, verdict_text
from ddp_run.events import AttemptEnded, AttemptStarted, Event, RunStarted
from ddp_run.verdict import Verdict


def replay(folder: Path) -> tuple[Verdict, tuple[Event, ...]]:
    """The verdict of a run's last attempt, and its journal. Raises OSError; ValueError where there was no attempt."""
    events = tuple(journal.read(folder / "events.jsonl"))
    started = [event.attempt for event in events if isinstance(event, AttemptStarted)]
    if not started:
        raise ValueError(f"{folder / 'events.jsonl'} tells of no attempt")
    return diagnose.judge(evidence.gather(folder, events, started[-1])), events


def document(folder: Path) -> dict[str, object]:
    """The object of verdict.json, computed again."""
    verdict, events = replay(folder)
    started = [event for event in events if isinstance(event, AttemptStarted)]
    run = next(event for event in events if isinstance(event, RunStarted))
    reasons = [event.reason for event in events if isinstance(event, AttemptEnded)]
    return verdict_file.as_json(
        verdict,
        run_id=run.run_id,
        attempts=len(started),
        folder=str(folder),
        decision="stop",
        decision_reason=reasons[-1] if reasons else "ddp-run did not live to decide",
        wall_at=journal.clock(events),
    )


def explain_folder(folder: Path, *, as_json: bool, width: int, colour: bool) -> int:
    """Print the verdict; the exit code is 0 wherever there is one."""
    folder = folder.resolve()
    try:
        if as_json:
            sys.stdout.write(json.dumps(document(folder), indent=2) + "\n")
            return 0
        verdict, events = replay(folder)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"ddp-run: {folder} is not the folder of a run: {error}\n")
        return 2
    attempts = sum(isinstance(event, AttemptStarted) for event in events)
    if verdict.outcome != "succeeded":
        reasons = [event.reason for event in events if isinstance(event, AttemptEnded)]
        sys.stdout.write(
            verdict_text.verdict_block(
                verdict,
                colour=colour,
                width=width,
                folder=folder,
                attempt=attempts - 1,
                attempts=attempts,
                decision=f"not retried: {reasons[-1]}" if reasons else None,
            )
            + "\n"
        )
    sys.stdout.write(verdict_text.verdict_line(verdict, attempts=attempts, folder=folder) + "\n")
    return 0
