"""A process's place in its job, and its process group: set up with clear errors, and destroyed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch

from ddp_run.training.told import SetupError

REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The variables that a launcher sets for each rank."""

_SHOWN = (*REQUIRED, "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_LAUNCHERS = {"SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpiexec"}
"""The variable in which each launcher gives the number of its tasks."""
_SRUN = (
    "srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec python train.py'"
    "   # MASTER_ADDR and MASTER_PORT the same for all"
)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where this process stands in the job. `device` is its GPU (already made current), or the CPU."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    backend: str


def setup_distributed(
    backend: str | None = None,
    *,
    timeout_s: float | None = None,
    device: int | None = None,
    single_process: bool = False,
    exit_on_error: bool = False,
) -> Placement:
    """Check what the launcher gave, make this rank's GPU current, make the process group, and meet the other ranks.

    `backend`: by default `nccl` if CUDA is available, else `gloo`; the variable DDP_BACKEND overrides both.
    `timeout_s`: of the group and its collectives, in seconds; default torch's (10 minutes for NCCL, 30 for gloo).
    `device`: index of this rank's GPU; default LOCAL_RANK. Pass 0 if each rank sees only its own GPU.
    `single_process`: without a launcher, make a group of one instead of raising.
    `exit_on_error`: print the error to stderr and exit with code 1 instead of raising.

    With gloo the device is a GPU only if each local rank has one. Raises SetupError.
    """
    try:
        return _set_up(backend, timeout_s, device, single_process)
    except SetupError as error:
        if not exit_on_error:
            # The frames below the call don't help the caller.
            raise error.with_traceback(None) from error.__cause__
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        raise SystemExit(1) from error


def _set_up(asked: str | None, timeout_s: float | None, device: int | None, single_process: bool) -> Placement:
    import torch
    import torch.distributed

    dist: Any = torch.distributed
    if not dist.is_available():
        raise SetupError("this torch is built without torch.distributed", (f"torch {torch.__version__}",))
    if dist.is_initialized():
        title = f"rank {dist.get_rank()} already has a process group (backend {dist.get_backend()})"
        raise SetupError(title, helps=("call setup_distributed() once, or cleanup() before the second time",))
    alone = single_process and not any(os.environ.get(name) for name in REQUIRED[:3])
    if alone:
        _refuse_tasks_without_rank()
    rank, world_size, local_rank = (0, 1, 0) if alone else _given()
    backend = os.environ.get("DDP_BACKEND") or asked or ("nccl" if torch.cuda.is_available() else "gloo")
    place = f"rank {rank} (local rank {local_rank})"
    chosen = _choose_device(place, backend, local_rank, device)
    options: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}
    if timeout_s is not None:
        from datetime import timedelta

        options["timeout"] = timedelta(seconds=timeout_s)
    done = "making the process group"
    try:
        dist.init_process_group(backend, **options)
        done = "the first barrier"
        # NCCL connects to the other ranks in the first collective: without one, it would fail later.
        if dist.get_backend() == "nccl":
            dist.barrier(device_ids=[chosen.index])
        else:
            dist.barrier()
    except Exception as error:
        _refuse_group(f"{done} failed on {place}, backend {backend}", backend, error)
    return Placement(rank, world_size, local_rank, chosen, str(dist.get_backend()))


def _given() -> tuple[int, int, int]:
    """RANK, WORLD_SIZE and LOCAL_RANK, if everything that torch needs is set and makes sense."""
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    if missing:
        _refuse_tasks_without_rank()
        verb, pronoun = ("is", "it") if len(missing) == 1 else ("are", "them")
        title = f"{', '.join(missing)} {verb} not set in this process; a launcher gives {pronoun} to each rank"
        raise SetupError(title, (_surroundings(),), _start_commands())
    rank, world_size, local_rank = (_whole_number(name) for name in REQUIRED[:3])
    _whole_number("MASTER_PORT")
    if rank >= world_size:
        title = f"RANK={rank} is not below WORLD_SIZE={world_size}"
        raise SetupError(title, (_surroundings(),), ("ranks count from 0: 0 to WORLD_SIZE - 1", *_start_commands()))
    return rank, world_size, local_rank


def _whole_number(name: str) -> int:
    text = os.environ[name].strip()
    if not text.isdecimal():
        raise SetupError(f"{name} is not a whole number: {os.environ[name]!r}", (_surroundings(),), _start_commands())
    return int(text)


def _refuse_tasks_without_rank() -> None:
    """Refuse to run if another launcher started several tasks without ranks: each would train alone."""
    if os.environ.get("RANK"):
        return
    for name, launcher in _LAUNCHERS.items():
        tasks = os.environ.get(name, "")
        if tasks.isdecimal() and int(tasks) > 1:
            title = f"{launcher} started {tasks} tasks, but RANK is not set in this one"
            helps = (_SRUN,) if launcher == "srun" else ()
            raise SetupError(title, (f"{name}={tasks}", _surroundings()), (*helps, *_start_commands()))


def _start_commands() -> tuple[str, ...]:
    script = os.path.basename(sys.argv[0])
    if not script.endswith(".py"):
        script = "train.py"
    launch = f"torchrun --nproc-per-node 2 {script}   # or ddp-run instead of torchrun"
    if any(os.environ.get(name) for name in REQUIRED[:3]):
        return (launch,)
    return (launch, "setup_distributed(single_process=True) makes a group of one if there is no launcher")


def _choose_device(place: str, backend: str, local_rank: int, asked: int | None) -> torch.device:
    """The rank's device, made current if it is a GPU."""
    import torch
    import torch.distributed as dist

    index = local_rank if asked is None else asked
    if "nccl" not in backend:
        # The same answer on all ranks of the host: GPUs for some and the CPU for others wouldn't work together.
        ranks_here = os.environ.get("LOCAL_WORLD_SIZE", "")
        needed = int(ranks_here) if asked is None and ranks_here.isdecimal() else index + 1
        if not torch.cuda.is_available() or torch.cuda.device_count() < needed:
            return torch.device("cpu")
    else:
        if not torch.cuda.is_available():
            _refuse_cpu(place, backend)
        if not dist.is_nccl_available():
            title = f"{place} cannot use backend {backend}: this torch is built without NCCL"
            raise SetupError(title, (_versions(),), ("DDP_BACKEND=gloo   # the same program over gloo",))
    try:
        torch.cuda.set_device(index)
    except Exception as error:
        _refuse_device(place, index, torch.cuda.device_count(), error)
    return torch.device("cuda", index)


def _refuse_cpu(place: str, backend: str) -> NoReturn:
    """Quote what torch itself says when it must use CUDA: no driver, no GPU, or a build without CUDA."""
    import torch

    cuda: Any = torch.cuda
    said: Exception | None = None
    try:
        cuda.init()
    except Exception as error:
        said = error.with_traceback(None)
    title = f"{place} cannot use backend {backend}: CUDA is not available"
    helps = (
        "nvidia-smi   # does the driver see a GPU here?",
        'python -c "import torch; print(torch.__version__, torch.version.cuda)"   # None: a build for the CPU',
        "DDP_BACKEND=gloo   # to train on the CPU, or to test without a GPU",
    )
    raise SetupError(title, _evidence(said), helps) from said


def _refuse_device(place: str, index: int, count: int, error: Exception) -> NoReturn:
    """GPU number `index` of `count` visible ones couldn't be made current."""
    if index < count:
        look = "nvidia-smi   # who uses the GPU, and is it in exclusive mode?"
        raise SetupError(f"{place} cannot use GPU {index} of {count}", _evidence(error), (look,)) from error
    title = f"{place} has no GPU {index}: {count} {'is' if count == 1 else 'are'} visible, counted from 0"
    helps = (
        f"torchrun --nproc-per-node {count}   # at most one rank for each GPU",
        "setup_distributed(device=0) if each rank sees only its own GPU (srun --gpus-per-task=1)",
    )
    raise SetupError(title, _evidence(error), helps) from error


def _refuse_group(title: str, backend: str, error: Exception) -> NoReturn:
    helps = []
    if type(error).__name__ in ("DistNetworkError", "DistStoreError"):
        address, port = os.environ.get("MASTER_ADDR", "-"), os.environ.get("MASTER_PORT", "-")
        helps.append(f"nc -vz {address} {port}   # from each node, while rank 0 waits: is the master's port open?")
    if type(error).__name__ == "DistStoreError":
        world = os.environ.get("WORLD_SIZE", "-")
        helps.append(f"start all {world} ranks: on several nodes, the same command on each, with its own --node-rank")
    if "nccl" in backend:
        helps.append("NCCL_DEBUG=INFO   # NCCL then names the interface and the peer")
        helps.append("DDP_BACKEND=gloo   # the same program without NCCL")
    raise SetupError(title, _evidence(error), helps) from error


def _evidence(error: Exception | None) -> tuple[str, ...]:
    """Type and first line of torch's exception, the versions, and the variables."""
    lines = str(error).strip().splitlines() or [""]
    quoted = () if error is None else (f"{type(error).__name__}: {lines[0][:400]}",)
    return (*quoted, _versions(), _surroundings())


def _versions() -> str:
    import torch

    cuda: Any = torch.cuda
    try:
        found = cuda.nccl.version()
        nccl = ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
    except Exception:  # a build without NCCL; each release raises something else
        nccl = "-"
    gpus = torch.cuda.device_count()
    built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda or '-'}"
    return f"torch {torch.__version__}, {built}, NCCL {nccl}, {gpus} visible GPUs, host {os.uname().nodename}"


def _surroundings() -> str:
    values = ((name, os.environ.get(name)) for name in _SHOWN)
    return " ".join(f"{name}={value}" for name, value in values if value is not None) or "none of the variables is set"


def cleanup() -> None:
    """Destroy the process group, if there is one; safe in `finally`, any number of times.

    While an exception propagates, it raises nothing that could hide that exception, and leaves any group but gloo's
    alone: destroying NCCL's waits for ranks that don't do the same. The end of the process frees it.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    error = sys.exc_info()[1]
    failing = error is not None and not (isinstance(error, SystemExit) and not error.code)
    if failing and str(dist.get_backend()) != "gloo":
        return
    try:
        dist.destroy_process_group()
    except Exception as failure:
        if not failing:
            raise
        sys.stderr.write(f"warning: the process group could not be destroyed: {failure}\n")
