"""A launch that was refused, for programs: the object of verdict.json, as one line on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddp_run.judge.verdict import Verdict
from ddp_run.tell import verdict_file
from ddp_run.values.problem import Problem

EXIT_CODE = 2


def as_json_line(problems: Sequence[Problem]) -> str:
    """The first problem as the cause; the others' titles stand behind its advice."""
    first = problems[0]
    others = tuple(f"{problem.code}: {problem.title}" for problem in problems[1:])
    verdict = Verdict(
        "refused",
        EXIT_CODE,
        cause=first.cause,
        code=first.code,
        title=first.title,
        confidence="certain",
        phase="launch",
        advice=(*first.helps, *others),
    )
    document = verdict_file.as_json(verdict.without_secrets(), attempts=0, decision_reason="nothing was started")
    return json.dumps({"event": "verdict", "level": "error", **document}) + "\n"
