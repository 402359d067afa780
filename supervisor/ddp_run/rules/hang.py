"""The job made no progress.

## What happened
No rank came any further: no optimizer step, no collective, no new phase. Most often all ranks but one wait in a
collective for the one that is somewhere else: in another branch, at another line, in an endless loop, stopped, or
waiting for a lock, a file or a data loader.
## How to recognise it
ddp-run says `no progress: …` after 15 seconds (or three usual steps), names the rank that the others wait for and where
it stands. Without it, NCCL says so after 10 minutes and Gloo after 30, on the ranks that waited.
## What to do
Read where the named rank stands (`live_stacks.txt` in its folder holds the stacks of all its threads) and why the
others do not get there: collectives inside `if rank == 0:`, different numbers of batches, a `barrier` that one rank
leaves out.
`--hang-timeout 300` ends such a job with exit code 124, so that it can be started again.
"""

from __future__ import annotations

from ddp_run.verdict import Area, Retry, Rule

RULE = Rule(
    code="DDP510",
    name="hang",
    title="The job made no progress",
    area=Area.COLLECTIVE,
    retry=Retry(helps=True, reason="a hang that comes from timing, a device or the network may not come again"),
    since="0.1",
)
