"""GPUs for the requested ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.settings.options import Options, Source
from ddp_run.values.problem import Problem

_GPU_DEVICES = ("nvidia[0-9]*", "nvidiactl", "kfd", "dxg", "nvhost-*", "nvmap", "dri/renderD*")


def _check(launch: Launch) -> Answer:
    options = launch.options
    if options.nproc != "gpu":
        return Answer(options, suspicions=_more_ranks_than_gpus(options, visible_gpus(launch.environ)))
    if any(next(Path("/dev").glob(pattern), None) is not None for pattern in _GPU_DEVICES):
        return Answer(options)
    setting = options.settings["nproc_per_node"]
    given = setting.origin if setting.source in (Source.PET, Source.VARIABLE) else "--nproc-per-node"
    helps = (f"{given}=2 for two ranks, {given}=cpu for one per CPU",)
    title = "--nproc-per-node=gpu, but this machine has no GPU"
    return Answer(options, (options.problem("nproc_per_node", title, "no GPU device", code="DDP302", helps=helps),))


def _more_ranks_than_gpus(options: Options, gpus: int | None) -> tuple[Problem, ...]:
    """A suspicion, not a problem: gloo jobs do that."""
    ranks = options.nproc_count
    if not gpus or ranks is None or ranks <= gpus:
        return ()
    title = f"{ranks} ranks but only {gpus} GPU{'s' if gpus > 1 else ''} on this node"
    label, helps = "ranks that use GPUs would share them", (f"--nproc-per-node={gpus}",)
    return (options.problem("nproc_per_node", title, label, code="DDP302", helps=helps),)


def visible_gpus(environ: Mapping[str, str], proc: Path = Path("/proc/driver/nvidia/gpus")) -> int | None:
    """NVIDIA GPUs that a rank would see; None if the driver is not loaded."""
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


CHECK = Check("the devices", _check)
