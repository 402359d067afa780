"""What holds the GPUs' memory already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddp_run.doctor import gpu_table
from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.gpu_table import Gpu, Holder
from ddp_run.doctor.surroundings import NoAnswer, Surroundings
from ddp_run.values.finding import Finding, warned
from ddp_run.values.words import size_in_words

_MUCH = 1 << 30
"""Bytes; the driver and a desktop hold some hundred MiB."""


def _look(around: Surroundings) -> Iterator[Finding]:
    if not around.has_driver:
        return
    try:
        gpus, holders = gpu_table.read(around.nvidia_smi), gpu_table.read_holders(around.nvidia_smi)
    except NoAnswer:
        return
    found = [finding for gpu in gpus if (finding := judged(gpu, holders)) is not None]
    yield from found or [Finding("processes on the GPUs", "none")]


def judged(gpu: Gpu, holders: Mapping[str, Sequence[Holder]]) -> Finding | None:
    """Null where nobody else is on it. `holders`: by the GPU's UUID."""
    on = holders.get(gpu.uuid, ())
    if not on and gpu.used < _MUCH:
        return None
    name = f"processes on GPU {gpu.index}"
    if not on:
        against = "they are in another container or pid namespace, or a killed process has not let go yet"
        value = f"not shown, and {size_in_words(gpu.used)} used"
        return warned(name, value, against, "nvidia-smi   # on the host; sudo fuser -v /dev/nvidia*")
    shown = ", ".join(f"pid {holder.pid} {holder.name} ({_size(holder)})" for holder in on[:4])
    more = f" and {len(on) - 4} more" if len(on) > 4 else ""
    helps = f"ps -o pid,user,etime,args -p {','.join(str(holder.pid) for holder in on)}"
    return warned(name, shown + more, "they take memory and time from your ranks", helps)


def _size(holder: Holder) -> str:
    return size_in_words(holder.used) if holder.used is not None else "memory unknown"


CHECK = Check("gpu_processes", Group.GPUS, "Processes that hold memory of the GPUs; warns of any.", _look)
