"""Locked-memory limit too low.

## What happened
InfiniBand and RoCE adapters (and EFA, Omni-Path) need locked memory, which cannot be swapped out. The limit for it
(`ulimit -l`, RLIMIT_MEMLOCK) is too low, so the adapter's driver refused to register memory.
## How to recognise it
NCCL's `Call to ibv_reg_mr… failed with error Cannot allocate memory`, or the same for `ibv_create_cq` and
`ibv_create_qp`; `libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.`; UCX's `Please set max locked memory (ulimit -l)
to 'unlimited'`; Open MPI's `The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked
memory`. The host still has free memory. The first alone can also mean that the adapter ran out of memory regions.
## What to do
- `ulimit -l` in the job, not in your login shell: it must be `unlimited`.
- Docker: `--ulimit memlock=-1`; SLURM: `PropagateResourceLimitsExcept=MEMLOCK` in `slurm.conf` and
  `LimitMEMLOCK=infinity` in slurmd's unit; Kubernetes: the capability `IPC_LOCK`, or the limit in containerd's unit.
- On hosts: `* soft memlock unlimited` and `* hard memlock unlimited` in `/etc/security/limits.d/rdma.conf`.
- To confirm, run over plain TCP: `NCCL_IB_DISABLE=1`.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import behind_nccl, ended_by_gpu
from ddp_run.judge.signs import Sign, anywhere, first_of, like, quotes
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP404",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the limit will still be too low"),
)
_CALL = like(
    r"Call to (?P<call>ibv_(?:reg|create)_\w+) failed with error Cannot allocate memory",
    advice=(
        "grep 'Max locked memory' /proc/self/limits   # inside the job: must be unlimited",
        "docker run --ulimit memlock=-1:-1 …"
        "   # SLURM: PropagateResourceLimitsExcept=MEMLOCK and LimitMEMLOCK=infinity",
        "NCCL_IB_DISABLE=1 ddp-run …   # to confirm: plain TCP needs no locked memory",
    ),
)
_LIMIT = (
    like(r"RLIMIT_MEMLOCK is (?P<limit>\d+ bytes)"),
    like(r"Please set max locked memory \(ulimit -l\)[^\n]{0,200}current: (?P<limit>[\w ]+)"),
    Sign("trying to allocate some locked memory"),
)
SIGNS = (_CALL, *_LIMIT)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match NCCL's warning for the error that ended the rank; certain if a line names the limit."""
    hit, limit = first_of(death, (_CALL,), ended_by_gpu, behind_nccl), anywhere(death.stderr, _LIMIT)
    if hit is None:
        return None
    sure: Confidence = "certain" if limit is not None else "likely"
    known = f": the limit is {limit['limit']}" if limit is not None and limit["limit"] else ""
    cause = f"{death.who} could not lock memory in {hit['call']}{known}"
    return hit.finding(RULE, death, cause, confidence=sure, also=quotes(limit))
