"""Unknown cause.

## What happened
The rank died without any output that explains why.
## How to recognise it
No exception, no known error in the last lines. A SIGKILL for which the kernel counted no out-of-memory kill is unknown,
too: anyone may have sent it.
## What to do
For SIGKILL: `dmesg -T | tail`, `memory.events` of the job's cgroup, the scheduler's log. For an exit code without an
error message: look for `os._exit` and `sys.exit` in the program, and read the rank's full log. To ask others,
attach the archive that `ddp-run bundle` makes.
"""

from __future__ import annotations

import shlex
import signal

from ddp_run.evidence.crash_text import crash_of, stacks_at_the_end
from ddp_run.evidence.model import Death, Evidence, LogText, Quote
from ddp_run.judge.advice import by_core, by_phase
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.values.signals import in_words

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP000",
    layer=Layer.UNEXPLAINED,
    retry=Retry(helps=True, reason="the cause is unknown: another attempt may show it, or pass"),
)
_KILLED = (
    "dmesg -T | grep -i -E 'killed process|out of memory'   # processes killed by the kernel",
    "cat /sys/fs/cgroup/$(cut -d: -f3 /proc/self/cgroup | tail -1)/memory.events   # oom_kill above 0: memory",
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match every death: report what is known and where to look."""
    crash = crash_of(death)
    left = stacks_at_the_end(death.stderr) if (death.code or 0) > 0 else None
    why = "and printed no error" if left is None else f"while its main thread was{left.where}"
    cause = f"{death.who} exited with {in_words(death.code).removeprefix('exit ')} {why}"
    if death.code is not None and death.code < 0:
        cause = f"{death.who} was killed by {in_words(death.code)}" + ("" if death.crashed else "; sender unknown")
    if death.code is None and attempt.logs_only:
        cause = f"{death.who} failed; the log does not show why"
    if crash is not None:
        cause = f"{death.who} was killed by {in_words(death.code)}{crash.where}"
    shown = crash or left
    quote = _last_line(death.stderr) if shown is None else shown.quotes
    advice = _read(death, attempt)
    if death.code == -signal.SIGKILL:
        # its last line has nothing to do with a signal that a program cannot foresee; memory is what to look at next
        quote = death.trend
        advice = (*_scarce(death), *_KILLED, *_ask(attempt))
    elif death.code is not None and death.code < 0:
        said = attempt.kernel_line(death.pid)
        quote += (said,) if said is not None else ()
        advice = (*by_core(death), *advice)
    return Finding(RULE, cause, quote, (*by_phase(death), *advice), "unknown")


def match_launch(attempt: Evidence) -> Finding | None:
    """Match an agent that failed before the ranks or independently of them."""
    if not attempt.agent.code:
        return None
    how = "was killed by" if attempt.agent.code < 0 else "exited with"
    cause = f"torch's agent {how} {in_words(attempt.agent.code).removeprefix('exit ')}; no rank failed on its own"
    quote = _last_line(attempt.agent.log) if attempt.agent.code > 0 else ()
    source = attempt.agent.log.source
    return Finding(RULE, cause, quote, (f"tail {attempt.path(source)}",) if source and quote else (), "unknown")


def _last_line(log: LogText) -> tuple[Quote, ...]:
    """Return the last line that is not blank."""
    last = next((index for index in range(len(log.lines) - 1, -1, -1) if log.lines[index].strip()), None)
    return () if last is None else (log.quote(last),)


def _scarce(death: Death) -> tuple[str, ...]:
    if death.memory is None or not death.memory.nearly_all:
        return ()
    return ("memory was nearly used up at the last check; to confirm that this killed it, ask the kernel:",)


def _read(death: Death, attempt: Evidence) -> tuple[str, ...]:
    read = (f"tail -n 50 {attempt.path(death.stderr.source)}",) if death.stderr.source else ()
    return (*read, *_ask(attempt))


def _ask(attempt: Evidence) -> tuple[str, ...]:
    """Advice if nothing is found there."""
    if attempt.logs_only or not attempt.folder:
        return ()
    return (f"ddp-run bundle {shlex.quote(attempt.folder)}   # to ask others: one archive, secrets removed",)
