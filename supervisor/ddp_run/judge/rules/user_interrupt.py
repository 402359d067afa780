"""Interrupted by the user (Ctrl-C).

## What happened
The job, or one rank, was interrupted by SIGINT.
## How to recognise it
`KeyboardInterrupt`, or killed by SIGINT (130 in a shell).
## What to do
Nothing, if it was intended. A second Ctrl-C kills everything immediately.
"""

from __future__ import annotations

import signal

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import Sign, anywhere, in_whole_log, like, quotes
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP902",
    layer=Layer.ENDED,
    retry=Retry(helps=False, reason="the user stopped it"),
    end="told",
)
_SHUTTING_DOWN = Sign("Detected KeyboardInterrupt, attempting graceful shutdown")
"""From Lightning, which then exits with 0."""
_HANDLED = Sign(
    "eyboard ",
    r"\b[Kk]eyboard [Ii]nterrupt(?:ion\b|ed\b| (?:received|detected|caught|by user)\b)"
    r"|\b(?:received|detected|caught|because of|due to|by) (?:a )?[Kk]eyboard [Ii]nterrupt\b",
)
"""Messages of trainers that caught the interrupt."""
_OF_SRUN = Sign("srun: sending Ctrl-C to ")
TOLD_OF_IT = (_SHUTTING_DOWN, _HANDLED, _OF_SRUN)
_STOPPED = (like(r"SignalException: Process \d+ got signal: 2\b"),)
"""From torch's agent."""
SIGNS: tuple[Sign, ...] = (Sign("KeyboardInterrupt", types=("KeyboardInterrupt",)), *TOLD_OF_IT)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank that received SIGINT from neither ddp-run nor the agent."""
    raised = death.exception
    if raised is None and death.code in (None, 1) and attempt.logs_only:
        hit = anywhere(death.stderr, TOLD_OF_IT)
        return None if hit is None else hit.finding(RULE, death, f"{death.who} was interrupted", confidence="likely")
    interrupted = death.code == -signal.SIGINT or (raised is not None and raised.type == "KeyboardInterrupt")
    if (
        not interrupted
        or signal.SIGINT in death.signals_sent
        or (raised is not None and raised.message == "terminated")
    ):
        return None
    shown = line_of(death.stderr, raised) if raised is not None else ()
    cause = f"{death.who} was interrupted (SIGINT)"
    return Finding(RULE, cause, shown)


def match_stop(attempt: Evidence) -> Finding | None:
    """Match a job stopped by SIGINT."""
    if attempt.stop_signal != signal.SIGINT:
        return None
    shown = quotes(in_whole_log(attempt, _STOPPED)) if attempt.logs_only else ()
    return Finding(RULE, "the job was interrupted (SIGINT)", shown)
