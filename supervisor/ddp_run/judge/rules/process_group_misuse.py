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
from ddp_run.judge.signs import Hit, Sign, ended_by, like
from ddp_run.judge.verdict import Area, Confidence, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP508",
    name="process-group-misuse",
    title="Invalid use of torch.distributed",
    area=Area.COLLECTIVE,
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same call will fail again"),
    since="0.1",
    unlike="together",
    end="after",
)
_NOT_MADE = (
    Sign("Default process group has not been initialized"),
    Sign("Default process group is not initialized"),
    Sign("Invalid process group specified"),
    Sign("Process group not initialized"),
    Sign("backend not set, please initialize it using init_process_group()"),  # DeepSpeed
)
_TWICE = Sign("trying to initialize the default process group twice")
_DEVICE = Sign("No backend type associated with device type ", r"associated with device type (?P<device>\w+)")
_CUDA_ONLY = (
    Sign("Tensors must be CUDA and dense"),
    Sign("ProcessGroupGloo::", r"ProcessGroupGloo::\w+: unsupported device type (?P<device>\w+)"),
)
_ONE_EACH = like(r"Tensors must be on distinct GPU devices")
_UNKNOWN = (
    like(r"Unknown c10d backend type (?P<backend>[\w.]+)"),
    like(r"Unknown backend(?: type|:)? '?(?P<backend>[\w.]+)"),
    like(r"Invalid backend: '?(?P<backend>[\w.]+)"),
    Sign("Distributed package doesn't have ", r"package doesn't have (?!NCCL)(?P<backend>\w+) built in"),
)
_OUTSIDE = (
    like(r"(?:[Gg]lobal|[Gg]roup) rank (?P<number>\d+) is not part of group"),
    Sign("The given group does not exist"),
    Sign("is not registered, please create group with torch.distributed.new_group"),
    Sign("the new group's rank should be within the world_size set by init_process_group"),
    Sign("the new group's world size should be less or equal to the world size set by init_process_group"),
)
_ENVIRONMENT = like(r"environment variable (?P<variable>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set")
_ITSELF = (
    Sign("rank should not be the same as the rank of the current process"),
    Sign("Argument ``gather_list`` must "),
    Sign("Argument ``scatter_list`` must "),
)
_UNREADY = (
    Sign("DeepSpeed backend not set, please initialize it using init_process_group"),
    Sign("Distributed backend is not initialized. Please set dist_init_required"),
    Sign("Horovod has not been initialized; use hvd.init()"),
    Sign("DeviceMesh process groups not initialized!"),
    Sign("is not initialized in the process.", r"The collective group '[^'\n]{1,80}' is not initialized in"),  # Ray
)
"""DeepSpeed, Horovod, DeviceMesh, Ray."""
_REFUSALS = (
    Sign("Mesh should not be bigger than default world size"),
    Sign("DeviceMesh only support homogeneous hardware, but found"),
    Sign("the MPI used doesn't have CUDA-aware MPI support"),
    Sign("No rendezvous handler for "),
    Sign("does not support monitoredBarrier, only GLOO"),
    Sign("A CPU backend must be enabled for async save"),
    like(r"Invalid peer rank: -?\d{1,9}"),
    Sign("LOCAL_RANK is not in the environment. Consider passing fallback_rank"),
    Sign("distributed.initialize should only be called once"),  # JAX
    Sign("jax.distributed.initialize() must be called before any JAX calls"),
)
"""Other refusals, whose messages already explain the mistake."""
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xccl")
SIGNS = (
    *_NOT_MADE,
    *_UNREADY,
    *_REFUSALS,
    _TWICE,
    _DEVICE,
    *_CUDA_ONLY,
    _ONE_EACH,
    *_UNKNOWN,
    *_OUTSIDE,
    _ENVIRONMENT,
    *_ITSELF,
)
_TORCHS = re.compile(r"torch/distributed/|torch\.distributed")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match torch's refusal in the exception that ended the rank (or anywhere at its end if no exception is known)."""
    hit = ended_by(death, SIGNS)
    if hit is None or not _from_torch(hit):
        return None
    cause, advice = _told(hit)
    # the reason for the missing group may be far above: no GPU was found, a library chose not to create one
    sure: Confidence = "likely" if attempt.logs_only and hit.sign in _NOT_MADE else hit.confidence
    return hit.finding(RULE, death, f"{death.who} {cause}", advice, confidence=sure)


def _from_torch(hit: Hit) -> bool:
    """Common words such as `Unknown backend` count only if torch.distributed itself raised them."""
    if hit.sign in (*_UNKNOWN, *_OUTSIDE, *_ITSELF, _NOT_MADE[2], _NOT_MADE[3]):
        return hit.exception is not None and _TORCHS.search(hit.exception.traceback) is not None
    return True


def _told(hit: Hit) -> tuple[str, tuple[str, ...]]:
    find = "grep -rn 'init_process_group' --include='*.py' .   # "
    if hit.sign in _REFUSALS:
        return f"was refused by its distributed runtime: {hit.text[:160]}", ()
    if hit.sign in _UNREADY:
        return f"used its distributed runtime before it was ready: {hit.text[:160]}", (f"{find}or hvd.init()",)
    if hit.sign in _NOT_MADE:
        return "called torch.distributed without a process group", (f"{find}does every rank get there first?",)
    if hit.sign is _TWICE:
        return "called init_process_group a second time", (f"{find}keep one (a trainer calls it itself)",)
    if hit.sign is _DEVICE or hit.sign in _CUDA_ONLY or hit.sign is _ONE_EACH:
        device = f"a {hit['device']} tensor" if hit["device"] else "a tensor on a device"
        return f"used {device}, which the process group's backend does not support", (
            f'{find}"cpu:gloo,cuda:nccl" supports both',
        )
    if hit.sign in _UNKNOWN:
        wanted = (hit["backend"] or "").lower()  # torch knows the backend's name, but says that it does not have it
        near = [each for each in get_close_matches(wanted, _BACKENDS, 1) if each != wanted]
        return f"requested a backend that this torch does not have: {hit['backend']}", (
            *(f"did you mean {name}? init_process_group({name!r}), or --backend={name}" for name in near),
            "python -c 'import torch.distributed as d; print(d.is_nccl_available(), d.is_gloo_available())'",
        )
    if hit.sign is _ENVIRONMENT:
        return f"has no {hit['variable']} in its environment: it was not started by a launcher", (
            "env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)='   # ddp-run sets all of them",
        )
    said = hit.text.rpartition("Error: ")[2][:160]
    return f"passed a wrong group, rank or list to torch.distributed: {said}", (
        "grep -rnE 'new_group|group=' --include='*.py' .   # is the rank in the group it uses?",
    )
