"""Terminated from outside.

## What happened
A scheduler, a container runtime, a cloud's preemption or a person asked the job, or one rank, to end.
## How to recognise it
SIGTERM (or SIGHUP, SIGQUIT) that neither ddp-run nor torch's agent had sent: 143 in a shell for SIGTERM.
## What to do
Look in the scheduler's log for a time limit or a preemption (`scontrol show job`, `kubectl describe pod`), and save a
checkpoint on SIGTERM. A job that was preempted can be queued again as it is.
"""

from __future__ import annotations

import signal

from ddp_run.exit_status import in_words
from ddp_run.verdict import Area, Death, Evidence, Finding, Retry, Rule

RULE = Rule(
    code="DDP901",
    name="preempted-sigterm",
    title="Terminated from outside",
    area=Area.HOST,
    retry=Retry(helps=True, reason="nothing in the job failed: one rank was ended from outside"),
    since="0.1",
)
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def match(death: Death, run: Evidence) -> Finding | None:
    """A rank that was ended by such a signal, which nobody here had sent."""
    if death.code is None or -death.code not in _ENDING or -death.code in death.signals_sent:
        return None
    cause = f"{death.who} was ended from outside by {in_words(death.code)}"
    return Finding(RULE, death.rank, cause)


def match_stop(run: Evidence) -> Finding | None:
    """The job was told to stop."""
    if run.stop_signal is None or run.stop_signal not in _ENDING:
        return None
    cause = f"the job was told to stop by {in_words(-run.stop_signal)}"
    return Finding(RULE, None, cause, retry=Retry(helps=False, reason="it was told to stop"))
