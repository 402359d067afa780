"""Terminal closed (SIGHUP).

## What happened
The job received SIGHUP, which the kernel sends to everything running in a terminal when the terminal goes away: the ssh
connection dropped, the window or notebook was closed, the container's session ended. torch's agent stops on it.
## How to recognise it
`SignalException: Process … got signal: 1`, `Received 1 death signal, shutting down workers` (older releases), `Hangup`
from the shell, exit code 129, ranks killed by SIGHUP; `OSError: [Errno 5] Input/output error` at a `print` or a
progress bar; SIGTERM and right after it SIGHUP, as systemd ends a login session. The job itself did not fail.
## What to do
Run the job without a terminal that can go away: in `tmux` or `screen`, or with `setsid ddp-run … > log 2>&1 < /dev/null
&`, or under a scheduler. `nohup ddp-run …` is enough for ddp-run, which keeps an ignored SIGHUP ignored; torchrun stops
on the signal even under `nohup`. Where systemd ends what a session started when it closes (`KillUserProcesses=yes` in
logind.conf), `tmux` ends, too: `loginctl enable-linger` and `systemd-run --user --scope tmux` keep it.
"""

from __future__ import annotations

import signal

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.printed_text import could_not_print
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import in_whole_log, like, quotes
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP908",
    layer=Layer.ENDED,
    retry=Retry(helps=True, reason="the job itself did not fail: its terminal went away"),
    wins_over=(("preempted-sigterm", "systemd ends a login session by SIGTERM and, at once, SIGHUP"),),
)
SIGNS = (
    like(r"SignalException: Process \d+ got signal: 1\b"),
    like(r"Received (?:1|Signals\.SIGHUP) death signal, shutting down workers"),
)
_TERMINATED = (like(r"SignalException: Process \d+ got signal: 15\b"),)
_STILL_GONE = Retry(helps=False, reason="the terminal will still be gone")
_ADVICE = (
    "tmux new -s train   # start the job in it; detach with Ctrl-b d, reattach with: tmux attach -t train",
    "setsid ddp-run … > train.log 2>&1 < /dev/null &   # without tmux",
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank ended by a SIGHUP that neither ddp-run nor the agent sent, or one that could no longer print."""
    if could_not_print(death):
        cause = f"{death.who} could not print: its terminal is gone"
        shown = line_of(death.stderr, death.exception) if death.exception is not None else ()
        return Finding(RULE, cause, shown, _ADVICE, "likely", _STILL_GONE)
    if death.code != -signal.SIGHUP or signal.SIGHUP in death.signals_sent:
        return None
    cause = f"{death.who} was killed by SIGHUP: its terminal was probably closed"
    return Finding(RULE, cause, (), _ADVICE, "likely")


def match_stop(attempt: Evidence) -> Finding | None:
    """Match a job stopped by SIGHUP, or by SIGTERM and then SIGHUP: so systemd ends the processes of a login session.

    Source: systemd.kill(5), SendSIGHUP, which logind sets for sessions. torch's agent was still stopping then.
    """
    hit, told = in_whole_log(attempt, SIGNS), in_whole_log(attempt, _TERMINATED)
    session = hit is not None and told is not None and told.index < hit.index and attempt.stop_signal == signal.SIGTERM
    if attempt.stop_signal != signal.SIGHUP and not session:
        return None
    by = "SIGTERM and then SIGHUP" if session else "SIGHUP"
    cause = f"the job was stopped by {by}: its terminal was probably closed"
    stopped = Retry(helps=False, reason="the job was stopped")
    return Finding(RULE, cause, quotes(hit), _ADVICE, "likely", retry=stopped)
