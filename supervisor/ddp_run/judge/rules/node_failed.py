"""Node failed.

## What happened
The scheduler lost a machine that the job ran on: it crashed, lost power or network, or its daemon stopped responding.
The ranks there vanish without a message; the others lose their peers or are killed.
## How to recognise it
SLURM: `srun: error: Node failure on node-7`, `JOB 4242 ON node-7 CANCELLED AT … DUE TO NODE FAILURE`. Kubernetes:
`NodeLost`, `NodeNotReady`. Torque: `node 1 (…) requested job terminate, 'EOF'`. Ray: `The node with node id: … has been
marked dead`, `because its node has died`. Open MPI: `Remote daemon: … on node …`. A CUDA error on several ranks of that
node shortly before suggests that a GPU took the machine down.
## What to do
Exclude the node (`sbatch --exclude=NODE`) and tell the cluster admins; `scontrol show node NODE` has the reason. A job
that writes checkpoints can resume from the last one: `sbatch --requeue` restarts it automatically.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence, LogText
from ddp_run.evidence.windows import LEAVING
from ddp_run.judge.signs import Hit, ended_by, in_exception, in_last_words, in_whole_log, like, survived
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP909",
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="the job itself did not fail: it can run on another node"),
    host="repeated",
    end="told",
)
_RAYS = (
    like(r"(?P<what>Task failed due to the node \([^)\n]{1,80}\) +was dead)"),
    like(r"(?P<what>[Tt]he actor (?:is dead|died) because its node has died)(?:\. Node Id: (?P<node>\w{1,80}))?"),
    like(r"(?P<what>have been lost due to node failure)"),
)
"""Ray's message about its processes there; its raylet may be gone although the machine is up."""
_DAEMON = like(r"(?P<what>Remote daemon: \S{1,60} on node (?P<node>[\w.\-]{1,255}))")
"""The help text of Open MPI and PRRTE for a lost daemon."""
_NAMED = like(r"error: (?P<what>Node failure on (?P<node>[\w.\-]{1,255}))")
_SCHEDULER = (
    like(r"(?P<what>(?:JOB|STEP) \S{1,40} (?:ON \S{1,255} )?CANCELLED AT \S{1,40} DUE TO NODE FAILURE)"),
    like(r"(?P<what>\bNodeLost\b[^\n]{0,120})"),
    like(r"(?P<what>The node with node id: \S{1,80} [^\n]{0,120}has been marked dead)"),
    like(r"(?P<what>this node manager has mistakenly been marked as dead by the GCS)"),
)
"""These name no node, or a different one: that of the step's first process."""
_LATELY = (
    like(r"(?P<what>\bNodeNotReady\b[^\n]{0,120})"),
    like(r"(?P<what>node \d{1,9} \((?P<node>[\w.\-]{1,255})\) requested job terminate), 'EOF'"),
    like(
        r"(?P<what>Task launch for \S{1,60} failed on node (?P<node>[\w.\-]{1,255}): (?:Communication connection"
        r" failure|Job prolog failed|Socket timed out[^\n]{0,60}))"
    ),
    like(r"(?P<what>(?:^|State[:=] ?|\s)NODE_FAIL\b(?=[\s,]|$))"),
    like(r"(?P<what>\bJobNodeLost\b[^\n]{0,120})"),
    like(r"(?P<what>Can not reconnect to (?P<node>\S{1,255}), rescheduling job)"),
    like(r"job\.exception type=(?P<what>node-failure [^\n]{0,120})"),
)
"""Kubernetes, Torque, srun, sacct, Azure ML, HTCondor and Flux, about an attempt that another one may have followed."""
_LOST_STATE = like(r"\(state: (?P<what>NODE_FAIL)\)", ("UncompletedJobError",))
"""submitit's message, in the program that waited for the job."""
SIGNS = (_NAMED, _DAEMON, *_SCHEDULER, *_RAYS, *_LATELY, _LOST_STATE)
_TELLING = (None, 1, 137, 143, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP, -signal.SIGABRT)
_LOST = re.compile(
    r"onnection (?:was )?(?:closed|reset)|Broken pipe|remote process exited|[Tt]imed? ?out|ncclRemoteError"
    r"|CUDA error: unknown"
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the scheduler's message if the rank was killed or only lost its peers."""
    lost = ended_by(death, _RAYS)
    if lost is not None:
        return lost.finding(RULE, death, _cause(lost), _RAYS_ADVICE, confidence="likely")
    lately = in_last_words(death, _LATELY, LEAVING) if death.exception is None else None
    told = _told(attempt) or in_exception(death, (_LOST_STATE,)) or lately
    if told is None or told.sign is _LOST_STATE:
        return None if told is None else told.finding(RULE, death, _cause(told), _advice(told), confidence="likely")
    if death.exception is not None and not _LOST.search(death.exception.message):
        return None
    if death.exception is None and death.code not in _TELLING:
        return None
    there = death.host is not None and death.host == told["node"]
    return replace(told.finding(RULE, death, _cause(told), _advice(told)), of_the_job=not there)


def match_launch(attempt: Evidence) -> Finding | None:
    """Match a log in which only the scheduler reports an end."""
    told = _told(attempt)
    if told is None or attempt.deaths or _went_on(attempt.agent.log, told):
        return None
    return told.finding(RULE, TORCHS_AGENT, _cause(told), _advice(told))


def _went_on(log: LogText, told: Hit) -> bool:
    """Ray continues with its remaining nodes."""
    return "has been marked dead" in told.text and survived(log, told)


def _told(attempt: Evidence) -> Hit | None:
    return in_whole_log(attempt, (_NAMED, _DAEMON)) or in_whole_log(attempt, _SCHEDULER)


def _cause(told: Hit) -> str:
    node = f" ({told['node']})" if told["node"] else ""
    return f"a node of the job failed{node}: {told['what']}"


def _advice(told: Hit) -> tuple[str, ...]:
    node = told["node"] or "NODE"
    return (
        f"scontrol show node {node}   # the reason, according to the cluster",
        f"sbatch --exclude={node} …   # retry without this node",
    )


_RAYS_ADVICE = (
    "ray list nodes --detail   # state and reason of each; `ray status` lists recent failures",
    "dmesg -T | grep -i -E 'killed process|out of memory'   # on that node: was its raylet killed?",
)
