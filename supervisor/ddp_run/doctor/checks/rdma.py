"""InfiniBand and RoCE adapters, which NCCL prefers to TCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, skipped, warned

_RDMA = Path("/sys/class/infiniband")


def _look(_around: Surroundings) -> Iterator[Finding]:
    ports = sorted(_RDMA.glob("*/ports/*"))
    if not ports:
        yield skipped("InfiniBand, RoCE", "there is none here")
    for port in ports:
        yield judged(port.parents[1].name, port.name, _text(port / "state"), _text(port / "rate"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return "unknown"


def judged(device: str, port: str, state: str, rate: str) -> Finding:
    """`state`: `4: ACTIVE`, `1: DOWN`. A port that is down is often just not cabled."""
    name = f"{device} port {port}"
    if state.endswith("ACTIVE") or state == "unknown":
        return Finding(name, f"{state.rpartition(' ')[2].lower()}, {rate}")
    helps = f"ibstat {device}   # if nothing is to be connected there: export NCCL_IB_HCA=^{device}"
    return warned(name, state.rpartition(" ")[2].lower(), "NCCL cannot use a port that is not active", helps)


CHECK = Check("rdma", Group.NETWORK, "State and rate of InfiniBand and RoCE ports; warns if one is not active.", _look)
