"""Memory errors that the GPUs have counted."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_run.doctor import gpu_table
from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.gpu_table import Gpu
from ddp_run.doctor.surroundings import NoAnswer, Surroundings
from ddp_run.values.finding import Finding, failed, skipped, warned


def _look(around: Surroundings) -> Iterator[Finding]:
    if not around.has_driver:
        return  # told by gpus
    try:
        gpus = gpu_table.read(around.nvidia_smi)
    except NoAnswer:
        return
    found = [judged(gpu) for gpu in gpus if not gpu.lost]
    bad = [finding for finding in found if finding is not None]
    yield from bad
    if not any(gpu.knows_ecc for gpu in gpus):
        yield skipped("ECC", "these GPUs do not count memory errors, or ECC is off")
    elif not bad:
        yield Finding("ECC", "no uncorrected memory error, no memory to be replaced")


def judged(gpu: Gpu) -> Finding | None:
    """Null where nothing is wrong. Uncorrected errors are counted since the driver was loaded ("volatile")."""
    name = f"ECC of GPU {gpu.index}"
    query = f"nvidia-smi -i {gpu.index} -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"
    reset = f"sudo nvidia-smi --gpu-reset -i {gpu.index}   # with nothing running on it; else reboot"
    if gpu.remap_failed:
        return failed(name, "a row of memory could not be replaced", "the GPU must be exchanged", query)
    if gpu.uncorrected:
        against = "a job dies when it reads such memory"
        return warned(
            name, f"{gpu.uncorrected} uncorrected memory errors since the driver started", against, query, reset
        )
    if gpu.pending:
        return warned(name, "memory waits to be replaced", "a reset does that", reset, query)
    return None


CHECK = Check(
    "gpu_errors",
    Group.GPUS,
    "Uncorrected ECC errors, rows and pages to be replaced; fails if a row could not be replaced.",
    _look,
)
