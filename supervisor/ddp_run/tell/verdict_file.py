"""The verdict for programs: verdict.json (schema 1) and the last line; on node 0 also what the other nodes reported.

Unknown values are null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddp_run.judge.verdict import ANSWER, FirstFailure, Verdict
from ddp_run.record import file_names
from ddp_run.record.events import MonotonicNs
from ddp_run.values.lines import neutral_text
from ddp_run.values.private_files import write_whole
from ddp_run.values.redaction import redact

if TYPE_CHECKING:
    from ddp_run.judge.of_nodes import NodeReport
    from ddp_run.values.problem import Problem

_UNSAFE: Final = re.compile(r"[^!-$&-~\u00a1-\u1fff\u2070-\u2fff\u3001-\ud7ff\ue000-\U0010ffff]")


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

    Leave out what is unknown: a log has no run and no clock. No text in the object can move a terminal's cursor, except
    for the folder's name, which stays unchanged.
    """
    first = verdict.first_failure
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
        "first_failure": None if first is None else _first_failure(first, wall_at),
        "evidence": list(map(asdict, verdict.evidence)),
        "collateral": list(map(asdict, verdict.collateral)),
        "notes": list(verdict.notes),
        "advice": list(verdict.advice),
        "retry": {"decision": decision, "reason": decision_reason},
        "time": None if verdict.time is None else asdict(verdict.time),
    }
    return {**{key: _shown(value) for key, value in content.items()}, "folder": folder}


def _first_failure(first: FirstFailure, wall_at: Callable[[MonotonicNs], str | None]) -> dict[str, Any]:
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


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return neutral_text(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return {key: _shown(each) for key, each in value.items()} if isinstance(value, dict) else value


def refusal(problems: Sequence[Problem]) -> dict[str, Any]:
    """The object for a launch that was refused: the first problem is the cause, the others' titles end the advice."""
    first = problems[0]
    others = tuple(f"{problem.code}: {problem.title}" for problem in problems[1:])
    verdict = Verdict(
        "refused",
        2,
        cause=first.cause,
        code=first.code,
        title=first.title,
        confidence="certain",
        phase="launch",
        advice=(*first.helps, *others),
    )
    return as_json(verdict.without_secrets(), attempts=0, decision_reason="nothing was started")


def write(path: Path, content: dict[str, Any]) -> None:
    """Write the whole file or nothing. Raises OSError (a full disk, a read-only folder)."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", durable=True)


def verdict_line(verdict: Verdict, *, attempts: int | None, folder: Path | None) -> str:
    """The last line, for scripts: stable keys, values without blanks, `-` for unknown values.

    Blanks, control characters and `%` in values are percent-encoded (RFC 3986, bytes of UTF-8).
    """
    first = verdict.first_failure
    values = {
        "outcome": verdict.outcome,
        "cause": verdict.cause,
        "code": verdict.code,
        "rank": first.rank if first else None,
        "node": first.host if first else None,
        "exit": verdict.exit_code,
        "attempts": attempts,
        **({"restarts": verdict.restarts} if verdict.restarts else {}),
        "folder": folder,
    }
    return ANSWER + " ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: object) -> str:
    if value is None or value == "":
        return "-"

    def encoded(match: re.Match[str]) -> str:
        errors = "surrogateescape" if "\udc80" <= match[0] <= "\udcff" else "backslashreplace"
        return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", errors))

    return _UNSAFE.sub(encoded, str(value))


# ------------------------------------------------------------------------------- node 0's folder `nodes`


def keep_facts(run_folder: Path, table: str) -> Path | None:
    """Write the comparison of the nodes; returns the file, or None if it can't be written: the journal has it too."""
    folder = run_folder / file_names.NODES
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / file_names.FACTS
        path.write_text(redact(table), encoding="utf-8")
    except OSError:
        return None
    return path


def keep_report(run_folder: Path, report: NodeReport, last_lines: tuple[str, ...]) -> None:
    """Write another node's verdict and its rank's last lines if possible: the journal has the verdict too."""
    if report.verdict is None:
        return
    name = re.sub(r"[^\w.-]", "_", report.host) if report.node_rank is None else report.node_rank
    folder = run_folder / file_names.NODES / f"node_{name}"
    document = as_json(report.verdict, folder=f"{report.host}:{report.folder}")
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
        write(folder / file_names.VERDICT, document)
        if last_lines:
            (folder / file_names.STDERR_END).write_text("\n".join(last_lines) + "\n", encoding="utf-8")
    except (OSError, ValueError):
        pass
