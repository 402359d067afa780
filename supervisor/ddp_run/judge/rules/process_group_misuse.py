"""Invalid use of torch.distributed.

## What happened
A collective before `init_process_group` or after `destroy_process_group`, a second `init_process_group`, a backend that
is missing or does not support this device's tensors, or a rank outside the group.
## How to recognise it
`Default process group has not been initialized`, `trying to initialize the default process group twice`, `No backend
type associated with device type cpu`, `Tensors must be CUDA and dense`, `is not part of group`, `Environment variable
RANK expected, but not set`, `Distributed package doesn't have MPI built in`. Usually all ranks that reach this line
fail the same way.
## What to do
Call `init_process_group` once, at the start, on every rank. NCCL supports only GPU tensors: move them (`.cuda()`), or
create the group for both with `init_process_group("cpu:gloo,cuda:nccl")`. A program that reads RANK must be started
with a launcher (ddp-run), not with `python`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Hit, Sign, ended_by, like, meaning
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP508",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same call will fail again"),
    unlike="together",
    end="after",
)
_FIND = "grep -rn 'init_process_group' --include='*.py' .   # "
_NOT_MADE_BY_TORCH = (Sign("Invalid process group specified"), Sign("Process group not initialized"))
_NOT_MADE = meaning(
    like(r"Default process group (?:has not been|is not) initialized"),
    *_NOT_MADE_BY_TORCH,
    Sign("backend not set, please initialize it using init_process_group()"),  # DeepSpeed
    cause="{who} called torch.distributed without a process group",
    advice=(f"{_FIND}does every rank get there first?",),
)
_UNREADY = meaning(
    Sign("DeepSpeed backend not set, please initialize it using init_process_group"),
    Sign("Horovod has not been initialized; use hvd.init()"),
    Sign("DeviceMesh process groups not initialized!"),
    Sign("Distributed backend is not initialized. Please set dist_init_required"),  # DeepSpeed
    like(r"The collective group '[^'\n]{1,80}' is not initialized in the process\."),  # Ray
    cause="{who} used its distributed runtime before it was ready: {line}",
    advice=(f"{_FIND}or hvd.init()",),
)
_REFUSALS = meaning(
    *("Mesh should not be bigger than default world size", "No rendezvous handler for "),
    *("does not support monitoredBarrier, only GLOO", "A CPU backend must be enabled for async save"),
    "DeviceMesh only support homogeneous hardware, but found",
    "the MPI used doesn't have CUDA-aware MPI support",
    "LOCAL_RANK is not in the environment. Consider passing fallback_rank",
    "distributed.initialize should only be called once",  # JAX
    "jax.distributed.initialize() must be called before any JAX calls",
    like(r"Invalid peer rank: -?\d{1,9}"),
    cause="{who} was refused by its distributed runtime: {line}",  # which explains the mistake
)
_WRONG_DEVICE = meaning(
    like(r"No backend type associated with device type (?P<device>\w+)"),
    Sign("Tensors must be CUDA and dense"),
    like(r"ProcessGroupGloo::\w+: unsupported device type (?P<device>\w+)"),
    Sign("Tensors must be on distinct GPU devices"),
    cause="{who} used a{ {device}} tensor, which the process group's backend does not support",
    advice=(f'{_FIND}"cpu:gloo,cuda:nccl" supports both',),
)
_UNKNOWN = meaning(
    *(like(rf"Unknown {what}(?: type|:)? '?(?P<backend>[\w.]+)") for what in ("backend", "c10d backend")),
    like(r"Invalid backend: '?(?P<backend>[\w.]+)"),
    like(r"Distributed package doesn't have (?!NCCL)(?P<backend>\w+) built in"),
    cause="{who} requested a backend that this torch does not have: {backend}",
)
_MISUSED = meaning(
    like(r"(?:[Gg]lobal|[Gg]roup) rank (?P<number>\d+) is not part of group"),
    Sign("The given group does not exist"),
    Sign("is not registered, please create group with torch.distributed.new_group"),
    like(r"the new group's (?:rank|world size) should be [a-z ]{1,30} the world[_ ]size set by init_process_group"),
    Sign("rank should not be the same as the rank of the current process"),
    like(r"Argument ``(?:gather|scatter)_list`` must "),
    cause="{who} passed a wrong group, rank or list to torch.distributed: {said}",
    advice=("grep -rnE 'new_group|group=' --include='*.py' .   # is the rank in the group it uses?",),
)
SIGNS = (
    *_NOT_MADE,
    *_UNREADY,
    *_REFUSALS,
    Sign(
        "trying to initialize the default process group twice",
        cause="{who} called init_process_group a second time",
        advice=(f"{_FIND}keep one (a trainer calls it itself)",),
    ),
    *_WRONG_DEVICE,
    *_UNKNOWN,
    *_MISUSED,
    like(
        r"environment variable (?P<variable>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",
        cause="{who} has no {variable} in its environment: it was not started by a launcher",
        advice=("env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)='   # ddp-run sets all of them",),
    ),
)
_COMMON = {sign.words for sign in (*_UNKNOWN, *_MISUSED, *_NOT_MADE_BY_TORCH)}
"""Common words, which count only if torch.distributed itself raised them."""
_TORCHS = re.compile(r"torch/distributed/|torch\.distributed")
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xccl")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match torch's refusal in the exception that ended the rank (or anywhere at its end if no exception is known)."""
    hit = ended_by(death, SIGNS)
    if hit is None or (hit.sign.words in _COMMON and not _TORCHS.search(hit.traceback)):
        return None
    # the reason for the missing group may be far above: no GPU was found, a library chose not to create one
    sure: Confidence | None = "likely" if attempt.logs_only and hit.sign in _NOT_MADE else None
    cause = hit.says(death, said=hit.text.rpartition("Error: ")[2][:160])
    return hit.finding(RULE, death, cause, _of_backend(hit) if hit["backend"] else None, confidence=sure)


def _of_backend(hit: Hit) -> tuple[str, ...]:
    wanted = (hit["backend"] or "").lower()  # torch knows the backend's name, but says that it does not have it
    near = [each for each in get_close_matches(wanted, _BACKENDS, 1) if each != wanted]
    return (
        *(f"did you mean {name}? init_process_group({name!r}), or --backend={name}" for name in near),
        "python -c 'import torch.distributed as d; print(d.is_nccl_available(), d.is_gloo_available())'",
    )
