"""The table that `nvidia-smi topo -m` prints: how GPUs and network adapters are connected. Pure.

Links, from near to far (nvidia-smi's legend): NV# bonded NVLinks, PIX one PCIe bridge, PXB several, PHB a host bridge
(the CPU), NODE the way between host bridges of a NUMA node, SYS the way between NUMA nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ddp_run.values.typed_fields import frozen

_SLOW = ("PHB", "NODE", "SYS", "SOC")
"""Through the CPU. SOC is what old drivers call SYS."""
_GOOD = ("PIX", "PXB", "PSB", "PIX/PXB")
_LINK = re.compile(r"NV\d{1,3}|PIX|PXB|PSB|PHB|NODE|SYS|SOC|X")
_GPU = re.compile(r"GPU\d{1,3}")
_ADAPTER = re.compile(
    r"NIC\d{1,3}|mlx\w{1,60}|bnxt\w{1,60}|irdma\w{1,60}|hfi\w{1,60}|ib\w{1,60}|rdma\w{1,60}|efa\w{0,60}"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NAMED = re.compile(r"^ +(NIC\d{1,3}): (\S{1,80})")
_MOST_LINES = 100


@frozen
class Topology:
    """`links`: by (row, column), for GPUs and adapters. `lines`: the table as it was printed."""

    gpus: tuple[str, ...]
    adapters: tuple[str, ...]
    links: dict[tuple[str, str], str]
    lines: tuple[str, ...]

    def pairs(self) -> dict[tuple[str, str], str]:
        """Each pair of GPUs once."""
        order = {gpu: place for place, gpu in enumerate(self.gpus)}
        return {
            (one, other): link
            for (one, other), link in self.links.items()
            if one in order and other in order and order[one] < order[other]
        }

    def nearest_adapters(self) -> dict[str, str]:
        """By GPU, the link to its nearest network adapter."""
        found = {}
        for gpu in self.gpus:
            links = [self.links[gpu, name] for name in self.adapters if (gpu, name) in self.links]
            if links:
                found[gpu] = min(links, key=_distance)
        return found


def read(text: str) -> Topology | None:
    """The table; null where the text has none."""
    lines = [_ESCAPE.sub("", line).rstrip() for line in text.splitlines()[:_MOST_LINES]]
    head = next((place for place, line in enumerate(lines) if re.match(r"\s+GPU0\b", line)), None)
    if head is None:
        return None
    # The columns behind the links (CPU Affinity, NUMA Affinity, GPU NUMA ID) have names of several words.
    columns = [word for word in lines[head].split() if _is_device(word)]
    links: dict[tuple[str, str], str] = {}
    table = [lines[head]]
    for line in lines[head + 1 :]:
        row, *cells = line.split() or [""]
        if not _is_device(row):
            if line:
                break
            continue
        table.append(line)
        links.update(
            ((row, column), cell)
            for column, cell in zip(columns, cells, strict=False)
            if _LINK.fullmatch(cell) and row != column
        )
    gpus = tuple(name for name in columns if _GPU.fullmatch(name))
    adapters = tuple(name for name in columns if not _GPU.fullmatch(name))
    named = [f"{found[1]}: {found[2]}" for line in lines if (found := _NAMED.match(line))]
    return Topology(gpus, adapters, links, (*(line.expandtabs(8) for line in table), *named))


def _is_device(word: str) -> bool:
    return _GPU.fullmatch(word) is not None or _ADAPTER.fullmatch(word) is not None


def is_slow(link: str) -> bool:
    """Whether it goes through the CPU."""
    return link in _SLOW


def _distance(link: str) -> int:
    return 0 if link.startswith("NV") else 1 if link in _GOOD else 2


def summed(links: Iterable[str]) -> str:
    """`28 pairs NV18`, `4 pairs PIX, 24 pairs SYS`."""
    counts = Counter(links)
    return ", ".join(f"{count} pair{'s' if count > 1 else ''} {link}" for link, count in counts.most_common())
