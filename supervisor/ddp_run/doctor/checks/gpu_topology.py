"""How the GPUs are connected with each other and with the network adapters."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_run.doctor import topology
from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.surroundings import NoAnswer, Surroundings
from ddp_run.doctor.topology import Topology
from ddp_run.values.finding import Finding, skipped, warned


def _look(around: Surroundings) -> Iterator[Finding]:
    if not around.has_driver:
        return
    try:
        text = around.nvidia_smi("topo", "-m")
    except NoAnswer as error:
        yield skipped("topology", f"nvidia-smi topo -m: {error}")
        return
    found = topology.read(text)
    if found is None:
        yield skipped("topology", "nvidia-smi topo -m printed no table that can be read")
        return
    yield from judged(found)


def judged(found: Topology) -> Iterator[Finding]:
    """GPUs with each other, then each GPU's nearest network adapter."""
    pairs = found.pairs()
    if not pairs:
        yield Finding("GPU links", "one GPU")
    else:
        yield _between_gpus(found, pairs)
    if found.adapters:
        yield _to_adapters(found)


def _between_gpus(found: Topology, pairs: dict[tuple[str, str], str]) -> Finding:
    words = topology.summed(pairs.values())
    slow = [f"{one}-{other} {link}" for (one, other), link in pairs.items() if topology.is_slow(link)]
    nvlinks = {link for link in pairs.values() if link.startswith("NV")}
    if slow:
        against = "NV# or PIX/PXB; PHB, NODE and SYS go through the CPU"
        shown = ", ".join(slow[:6]) + (f" and {len(slow) - 6} more" if len(slow) > 6 else "")
        helps = "choose GPUs that are near each other: CUDA_VISIBLE_DEVICES   # nvidia-smi topo -m"
        return warned("GPU links", words, f"{against}: {shown}", helps, detail=found.lines)
    if len(nvlinks) > 1 or (nvlinks and len(nvlinks) < len(set(pairs.values()))):
        helps = "nvidia-smi nvlink -s   # fewer links than the others: is one down, or is the board made so?"
        return warned(
            "GPU links", words, "not the same for all pairs: the slowest sets the pace", helps, detail=found.lines
        )
    return Finding("GPU links", words, detail=found.lines)


def _to_adapters(found: Topology) -> Finding:
    far = {gpu: link for gpu, link in found.nearest_adapters().items() if topology.is_slow(link)}
    if not far:
        return Finding("GPUs to network adapters", "each has one near (PIX, PXB)")
    shown = ", ".join(f"{gpu} {link}" for gpu, link in far.items())
    against = "PIX or PXB for GPUDirect RDMA; PHB, NODE and SYS go through the CPU"
    return warned(
        "GPUs to network adapters", shown, against, "NCCL_IB_HCA: the adapters near the GPUs, if there are any"
    )


CHECK = Check(
    "gpu_topology",
    Group.GPUS,
    "`nvidia-smi topo -m`: NV#, PIX and PXB are good; warns of PHB, NODE and SYS, and of pairs with fewer NVLinks.",
    _look,
    Level.DEFAULT,
)
