"""What the driver has written to the kernel's log: Xid errors since the host started."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.judge.rules.gpu_hardware import XID, XIDS
from ddp_run.observe.kernel_log import KernelLog
from ddp_run.record.events import MonotonicNs
from ddp_run.values.finding import Finding, failed, skipped, warned

_GONE = 79
"""Only a reboot brings such a GPU back; the log begins anew with it."""


def _look(around: Surroundings) -> Iterator[Finding]:
    if not around.has_driver:
        return
    log = KernelLog.open(from_start=True)
    try:
        if not log.is_readable:
            yield skipped("Xid errors", "the kernel's log may not be read here", "sudo dmesg -T | grep -i xid")
            return
        found = log.read(MonotonicNs(time.monotonic_ns()))
    finally:
        log.close()
    yield from judged(found.lines if found is not None else ())


def judged(lines: Sequence[str]) -> Iterator[Finding]:
    """Errors of the hardware, a finding for each GPU and number; those that programs cause are none."""
    seen: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        if (hit := XID.search(line)) is not None and int(hit["number"]) in XIDS:
            seen.setdefault((hit["pci"], int(hit["number"])), []).append(line)
    if not seen:
        yield Finding("Xid errors", "none of the hardware in the kernel's log")
    for (pci, number), of_it in seen.items():
        often = f", {len(of_it)} times" if len(of_it) > 1 else ""
        value = f"{number}: {XIDS[number]}{often}"
        helps = (f"nvidia-smi -i {pci} -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT", "ddp-run rules gpu-hardware")
        grade = failed if number == _GONE else warned
        yield grade(f"Xid at {pci}", value, "since the host started", *helps, detail=of_it[-1:])


CHECK = Check(
    "gpu_kernel_log",
    Group.GPUS,
    "Xid errors of the hardware in the kernel's log since the start of the host; fails if a GPU fell off the bus.",
    _look,
)
