"""The GPUs: whether each rank has one, memory errors, Xids, other processes, and throttling."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from ddp_run.doctor import gpu_table
from ddp_run.doctor.check import Group, NoAnswer, Surroundings, check
from ddp_run.doctor.findings import Finding, failed, skipped, warned
from ddp_run.doctor.gpu_table import Gpu, Holder
from ddp_run.judge.rules.gpu_hardware import XID, XIDS
from ddp_run.observe.kernel_log import KernelLog
from ddp_run.plan.checks.devices import visible_gpus
from ddp_run.record.events import MonotonicNs
from ddp_run.values.words import size_in_words


@check(Group.GPUS, "GPUs")
def gpus(around: Surroundings) -> Iterator[Finding]:
    """GPUs of nvidia-smi against ranks and `CUDA_VISIBLE_DEVICES`, their memory, compute mode and PCIe width; fails if
    nvidia-smi fails or a GPU is lost."""
    if not around.has_driver:
        yield skipped("GPUs", "no NVIDIA driver is loaded here; the doctor checks no other GPUs")
        return
    try:
        found, remarks = gpu_table.read(around.nvidia_smi), gpu_table.remarks(around.nvidia_smi)
    except NoAnswer as error:
        yield no_answer(str(error))
        return
    yield gpu_count(found, visible_gpus(around.environ), around.ranks, around.environ.get("CUDA_VISIBLE_DEVICES"))
    yield from map(one_gpu, found)
    for remark in remarks:
        yield warned("nvidia-smi", remark.removeprefix("WARNING: "), "", "nvidia-smi -q | grep -i -A4 inforom")


def _seen(around: Surroundings) -> list[Gpu]:
    """Return all GPUs; none without a driver, and if nvidia-smi fails: the check `gpus` reports that."""
    try:
        return gpu_table.read(around.nvidia_smi) if around.has_driver else []
    except NoAnswer:
        return []


def no_answer(said: str) -> Finding:
    """Report that nvidia-smi failed, and what it said."""
    helps = ["nvidia-smi", "sudo dmesg -T | grep -iE 'nvrm|xid' | tail"]
    if "not installed" in said:
        container = "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return skipped("GPUs", said, container)
    if "version mismatch" in said:
        helps.insert(0, "reboot, or reload the nvidia modules: the driver was updated under a running kernel module")
    return failed("GPUs", "nvidia-smi fails", said, *helps)


def gpu_count(found: Sequence[Gpu], visible: int | None, ranks: int, chosen: str | None) -> Finding:
    """Judge how many GPUs there are, how many a rank would see, and of which kinds."""
    kinds = dict.fromkeys(gpu.name for gpu in found)
    value = f"{len(found)} ({' and '.join(kinds)})" if found else "none"
    count = min(visible if visible is not None else len(found), len(found))
    if chosen is not None:
        value += f", {count} with CUDA_VISIBLE_DEVICES={chosen}"
    if count == 0:
        helps = "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L   # empty or -1 hides all"
        return warned("GPUs", value, "there is a driver, but ranks see no GPU", helps)
    if ranks > count:
        helps = f"--nproc-per-node={count}"
        return warned("GPUs", value, f"{ranks} ranks: NCCL refuses two ranks on one GPU", helps)
    if len(kinds) > 1:
        return warned("GPUs", value, "several kinds: the slowest sets the pace", "CUDA_VISIBLE_DEVICES=… of one kind")
    return Finding("GPUs", value)


def one_gpu(gpu: Gpu) -> Finding:
    """Judge one GPU: whether it answers, its memory and its setup."""
    name = f"GPU {gpu.index}"
    if gpu.lost:
        helps = f"nvidia-smi -i {gpu.index} -q   # run without it (CUDA_VISIBLE_DEVICES), reset it, or reboot the host"
        return failed(name, gpu.lost, "the driver has lost it", helps)
    memory = f"{size_in_words(gpu.used)} of {size_in_words(gpu.total)} used" if gpu.total else "memory unknown"
    value = f"{gpu.name}, {memory}"
    if gpu.mode == "Prohibited":
        return failed(name, value, "its compute mode is Prohibited", f"sudo nvidia-smi -i {gpu.index} -c DEFAULT")
    if gpu.width_now and gpu.width_most and gpu.width_now < gpu.width_most:
        against = f"PCIe x{gpu.width_now} instead of x{gpu.width_most}: transfers are slower"
        return warned(name, value, against, f"nvidia-smi -i {gpu.index} -q -d PCI   # reseat it, or check the riser")
    return Finding(name, value, against="split by MIG" if gpu.mig == "Enabled" else "")


@check(Group.GPUS, "memory errors of the GPUs")
def gpu_errors(around: Surroundings) -> Iterator[Finding]:
    """Uncorrected ECC errors, rows and pages pending replacement; fails if a row could not be replaced."""
    found = _seen(around)
    bad = [finding for gpu in found if not gpu.lost and (finding := memory_errors(gpu)) is not None]
    yield from bad
    if found and all(gpu.uncorrected is None for gpu in found):
        yield skipped("ECC", "these GPUs don't count memory errors, or ECC is off")
    elif found and not bad:
        yield Finding("ECC", "no uncorrected memory errors, no rows pending replacement")


def memory_errors(gpu: Gpu) -> Finding | None:
    """Judge a GPU's memory; None if it's fine. Errors are counted since the driver was loaded ("volatile")."""
    name = f"ECC of GPU {gpu.index}"
    query = f"nvidia-smi -i {gpu.index} -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"
    reset = f"sudo nvidia-smi --gpu-reset -i {gpu.index}   # while nothing runs on it; else reboot"
    if gpu.remap_failed:
        return failed(name, "a row of memory could not be replaced", "this GPU must be replaced", query)
    if gpu.uncorrected:
        value = f"{gpu.uncorrected} uncorrected memory errors since the driver started"
        return warned(name, value, "a job that reads such memory dies", query, reset)
    if gpu.pending:
        return warned(name, "memory is pending replacement", "a reset replaces it", reset, query)
    return None


_GONE = 79
"""Only a reboot brings such a GPU back; the kernel's log starts again with it."""


@check(Group.GPUS, "the kernel's log")
def gpu_kernel_log(around: Surroundings) -> Iterator[Finding]:
    """Xid errors of the hardware in the kernel's log since the host started; fails if a GPU fell off the bus."""
    if not around.has_driver:
        return
    log = KernelLog.open(from_start=True)
    try:
        if log.is_readable:
            found = log.read(MonotonicNs(time.monotonic_ns()))
            yield from xids(found.lines if found is not None else ())
        else:
            yield skipped("Xid errors", "the kernel's log can't be read here", "sudo dmesg -T | grep -i xid")
    finally:
        log.close()


def xids(lines: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each GPU and Xid of the hardware; Xids that programs cause don't count."""
    seen: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        if (hit := XID.search(line)) is not None and int(hit["number"]) in XIDS:
            seen.setdefault((hit["pci"], int(hit["number"])), []).append(line)
    if not seen:
        yield Finding("Xid errors", "no hardware errors in the kernel's log")
    for (pci, number), of_it in seen.items():
        often = f", {len(of_it)} times" if len(of_it) > 1 else ""
        value = f"{number}: {XIDS[number]}{often}"
        helps = (f"nvidia-smi -i {pci} -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT", "ddp-run rules gpu-hardware")
        grade = failed if number == _GONE else warned
        yield grade(f"Xid at {pci}", value, "since the host started", *helps, detail=of_it[-1:])


_MUCH = 1 << 30
"""Bytes; the driver and a desktop hold some hundred MiB."""


@check(Group.GPUS, "processes on the GPUs")
def gpu_processes(around: Surroundings) -> Iterator[Finding]:
    """Processes that hold memory of the GPUs; warns of any."""
    if not (found := _seen(around)):
        return
    try:
        holders = gpu_table.read_holders(around.nvidia_smi)
    except NoAnswer:
        return
    busy = [finding for gpu in found if (finding := processes(gpu, holders)) is not None]
    yield from busy or [Finding("processes on the GPUs", "none")]


def processes(gpu: Gpu, holders: Mapping[str, Sequence[Holder]]) -> Finding | None:
    """Judge the processes on a GPU; None if it has none. `holders`: by UUID of the GPU."""
    on = holders.get(gpu.uuid, ())
    name = f"processes on GPU {gpu.index}"
    if on:
        shown = ", ".join(f"pid {holder.pid} {holder.name} ({_size(holder)})" for holder in on[:4])
        more = f" and {len(on) - 4} more" if len(on) > 4 else ""
        helps = f"ps -o pid,user,etime,args -p {','.join(str(holder.pid) for holder in on)}"
        return warned(name, shown + more, "they take memory and time from your ranks", helps)
    if gpu.used < _MUCH:
        return None
    against = "they run in another container or pid namespace, or a killed process still holds it"
    value = f"not shown, but {size_in_words(gpu.used)} used"
    return warned(name, value, against, "nvidia-smi   # on the host; sudo fuser -v /dev/nvidia*")


def _size(holder: Holder) -> str:
    return size_in_words(holder.used) if holder.used is not None else "memory unknown"


_REASONS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's nvmlClocksEventReasons that mean heat or too little power (nvml.h). The software's power cap (0x4) is
normal under load."""


@check(Group.GPUS, "clocks of the GPUs")
def gpu_throttling(around: Surroundings) -> Iterator[Finding]:
    """GPUs slowed by heat or lack of power right now; warns."""
    found = _seen(around)
    slow = [finding for gpu in found if (finding := throttled(gpu)) is not None]
    yield from slow
    temperatures = [gpu.temperature for gpu in found if gpu.temperature is not None]
    if not slow and temperatures:
        yield Finding("GPU clocks", f"not throttled, {max(temperatures)} °C at most")


def throttled(gpu: Gpu) -> Finding | None:
    """Judge a GPU's clocks; None if they aren't lowered."""
    reasons = [name for bit, name in _REASONS.items() if (gpu.throttled or 0) & bit]
    if not reasons:
        return None
    heat = f", {gpu.temperature} °C" if gpu.temperature is not None else ""
    helps = f"nvidia-smi -i {gpu.index} -q -d PERFORMANCE,TEMPERATURE,POWER   # cooling, power supply, power limit"
    against = "the slowest GPU sets the pace of all ranks"
    return warned(f"clocks of GPU {gpu.index}", f"{', '.join(reasons)}{heat}", against, helps)
