"""barrier, all_reduce and broadcast: that they end, and that what comes out is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_run.doctor.check import Check, Group, Level
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, failed, skipped
from ddp_run.values.words import named_ranks

_HELPS = (
    "NCCL_P2P_DISABLE=1, then NCCL_SHM_DISABLE=1, NCCL_IB_DISABLE=1: the one that cures it names the broken way",
    "virtual machines: disable ACS and the IOMMU for the GPUs (NCCL's troubleshooting, PCI Access Control Services)",
)


def _look(around: Surroundings) -> Iterator[Finding]:
    if around.reports is None:
        return
    found = around.reports.one("collectives")
    yield judged(found["ranks"]) if found is not None else skipped("collectives", around.reports.why_not())


def judged(ranks: Sequence[Mapping[str, Any]]) -> Finding:
    """`ranks`: by rank, which of them came out wrong."""
    wrong = {rank: told["wrong"] for rank, told in enumerate(ranks) if told["wrong"]}
    if wrong:
        what = ", ".join(dict.fromkeys(name for names in wrong.values() for name in names))
        against = f"the known results; data is damaged on the way to {named_ranks(wrong)}"
        return failed("collectives", f"wrong: {what}", against, *_HELPS)
    slowest = max(told["barrier_s"] for told in ranks)
    return Finding("collectives", f"barrier ({1000 * slowest:.1f} ms), all_reduce and broadcast are right")


CHECK = Check(
    "collectives",
    Group.RANKS,
    "`barrier`, `all_reduce` and `broadcast` with known results; fails if one is wrong on any rank.",
    _look,
    Level.DEFAULT,
    of_ranks=True,
    place=3,
)
