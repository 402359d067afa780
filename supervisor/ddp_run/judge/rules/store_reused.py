"""More processes joined the store than the job has.

## What happened
The ranks count themselves in their group's store before they start, and more have joined than the group has members:
another job, or leftovers of an earlier attempt, use the same store (the same `MASTER_ADDR` and `MASTER_PORT`, or the
same `file://`), or `WORLD_SIZE` is too small. The ranks then wait for a count that never matches.
## How to recognise it
torch's `Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1
(world_size=4, worker_count=8, …)`, then `Timed out initializing process group in store based barrier …`
(`num_workers_joined` in newer releases): the count is above the world size. If it is below, ranks are missing:
[rendezvous-timeout](rendezvous-timeout.md).
## What to do
- `ss -tlnp | grep :29500`, `pgrep -af python`: is an earlier job still running? Kill it, or use another port
  (`--master-port`, `--standalone`).
- `init_method="file://…"`: use a new file for each run; it must not exist yet.
- Ranks started twice (`srun` with several tasks that each start a launcher) count twice.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import ended_by, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP208",
    layer=Layer.REFUSED,
    retry=Retry(helps=True, reason="with another port, or once the earlier job is gone, the job gets its own store"),
)
_COUNTS = r"\(world_size=(?P<wanted>\d{1,9}), (?:num_workers_joined|worker_count)=(?P<joined>\d{1,9})\b"
SIGNS = meaning(
    like(rf"Timed out initializing process group in store based barrier on rank:? ?\d+, for key: \S+ {_COUNTS}"),
    like(
        r"Waiting in store based barrier to initialize process group for (?:rank: ?\d+|\d+ seconds)[^(]{0,120}"
        + _COUNTS
    ),
    cause="{who} waited for {wanted} processes at the store, but {joined} joined: another job or an earlier attempt "
    "uses the same store",
    advice=(
        "ss -tlnp | grep :29500; pgrep -af python   # is an earlier job still using the same port?",
        "ddp-run --standalone …   # its own port, on one node; otherwise another --master-port",
    ),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match torch's own count at the end of its wait, if above the world size."""
    hit = ended_by(death, SIGNS)
    too_many = hit is not None and int(hit["joined"] or 0) > int(hit["wanted"] or 0)
    return hit.finding(RULE, death) if hit is not None and too_many else None
