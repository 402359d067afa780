"""GPUs for the ranks that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddp_run.plan.check import Answer, Check, Launch, origin
from ddp_run.settings.options import Options, Source
from ddp_run.values.problem import Problem

_GPU_DEVICES = ("nvidia[0-9]*", "nvidiactl", "kfd", "dxg", "nvhost-*", "nvmap", "dri/renderD*")


def _check(launch: Launch) -> Answer:
    if launch.options.nproc == "gpu":
        return Answer() if _any_gpu_device() else Answer(problems=(_no_gpu(launch.options),))
    gpus = visible_gpus(launch.environ)
    return Answer(suspicions=judged(launch.options, gpus))


def judged(options: Options, gpus: int | None) -> tuple[Problem, ...]:
    """More ranks than GPUs is only suspicious: gloo jobs do that."""
    ranks = options.nproc_count
    if not gpus or ranks is None or ranks <= gpus:
        return ()
    setting = options.settings["nproc_per_node"]
    title = f"{ranks} ranks but only {gpus} GPU{'s' if gpus > 1 else ''} on this node"
    label, helps = "ranks that use GPUs would share them", (f"--nproc-per-node={gpus}",)
    return (Problem("DDP302", title, setting.word, label, origin(setting), helps=helps),)


def _no_gpu(options: Options) -> Problem:
    setting = options.settings["nproc_per_node"]
    given = setting.origin if setting.source in (Source.PET, Source.VARIABLE) else "--nproc-per-node"
    helps = (f"{given}=2 for two ranks, {given}=cpu for one per CPU",)
    title = "--nproc-per-node=gpu, but this machine has no GPU"
    return Problem("DDP302", title, setting.word, "no GPU device", origin(setting), helps=helps)


def visible_gpus(environ: Mapping[str, str], proc: Path = Path("/proc/driver/nvidia/gpus")) -> int | None:
    """NVIDIA GPUs that a rank would see; null where the driver is not loaded."""
    try:
        present = len(list(proc.iterdir()))
    except OSError:
        return None
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    # CUDA takes the list up to its first invalid entry.
    count = 0
    for entry in chosen.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count


def _any_gpu_device() -> bool:
    return any(next(Path("/dev").glob(pattern), None) is not None for pattern in _GPU_DEVICES)


CHECK = Check("the devices", _check)
