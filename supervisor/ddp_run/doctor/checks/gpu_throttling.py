"""GPUs that run below their clocks because of heat or power."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_run.doctor import gpu_table
from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.gpu_table import Gpu
from ddp_run.doctor.surroundings import NoAnswer, Surroundings
from ddp_run.values.finding import Finding, warned

_REASONS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's nvmlClocksEventReasons that mean heat or too little power (nvml.h). The software's power cap (0x4) is
usual under load."""


def _look(around: Surroundings) -> Iterator[Finding]:
    if not around.has_driver:
        return
    try:
        gpus = gpu_table.read(around.nvidia_smi)
    except NoAnswer:
        return
    slow = [finding for gpu in gpus if (finding := judged(gpu)) is not None]
    yield from slow
    told = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    if not slow and told:
        yield Finding("GPU clocks", f"not throttled, {max(told)} °C at most")


def judged(gpu: Gpu) -> Finding | None:
    """Null where its clocks are not lowered."""
    reasons = [name for bit, name in _REASONS.items() if (gpu.throttled or 0) & bit]
    if not reasons:
        return None
    heat = f", {gpu.temperature} °C" if gpu.temperature is not None else ""
    helps = f"nvidia-smi -i {gpu.index} -q -d PERFORMANCE,TEMPERATURE,POWER   # cooling, power supply, power limit"
    against = "the slowest GPU sets the pace of all ranks"
    return warned(f"clocks of GPU {gpu.index}", f"{', '.join(reasons)}{heat}", against, helps)


CHECK = Check("gpu_throttling", Group.GPUS, "GPUs slowed by heat or lack of power right now; warns.", _look)
