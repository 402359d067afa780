"""The job's terminal was closed.

## What happened
The job got SIGHUP, which the kernel sends to all that runs in a terminal when the terminal goes: the ssh connection
broke, the window or the notebook was closed, the container's session ended. torch's agent takes it as an order to stop.
## How to recognise it
`SignalException: Process … got signal: 1`, `Received 1 death signal, shutting down workers` (older releases), `Hangup`
from the shell, exit code 129, ranks that ended by SIGHUP. Nothing in the job failed.
## What to do
Run the job where no terminal is in the way: in `tmux` or `screen`, or with `setsid ddp-run … > log 2>&1 < /dev/null &`,
or in a scheduler. `nohup ddp-run …` is enough for ddp-run, which leaves an ignored SIGHUP ignored; torchrun takes the
signal even under `nohup`.
"""

from __future__ import annotations

import re
import signal

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, in_whole_log
from ddp_run.judge.verdict import Area, Finding, Retry, Rule

RULE = Rule(
    code="DDP908",
    name="terminal-closed",
    title="Terminal closed (SIGHUP)",
    area=Area.HOST,
    retry=Retry(helps=True, reason="nothing in the job failed: its terminal went away"),
    since="0.1",
)
SIGNS = (
    Sign("got signal: 1", re.compile(r"SignalException: Process \d+ got signal: 1\b")),
    Sign("death signal, shutting down workers", re.compile(r"Received (?:1|Signals\.SIGHUP) death signal")),
)
_ADVICE = (
    "tmux new -s train   # then start the job in it; leave with Ctrl-b d, come back with: tmux attach -t train",
    "setsid ddp-run … > train.log 2>&1 < /dev/null &   # without tmux",
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """A rank that ended by SIGHUP, which nobody here had sent."""
    if death.code != -signal.SIGHUP or signal.SIGHUP in death.signals_sent:
        return None
    cause = f"{death.who} was killed by SIGHUP: its terminal was probably closed"
    return Finding(RULE, death.rank, cause, (), _ADVICE, "likely")


def match_stop(attempt: Evidence) -> Finding | None:
    """The job was told to stop by SIGHUP."""
    if attempt.stop_signal != signal.SIGHUP:
        return None
    hit = in_whole_log(attempt, SIGNS)
    quotes = (hit.quote,) if hit is not None and hit.quote is not None else ()
    cause = "the job was told to stop by SIGHUP: its terminal was probably closed"
    stopped = Retry(helps=False, reason="it was told to stop")
    return Finding(RULE, None, cause, quotes, _ADVICE, "likely", retry=stopped)
