"""Node failed.

## What happened
The scheduler lost a machine that the job ran on: it crashed, lost power or network, or its daemon stopped responding.
The ranks there vanish without a message; the others lose their peers or are killed.
## How to recognise it
SLURM: `srun: error: Node failure on node-7`, `JOB 4242 ON node-7 CANCELLED AT … DUE TO NODE FAILURE`. Kubernetes:
`NodeLost`, `NodeNotReady`. Torque: `node 1 (…) requested job terminate, 'EOF'`. HTCondor: `Can not reconnect to`. Ray:
`The node with node id: … has been marked dead`. A CUDA error on several ranks of that node shortly before suggests that
a GPU took the machine down.
## What to do
Exclude the node (`sbatch --exclude=NODE`) and tell the cluster admins; `scontrol show node NODE` has the reason. A job
that writes checkpoints can resume from the last one: `sbatch --requeue` restarts it automatically.
"""

from __future__ import annotations

import re
import signal

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.platform_text import LOST, LOST_STATE, told_lately
from ddp_run.judge.signs import Hit, Sign, in_exception, in_whole_log
from ddp_run.judge.verdict import Area, Finding, Retry, Rule

RULE = Rule(
    code="DDP909",
    name="node-failed",
    title="Node failed",
    area=Area.HOST,
    retry=Retry(helps=True, reason="the job itself did not fail: it can run on another node"),
    since="0.1",
    host="repeated",
    supersedes=("preempted-sigterm", "peer-died", "native-abort"),
)
_NAMED = Sign("error: Node failure on ", re.compile(r"(?P<what>Node failure on (?P<node>[\w.\-]{1,255}))"))
_SCHEDULER = (
    Sign(
        "DUE TO NODE FAILURE",
        re.compile(r"(?P<what>(?:JOB|STEP) \S{1,40} (?:ON \S{1,255} )?CANCELLED AT \S{1,40} DUE TO NODE FAILURE)"),
    ),
    Sign("NodeLost", re.compile(r"(?P<what>\bNodeLost\b[^\n]{0,120})")),
    Sign(
        "has been marked dead",
        re.compile(r"(?P<what>The node with node id: \S{1,80} [^\n]{0,120}has been marked dead)"),
    ),
)
"""They name no node, or another one: that of the step's first process."""
SIGNS = (_NAMED, *_SCHEDULER, *LOST, LOST_STATE)
_TELLING = (None, 1, 137, 143, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP, -signal.SIGABRT)
_LOST = re.compile(
    r"onnection (?:was )?(?:closed|reset)|Broken pipe|remote process exited|[Tt]imed? ?out|ncclRemoteError"
    r"|CUDA error: unknown"
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """The scheduler says so, and the rank was ended, or only lost its peers."""
    told = _told(attempt) or in_exception(death, (LOST_STATE,)) or told_lately(death, LOST)
    if told is None or told.sign is LOST_STATE:
        return None if told is None else told.finding(RULE, death, _cause(told), _advice(told), confidence="likely")
    if death.exception is not None and not _LOST.search(death.exception.message):
        return None
    if death.exception is None and death.code not in _TELLING:
        return None
    return told.finding(RULE, death, _cause(told), _advice(told))


def match_launch(attempt: Evidence) -> Finding | None:
    """A log in which only the scheduler speaks of an end."""
    told = _told(attempt)
    if told is None or told.quote is None or attempt.deaths:
        return None
    return Finding(RULE, None, _cause(told), (told.quote,), _advice(told))


def _told(attempt: Evidence) -> Hit | None:
    return in_whole_log(attempt, (_NAMED,)) or in_whole_log(attempt, _SCHEDULER)


def _cause(told: Hit) -> str:
    node = f" ({told['node']})" if told["node"] else ""
    return f"a node of the job failed{node}: {told['what']}"


def _advice(told: Hit) -> tuple[str, ...]:
    node = told["node"] or "NODE"
    return (
        f"scontrol show node {node}   # the reason, according to the cluster",
        f"sbatch --exclude={node} …   # retry without this node",
    )
