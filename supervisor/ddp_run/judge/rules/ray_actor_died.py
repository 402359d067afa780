"""Ray worker died for an unknown reason.

## What happened
A process started by Ray (an actor, a worker of verl, vLLM or Ray Train) died without telling Ray. Ray then raises an
exception in the driver that lists possible reasons, the out-of-memory killer first; that list is always the same and
proves nothing.
## How to recognise it
`ray.exceptions.ActorDiedError`, `RayActorError` or `WorkerCrashedError` with `The actor died unexpectedly before
finishing this task` and `Worker exit type: SYSTEM_ERROR`. If the log shows how the worker itself died (an exception,
the kernel's line, `Fatal Python error`), that is reported as the cause instead.
## What to do
- Read the worker's own log: `ls -t /tmp/ray/session_latest/logs/worker-*PID*` and `python-core-worker-*PID*.log`;
  `raylet.out` shows how it died.
- `dmesg -T | grep -i 'killed process'` on the host named in the message (`ip: …`).
- `ray list actors --detail` and `ray list workers --detail` show exit type and detail.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LEAVING
from ddp_run.judge.signs import Sign, ended_by
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP512",
    layer=Layer.FOLLOWED,
    retry=Retry(helps=True, reason="it is unknown why the worker died; another attempt may show it, or pass"),
)
_TYPES = frozenset(
    {"ActorDiedError", "RayActorError", "WorkerCrashedError", "ActorUnavailableError"}
    | {"LocalRayletDiedError", "OwnerDiedError"}
)
_EXIT = re.compile(r"[Ww]orker exit type: (?P<type>\w+)(?: Worker exit detail: (?P<detail>[^.\n]+))?")
_PID = re.compile(r"^\s*pid: (?P<pid>\d+)", re.MULTILINE)
_HOST = re.compile(r"^\s*ip: (?P<host>\S+)", re.MULTILINE)
_TOLD_TO_END = "The process receives a SIGTERM"
"""Ray's raylet writes this for workers that end with the job, even a successful one."""
SIGNS = (
    Sign("died unexpectedly before finishing this task"),
    Sign("The actor is dead because its"),
    Sign("The worker died unexpectedly while executing this task"),
    Sign("The task's local raylet died"),
    Sign("OwnerDiedError", types=("OwnerDiedError",)),
    Sign("The actor is temporarily unavailable"),
    Sign("A worker died or was killed while executing a task by an unexpected system error"),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match Ray's exception that ended the driver; without one, its message at the end."""
    raised = death.exception
    if raised is not None and raised.type.rpartition(".")[2] not in _TYPES:
        return None
    hit = ended_by(death, SIGNS)
    if hit is None:
        return None
    said = raised.message if raised is not None else "\n".join(death.stderr.ending(LEAVING).lines)
    if raised is None and _TOLD_TO_END in said:
        return None
    how, pid, host = _EXIT.search(said), _PID.search(said), _HOST.search(said)
    named = f" (pid {pid['pid']})" if pid else ""
    cause = f"a Ray worker process died{named} and Ray does not know why"
    if how is not None:
        cause += f": {how['type']}" + (f", {how['detail'].strip()}" if how["detail"] else "")
    logs = f"/tmp/ray/session_latest/logs/*{pid['pid'] if pid else 'PID'}*"  # noqa: S108  # where Ray keeps them
    where = f"   # on {host['host']}" if host else ""
    advice = (f"tail -n 50 {logs}{where}", "dmesg -T | grep -i -E 'killed process|segfault'   # on that host")
    return hit.finding(RULE, death, cause, advice, confidence="likely")
