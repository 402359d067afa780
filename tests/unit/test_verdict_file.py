"""verdict.json keeps its schema, and is there whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.record.events import ExceptionInfo, LocalRank, MonotonicNs, Rank
from ddp_run.tell import verdict_file


def document(verdict: Verdict) -> dict[str, object]:
    return verdict_file.as_json(
        verdict,
        run_id="r",
        attempts=2,
        folder="/logs/r",
        decision="stop",
        decision_reason="why",
        wall_at=lambda at: f"date {at}",
    )


def test_schema_1(tmp_path: Path) -> None:
    raised = ExceptionInfo("ValueError", "b\udce4d", "train.py", 42, "f", "text")
    first = FirstFailure(
        Rank(1), LocalRank(1), 0, "node-a", 42, -9, "SIGKILL", MonotonicNs(7), raised, "rank_1/stderr.log"
    )
    path = tmp_path / "verdict.json"
    verdict_file.write(path, document(Verdict("failed", 137, first_failure=first)))
    read = json.loads(path.read_text())
    head = ["schema", "run_id", "outcome", "exit_code", "attempts", "restarts", "cause", "code", "title", "confidence"]
    tail = ["evidence", "collateral", "notes", "advice", "retry", "time", "folder"]
    assert list(read) == [*head, "phase", "step", "call", "first_failure", *tail]
    assert (read["schema"], read["cause"], read["phase"], read["retry"]) == (
        1,
        None,
        None,
        {"decision": "stop", "reason": "why"},
    )
    assert (read["first_failure"]["time"], read["first_failure"]["signal"]) == ("date 7", "SIGKILL")
    assert set(read["first_failure"]["exception"]) == {"type", "message", "file", "line"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["verdict.json"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    verdict_file.write(path, document(Verdict("succeeded", 0)))
    (tmp_path / "verdict.json.tmp").mkdir()
    with pytest.raises(OSError, match="directory"):
        verdict_file.write(path, document(Verdict("failed", 1)))
    assert json.loads(path.read_text())["outcome"] == "succeeded"
