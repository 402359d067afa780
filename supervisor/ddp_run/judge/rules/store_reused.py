"""More processes joined the store than the job has.

## What happened
The ranks count themselves in the store of their group before they begin, and more have come than the group is to have:
another job, or what is left of an earlier attempt, uses the same store (the same `MASTER_ADDR` and `MASTER_PORT`, or
the same `file://`), or the ranks were given a `WORLD_SIZE` that is too small. They then wait for a number that never
comes.
## How to recognise it
torch's `Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1
(world_size=4, worker_count=8, …)`, then `Timed out initializing process group in store based barrier …`
(`num_workers_joined` in newer releases): the count is above the size of the world. Where it is below, ranks are
missing: [rendezvous-timeout](rendezvous-timeout.md).
## What to do
- `ss -tlnp | grep :29500`, `pgrep -af python`: is an earlier job still there? End it, or take another port
  (`--master-port`, `--standalone`).
- `init_method="file://…"`: a new file for each run; it must not exist before.
- Two starts of the same ranks (`srun` with several tasks that each start a launcher) count twice.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Hit, Sign, ended_by
from ddp_run.judge.verdict import Area, Finding, Retry, Rule

RULE = Rule(
    code="DDP208",
    name="store-reused",
    title="More processes joined the store than the job has",
    area=Area.NETWORK,
    retry=Retry(helps=True, reason="another port, or an earlier job that has ended by then, gives a store of its own"),
    since="0.1",
    supersedes=("rendezvous-timeout", "peer-died"),
)
_COUNTS = r"\(world_size=(?P<wanted>\d{1,9}), (?:num_workers_joined|worker_count)=(?P<joined>\d{1,9})\b"
_TIMED_OUT = Sign(
    "Timed out initializing process group in store based barrier",
    re.compile(rf"in store based barrier on rank:? ?\d+, for key: \S+ {_COUNTS}"),
)
_WAITING = Sign(
    "Waiting in store based barrier to initialize process group",
    re.compile(rf"to initialize process group for (?:rank: ?\d+|\d+ seconds)[^(]{{0,120}}{_COUNTS}"),
)
SIGNS = (_TIMED_OUT, _WAITING)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """torch's own count at the end of its wait, above the size of the world."""
    hit = ended_by(death, SIGNS)
    if hit is None or not _too_many(hit):
        return None
    return hit.finding(RULE, death, f"{death.who} waited for {_counted(hit)}", _ADVICE)


def _too_many(hit: Hit) -> bool:
    return int(hit["joined"] or 0) > int(hit["wanted"] or 0)


def _counted(hit: Hit) -> str:
    return (
        f"{hit['wanted']} processes at the store, and {hit['joined']} have come: another job or an earlier attempt "
        "uses the same store"
    )


_ADVICE = (
    "ss -tlnp | grep :29500; pgrep -af python   # is an earlier job still there, on the same port?",
    "ddp-run --standalone …   # a port of its own for a job on one node; else another --master-port",
)
