"""The GPUs that the driver shows, and whether there is one for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_run.doctor import gpu_table
from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.gpu_table import Gpu
from ddp_run.doctor.surroundings import NoAnswer, Surroundings
from ddp_run.plan.checks.devices import visible_gpus
from ddp_run.values.finding import Finding, failed, skipped, warned
from ddp_run.values.words import size_in_words


def _look(around: Surroundings) -> Iterator[Finding]:
    if not around.has_driver:
        yield skipped("GPUs", "no NVIDIA driver is loaded here; other GPUs are not checked")
        return
    try:
        gpus, remarks = gpu_table.read(around.nvidia_smi), gpu_table.remarks(around.nvidia_smi)
    except NoAnswer as error:
        yield no_answer(str(error))
        return
    yield counted(gpus, visible_gpus(around.environ), around.ranks, around.environ.get("CUDA_VISIBLE_DEVICES"))
    for gpu in gpus:
        yield judged(gpu)
    for remark in remarks:
        yield warned("nvidia-smi", remark.removeprefix("WARNING: "), "", "nvidia-smi -q | grep -i -A4 inforom")


def no_answer(said: str) -> Finding:
    """nvidia-smi failed: what it said is the cause."""
    helps = ["nvidia-smi", "sudo dmesg -T | grep -iE 'nvrm|xid' | tail"]
    if "version mismatch" in said:
        helps.insert(0, "reboot, or reload the nvidia modules: the driver was updated under a running kernel module")
    if "not installed" in said:
        return skipped(
            "GPUs", said, "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    return failed("GPUs", "nvidia-smi fails", said, *helps)


def counted(gpus: Sequence[Gpu], visible: int | None, ranks: int, chosen: str | None) -> Finding:
    """How many there are, how many a rank would see, and of which kinds."""
    kinds = " and ".join(dict.fromkeys(gpu.name for gpu in gpus))
    value = f"{len(gpus)} ({kinds})" if gpus else "none"
    count = min(visible if visible is not None else len(gpus), len(gpus))
    if chosen is not None:
        value += f", {count} by CUDA_VISIBLE_DEVICES={chosen}"
    if count == 0:
        helps = "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L   # empty or -1 hides all"
        return warned("GPUs", value, "there is a driver, but ranks see no GPU", helps)
    if ranks > count:
        helps = f"--nproc-per-node={count}"
        return warned("GPUs", value, f"{ranks} ranks: NCCL refuses two ranks on one GPU", helps)
    if len(dict.fromkeys(gpu.name for gpu in gpus)) > 1:
        return warned("GPUs", value, "several kinds: the slowest sets the pace", "CUDA_VISIBLE_DEVICES=… of one kind")
    return Finding("GPUs", value)


def judged(gpu: Gpu) -> Finding:
    """One GPU: that it answers, its memory, how it is set up."""
    name = f"GPU {gpu.index}"
    if gpu.lost:
        helps = f"nvidia-smi -i {gpu.index} -q   # run without it (CUDA_VISIBLE_DEVICES), reset it, or reboot the host"
        return failed(name, gpu.lost, "the driver has lost it", helps)
    memory = f"{size_in_words(gpu.used)} of {size_in_words(gpu.total)} used" if gpu.total else "memory unknown"
    value = f"{gpu.name}, {memory}"
    if gpu.mode == "Prohibited":
        return failed(name, value, "its compute mode is Prohibited", f"sudo nvidia-smi -i {gpu.index} -c DEFAULT")
    if gpu.width_now and gpu.width_most and gpu.width_now < gpu.width_most:
        against = f"PCIe x{gpu.width_now}, and it can x{gpu.width_most}: transfers are slower"
        return warned(name, value, against, f"nvidia-smi -i {gpu.index} -q -d PCI   # reseat it, or check the riser")
    return Finding(name, value, against="split by MIG" if gpu.mig == "Enabled" else "")


CHECK = Check(
    "gpus",
    Group.GPUS,
    "GPUs of nvidia-smi against ranks and `CUDA_VISIBLE_DEVICES`, their memory, compute mode and PCIe width; fails if"
    " nvidia-smi fails or a GPU is lost.",
    _look,
    place=1,
)
