"""Which process ddp-run is, and whether the ddp-run of a recorded run still runs.

Source: proc(5): /proc/sys/kernel/random/boot_id; pid_namespaces(7).
"""

from __future__ import annotations

import os
from pathlib import Path

from ddp_run.record.events import OwnProcess
from ddp_run.values.process_table import began


def this_process() -> OwnProcess | None:
    """Null where /proc does not show it."""
    pid = os.getpid()
    started = began(pid)
    here = _here()
    return OwnProcess(pid, started, *here) if started is not None and here is not None else None


def still_runs(process: OwnProcess | None) -> bool | None:
    """Null where that cannot be known from here: another host or container, or a journal of an older version."""
    here = _here()
    if process is None or here is None or (process.pids, process.boot) != here:
        return None
    return began(process.pid) == process.started


def _here() -> tuple[int, str] | None:
    """The pid namespace that numbers are of, and the boot that ticks are counted from; no two hosts have the same."""
    try:
        pids = os.stat("/proc/self/ns/pid").st_ino
        return pids, Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
