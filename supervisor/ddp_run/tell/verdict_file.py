"""Writes verdict.json, schema 1. What is not known is null."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.record.events import MonotonicNs
from ddp_run.values.lines import neutral_text
from ddp_run.values.private_files import open_private


def as_json(
    verdict: Verdict,
    *,
    run_id: str | None = None,
    attempts: int | None = None,
    folder: str | None = None,
    decision: str = "stop",
    decision_reason: str | None = None,
    wall_at: Callable[[MonotonicNs], str | None] = lambda _stamp: None,
) -> dict[str, Any]:
    """The object of verdict.json. `wall_at` turns a stamp into an ISO 8601 date in UTC; `decision` is stop or retry.
    What is left out is not known: a log has no run, and no clock.

    No text in it can move the cursor of whoever prints it; only the folder's name is left as it is.
    """
    content = {
        "schema": 1,
        "run_id": run_id,
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "attempts": attempts,
        "restarts": verdict.restarts,
        "cause": verdict.cause,
        "code": verdict.code,
        "title": verdict.title,
        "confidence": verdict.confidence,
        "phase": verdict.phase,
        "step": verdict.step,
        "call": verdict.call,
        "first_failure": _first_failure(verdict.first_failure, wall_at),
        "evidence": [{"source": q.source, "line": q.line, "text": q.text} for q in verdict.evidence],
        "collateral": [
            {"rank": c.rank, "exit_code": c.exit_code, "signal": c.signal, "reason": c.reason}
            for c in verdict.collateral
        ],
        "notes": list(verdict.notes),
        "advice": list(verdict.advice),
        "retry": {"decision": decision, "reason": decision_reason},
    }
    return {**{key: _shown(value) for key, value in content.items()}, "folder": folder}


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return neutral_text(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return {key: _shown(each) for key, each in value.items()} if isinstance(value, dict) else value


def write(path: Path, content: dict[str, Any]) -> None:
    """Write the file whole or not at all. Raises OSError where the folder is full or read-only."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        opened = open_private(unfinished, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK)
        with open(opened, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _first_failure(first: FirstFailure | None, wall_at: Callable[[MonotonicNs], str | None]) -> dict[str, Any] | None:
    if first is None:
        return None
    raised = first.exception
    return {
        "rank": first.rank,
        "local_rank": first.local_rank,
        "node_rank": first.node_rank,
        "host": first.host,
        "pid": first.pid,
        "exit_code": first.exit_code,
        "signal": first.signal,
        "time": None if first.at is None else wall_at(first.at),
        "exception": None
        if raised is None
        else {"type": raised.type, "message": raised.message, "file": raised.file, "line": raised.line},
        "log": first.log,
    }
