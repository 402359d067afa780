"""No progress: the job hangs.

## What happened
No rank made progress: no optimizer step, no collective, no new phase. Usually all ranks but one wait in a collective
for the one that is elsewhere: in a different branch, on a different line, in an endless loop, stopped, or waiting for a
lock, a file or a data loader. Or no rank reaches `init_process_group`: a lock file that a killed build of a torch
extension left behind, an endless download or import, a file that no rank writes.
## How to recognise it
ddp-run prints `no progress: …` after 15 seconds (or three typical steps), with the rank the others wait for and where
it is. Without ddp-run, NCCL times out after 10 minutes and Gloo after 30, on the ranks that waited. A pasted stack dump
(`py-spy dump`, faulthandler's `Timeout (0:05:00)!`) shows a hang too, and so does a server that gave up waiting: vLLM's
`RPC call to execute_model timed out`, SGLang's `Watchdog timeout`; or a log that ends with `No available shared memory
broadcast block found`, with Horovod's `waiting for remainder of ranks`.
## What to do
Check where the named rank is (`live_stacks.txt` in its folder has the stacks of all its threads) and why it does not
reach the collective the others wait in: collectives inside `if rank == 0:`, different numbers of batches, a `barrier`
that one rank skips. `--hang-timeout 300` terminates a hung job with exit code 124, so that it can be restarted.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, every, in_exception, in_last_words, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP510",
    layer=Layer.ENDED,
    retry=Retry(helps=True, reason="a hang caused by timing, a device or the network may not happen again"),
    unlike="together",
)
SYMPTOMS = (Sign("issing ranks", r"(?m)^(?i:missing ranks)\b(?: ?: ?\d[\d, ]{0,400}$|:$)"),)
"""Horovod's."""
_DUMPED = like(r'^\s{0,8}Thread \S{1,20} \((?P<how>idle|active)\): "MainThread"')
"""py-spy's dump: nobody takes one of a job that makes progress. Waiting GPU calls keep the CPU busy."""
_TOOK_TOO_LONG = like(r"^Timeout \(\d{1,4}:\d\d:\d\d(?:\.\d{1,6})?\)!")
"""From faulthandler.dump_traceback_later (CPython, Modules/faulthandler.c)."""
_ADVICE = ("py-spy dump --pid PID   # for each rank: which one is somewhere else?",)
_GAVE_UP = meaning(
    like(r"RPC call to \w{1,80} timed out", ("TimeoutError",)),  # vLLM
    # XLA's, for a barrier in the program: not for the one at the start
    like(r"Barrier timed out\. Id: (?!PjRT_Client_Connect)\S{1,200}", ("XlaRuntimeError", "JaxRuntimeError")),
    # Ray's compiled graphs
    like(r"this may indicate that the execution is hanging", ("RayChannelTimeoutError",)),
    like(r"[Ww]atchdog timeout \(self\.watchdog_timeout=[\d.]{1,12}+(?!, self\.soft=True)"),  # SGLang
    like(r"Termination timeout for [^\n]{1,300} seconds exceeded(?=\. Exiting to ensure a consistent)"),  # XLA
    cause="{who} waited for another process, which did not answer: {match}",
    advice=_ADVICE,
    likely=True,
)
_STALLED = Sign("are waiting for remainder of ranks for more than")
"""Horovod checks once a minute."""
_WAIT_ON = (
    _STALLED,
    like(  # vLLM; if lines were joined, the next message follows on the same line
        r"No available shared memory broadcast block found in \d{1,6} second\S{0,4}"
        r"(?: This typically happens[^\n]{1,120}\)\.)?\s{0,9}$",
    ),
    like(r"This thread has been waiting for [^\n]{1,300} and may be stuck\. Expected "),  # XLA
)
"""Printed while waiting for others, and also for slow operations: these count if the log ends with them."""
_OFTEN = 3
_LISTED = re.compile(r"Missing ranks:|\d{1,9}: \[")
"""Horovod lists these below."""
SIGNS = (_DUMPED, _TOOK_TOO_LONG, *_GAVE_UP, *_WAIT_ON)
_PLACE = re.compile(r"^\s{1,12}(?P<function>\S{1,120}) \((?P<place>[^()\n]{1,400}:\d{1,9})\)$")
_WAITS = re.compile(
    r"synchronize|wait|barrier|broadcast|all_?reduce|all_?gather|reduce_scatter|all_to_all|recv|acquire"
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a stack dump taken of a hung job, or a server's message that it gave up waiting."""
    gave_up = in_exception(death, _GAVE_UP)
    if gave_up is not None:
        return gave_up.finding(RULE, death)
    if not attempt.logs_only or death.code is not None or death.exception is not None:
        return None
    watched = in_last_words(death, _GAVE_UP)
    return watched.finding(RULE, death) if watched is not None else _waits_on(death, attempt) or _dumped(death)


def _waits_on(death: Death, attempt: Evidence) -> Finding | None:
    """Match a log that ends while a process has been waiting for minutes."""
    if in_last_words(death, _WAIT_ON) is None:
        return None
    lines = attempt.agent.log.lines
    said = every(attempt.agent.log, *_WAIT_ON)
    if not said or any(line.strip() and not _LISTED.match(line) for line in lines[said[-1].index + 1 :]):
        return None
    if len(said) < _OFTEN and said[-1].sign is not _STALLED:
        return None
    cause = f"{death.who} waits for other processes: {said[-1].text[-160:]}"
    return said[-1].finding(RULE, death, cause, _ADVICE, confidence="likely")


def _dumped(death: Death) -> Finding | None:
    lines = death.stderr.lines
    for hit in every(death.stderr, _DUMPED, _TOOK_TOO_LONG):
        below = lines[hit.index + 1 : hit.index + 9]
        innermost = next((place for each in below if (place := _PLACE.match(each))), None)
        if hit["how"] == "active" and (innermost is None or not _WAITS.search(innermost["function"])):
            continue
        where = f" in {innermost['function']} ({innermost['place']})" if innermost is not None else ""
        return hit.finding(RULE, death, f"{death.who} hangs{where}", _ADVICE, confidence="likely")
    return None
