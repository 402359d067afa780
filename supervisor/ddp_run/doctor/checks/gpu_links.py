"""How GPUs are connected with each other and with network adapters: the table of `nvidia-smi topo -m`. Pure.

Links, from near to far (nvidia-smi's legend): NV# bonded NVLinks, PIX one PCIe bridge, PXB several, PHB a host bridge
(the CPU). NODE goes between host bridges of one NUMA node, SYS between NUMA nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from ddp_run.doctor.check import Group, Level, NoAnswer, Surroundings, check
from ddp_run.doctor.findings import Finding, skipped, warned
from ddp_run.values.typed_fields import frozen

_THROUGH_CPU = ("PHB", "NODE", "SYS", "SOC")
"""Slow. Old drivers call SYS SOC."""
_NEAR = ("PIX", "PXB", "PSB")
_LINK = re.compile(r"NV\d{1,3}|PIX|PXB|PSB|PHB|NODE|SYS|SOC|X")
_GPU = re.compile(r"GPU\d{1,3}")
_DEVICE = re.compile(
    r"(?:GPU|NIC)\d{1,3}|mlx\w{1,60}|bnxt\w{1,60}|irdma\w{1,60}|hfi\w{1,60}|ib\w{1,60}|rdma\w{1,60}|efa\w{0,60}"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NAMED = re.compile(r"^ +(NIC\d{1,3}): (\S{1,80})")
_MOST_LINES = 100


@frozen
class Topology:
    """`links`: by (row, column), for GPUs and adapters. `lines`: the table as printed."""

    gpus: tuple[str, ...]
    adapters: tuple[str, ...]
    links: dict[tuple[str, str], str]
    lines: tuple[str, ...]

    def pairs(self) -> dict[tuple[str, str], str]:
        """Return the link of each pair of GPUs, once."""
        return {pair: self.links[pair] for pair in combinations(self.gpus, 2) if pair in self.links}

    def nearest_adapters(self) -> dict[str, str]:
        """Return, by GPU, the link to its nearest network adapter."""
        by_gpu = {
            gpu: [self.links[gpu, each] for each in self.adapters if (gpu, each) in self.links] for gpu in self.gpus
        }
        return {gpu: min(links, key=_distance) for gpu, links in by_gpu.items() if links}


def _distance(link: str) -> int:
    return 0 if link.startswith("NV") else 1 if link in _NEAR else 2


def read(text: str) -> Topology | None:
    """Read the table; None if the text has none."""
    lines = [_ESCAPE.sub("", line).rstrip() for line in text.splitlines()[:_MOST_LINES]]
    head = next((place for place, line in enumerate(lines) if re.match(r"\s+GPU0\b", line)), None)
    if head is None:
        return None
    # The columns after the links (CPU Affinity, NUMA Affinity, GPU NUMA ID) have names of several words.
    columns = [word for word in lines[head].split() if _DEVICE.fullmatch(word)]
    links: dict[tuple[str, str], str] = {}
    table = [lines[head]]
    for line in filter(None, lines[head + 1 :]):
        row, *cells = line.split()
        if not _DEVICE.fullmatch(row):
            break
        table.append(line)
        named = zip(columns, cells, strict=False)
        links |= {(row, column): cell for column, cell in named if _LINK.fullmatch(cell) and row != column}
    gpus = tuple(name for name in columns if _GPU.fullmatch(name))
    adapters = tuple(name for name in columns if not _GPU.fullmatch(name))
    names = [f"{found[1]}: {found[2]}" for line in lines if (found := _NAMED.match(line))]
    return Topology(gpus, adapters, links, (*(line.expandtabs(8) for line in table), *names))


@check(Group.GPUS, "links of the GPUs", Level.DEFAULT)
def gpu_topology(around: Surroundings) -> Iterator[Finding]:
    """`nvidia-smi topo -m`: NV#, PIX and PXB are good; warns of PHB, NODE and SYS, and of pairs with fewer NVLinks."""
    if not around.has_driver:
        return
    try:
        found = read(around.nvidia_smi("topo", "-m"))
    except NoAnswer as error:
        yield skipped("topology", f"nvidia-smi topo -m: {error}")
        return
    if found is None:
        yield skipped("topology", "nvidia-smi topo -m printed no table that the doctor can read")
    else:
        yield from judged(found)


def judged(found: Topology) -> Iterator[Finding]:
    """Judge the links between GPUs, then each GPU's link to its nearest network adapter."""
    yield _between_gpus(found)
    if found.adapters:
        yield _to_adapters(found)


def _between_gpus(found: Topology) -> Finding:
    pairs = found.pairs()
    counts = Counter(pairs.values())
    value = ", ".join(f"{count} pair{'s' if count > 1 else ''} {link}" for link, count in counts.most_common())
    slow = [f"{one}-{other} {link}" for (one, other), link in pairs.items() if link in _THROUGH_CPU]
    nvlinks = {link for link in counts if link.startswith("NV")}
    if slow:
        shown = ", ".join(slow[:6]) + (f" and {len(slow) - 6} more" if len(slow) > 6 else "")
        against = f"NV# or PIX/PXB is better; PHB, NODE and SYS go through the CPU: {shown}"
        helps = "choose GPUs that are near each other: CUDA_VISIBLE_DEVICES   # nvidia-smi topo -m"
        return warned("GPU links", value, against, helps, detail=found.lines)
    if nvlinks and len(counts) > 1:
        helps = "nvidia-smi nvlink -s   # fewer links than the others: is one down, or is the board built that way?"
        against = "not the same for all pairs: the slowest sets the pace"
        return warned("GPU links", value, against, helps, detail=found.lines)
    return Finding("GPU links", value, detail=found.lines) if pairs else Finding("GPU links", "one GPU")


def _to_adapters(found: Topology) -> Finding:
    name = "GPUs to network adapters"
    far = [f"{gpu} {link}" for gpu, link in found.nearest_adapters().items() if link in _THROUGH_CPU]
    if not far:
        return Finding(name, "each GPU has one nearby (PIX, PXB)")
    against = "PIX or PXB is needed for GPUDirect RDMA; PHB, NODE and SYS go through the CPU"
    return warned(name, ", ".join(far), against, "NCCL_IB_HCA: the adapters near the GPUs, if there are any")
