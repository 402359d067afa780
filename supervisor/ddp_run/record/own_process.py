"""Which process ddp-run is; whether a recorded run's ddp-run still runs; signals to it.

Source: proc(5): /proc/sys/kernel/random/boot_id; pid_namespaces(7).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ddp_run.record.events import OwnProcess
from ddp_run.values.process_table import began, in_masks, send_one


def this_process() -> OwnProcess | None:
    """None if /proc doesn't show it."""
    pid = os.getpid()
    started = began(pid)
    here = _here()
    return OwnProcess(pid, started, *here) if started is not None and here is not None else None


def still_runs(process: OwnProcess | None) -> bool | None:
    """None if that can't be known from here: another host or container, or a journal of an older version."""
    here = _here()
    if process is None or here is None or (process.pids, process.boot) != here:
        return None
    return began(process.pid) == process.started


def is_mine(process: OwnProcess | None) -> bool:
    """Whether this user runs it; root runs only what is root's."""
    try:
        return process is not None and os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
    except OSError:
        return False


def send(process: OwnProcess, signums: Sequence[int]) -> bool:
    """Send it these signals; False if it has ended. Another process with the same pid never gets them.

    A repeated signal waits until the first is no longer pending: the kernel merges two.
    """
    try:
        held = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # without pidfds, its pid might be reused between the look and the signal
        held = None
    try:
        if not still_runs(process):
            return False
        for index, signum in enumerate(signums):
            if signum in signums[:index]:
                _until_taken(process.pid, signum)
            if not send_one(process.pid, signum, held):
                return False
        return True
    finally:
        if held is not None:
            os.close(held)


def _until_taken(pid: int, signum: int) -> None:
    """Wait until no such signal is pending, but at most two seconds: it may be stuck in the kernel."""
    for _ in range(100):
        if not in_masks(pid, ("SigPnd", "ShdPnd"), [signum]):
            return
        time.sleep(0.02)


def _here() -> tuple[int, str] | None:
    """The pid namespace of our pids, and the boot from which ticks count. No two hosts share both."""
    try:
        pids = os.stat("/proc/self/ns/pid").st_ino
        return pids, Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
