"""No progress: the job hangs.

## What happened
No rank made progress: no optimizer step, no collective, no new phase. Usually all ranks but one wait in a collective
for the one that is elsewhere: in a different branch, on a different line, in an endless loop, stopped, or waiting for a
lock, a file or a data loader.
## How to recognise it
ddp-run prints `no progress: …` after 15 seconds (or three typical steps), with the rank the others wait for and where
it is. Without ddp-run, NCCL times out after 10 minutes and Gloo after 30, on the ranks that waited. A pasted stack dump
(`py-spy dump`, faulthandler's `Timeout (0:05:00)!`) shows a hang too.
## What to do
Check where the named rank is (`live_stacks.txt` in its folder has the stacks of all its threads) and why it does not
reach the collective the others wait in: collectives inside `if rank == 0:`, different numbers of batches, a `barrier`
that one rank skips. `--hang-timeout 300` terminates a hung job with exit code 124, so that it can be restarted.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign
from ddp_run.judge.verdict import Area, Finding, Retry, Rule

RULE = Rule(
    code="DDP510",
    name="hang",
    title="No progress: the job hangs",
    area=Area.COLLECTIVE,
    retry=Retry(helps=True, reason="a hang caused by timing, a device or the network may not happen again"),
    since="0.1",
    unlike="together",
)
_DUMPED = Sign('"MainThread"', re.compile(r'^\s{0,8}Thread \S{1,20} \((?P<how>idle|active)\): "MainThread"'))
"""py-spy's dump: nobody takes one of a job that goes on. A GPU's calls wait with the CPU at work."""
_TOOK_TOO_LONG = Sign("Timeout (", re.compile(r"^Timeout \(\d{1,4}:\d\d:\d\d(?:\.\d{1,6})?\)!"))
"""faulthandler.dump_traceback_later's (CPython, Modules/faulthandler.c)."""
SIGNS = (_DUMPED, _TOOK_TOO_LONG)
_PLACE = re.compile(r"^\s{1,12}(?P<function>\S{1,120}) \((?P<place>[^()\n]{1,400}:\d{1,9})\)$")
_WAITS = re.compile(
    r"synchronize|wait|barrier|broadcast|all_?reduce|all_?gather|reduce_scatter|all_to_all|recv|acquire"
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """A log of stacks that somebody took of what stands still; nothing tells how it ended."""
    if not attempt.logs_only or death.code is not None or death.exception is not None:
        return None
    lines = death.stderr.lines
    for index, line in enumerate(lines):
        hit = next((found for sign in SIGNS if (found := sign.search(line)) is not None), None)
        if hit is None:
            continue
        innermost = next((place for each in lines[index + 1 : index + 9] if (place := _PLACE.match(each))), None)
        busy = hit.groupdict().get("how") == "active"
        if busy and (innermost is None or not _WAITS.search(innermost["function"])):
            continue
        where = f" in {innermost['function']} ({innermost['place']})" if innermost is not None else ""
        quote = death.stderr.quote(index)
        return Finding(RULE, death.rank, f"{death.who} hangs{where}", (quote,), _ADVICE, "likely")
    return None


_ADVICE = ("py-spy dump --pid PID   # for each rank: which one is somewhere else?",)
