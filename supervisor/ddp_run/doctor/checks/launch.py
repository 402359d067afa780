"""Whether ranks start, meet and end: a launch as any job's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.reports import Reports
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, failed


def _look(around: Surroundings) -> Iterator[Finding]:
    if around.reports is not None:
        yield judged(around.reports)


def judged(reports: Reports) -> Finding:
    """The verdict of ddp-run on its own ranks."""
    launched, step = reports.launched, reports.last_step()
    if launched.exit_code == 0:
        return Finding("launch", f"all ranks ended well after {launched.seconds:.1f} s")
    verdict = launched.verdict or {}
    hung = "the ranks came no further for minutes" if launched.exit_code == 124 else ""
    title = (
        verdict.get("title")
        or hung
        or re.sub(r"^error(\[\w+\]):", r"\1", launched.refused.partition("\n")[0])
        or f"exit code {launched.exit_code}"
    )
    code = f"[{verdict['code']}] " if verdict.get("code") else ""
    during = f"during: {step}" if step is not None else "before any rank had started its program"
    advice = [str(each) for each in verdict.get("advice") or ()]
    if launched.folder:
        advice.append(f"ddp-run explain {launched.folder}")
    detail = (
        *launched.refused.splitlines()[1:],
        *launched.said,
        *(f"{quote['text']}" for quote in (verdict.get("evidence") or ())[:3]),
    )
    return failed("launch", f"{code}{title}", during, *advice, detail=detail)


CHECK = Check(
    "launch",
    Group.RANKS,
    "Whether the ranks start, meet and end, by a launch of ddp-run's own; fails with its verdict.",
    _look,
    Level.DEFAULT,
    of_ranks=True,
    place=1,
)
