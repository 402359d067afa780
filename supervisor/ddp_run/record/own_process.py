"""Which process ddp-run is, whether the ddp-run of a recorded run still runs, and signals to it.

Source: proc(5): /proc/PID/stat, field 22, and status; /proc/sys/kernel/random/boot_id; pid_namespaces(7).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from ddp_run.record.events import OwnProcess

_STARTED = 22 - 3
"""Its place in what follows the command's name, which may hold blanks."""
_ENDED = (b"Z", b"X")


def this_process() -> OwnProcess | None:
    """Null where /proc does not show it."""
    pid = os.getpid()
    started = _started(pid)
    here = _here()
    return OwnProcess(pid, started, *here) if started is not None and here is not None else None


def still_runs(process: OwnProcess | None) -> bool | None:
    """Null where that cannot be known from here: another host or container, or a journal of an older version."""
    here = _here()
    if process is None or here is None or (process.pids, process.boot) != here:
        return None
    return _started(process.pid) == process.started


def is_mine(process: OwnProcess | None) -> bool:
    """Whether this user runs it; root runs only what is root's."""
    try:
        return process is not None and os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
    except OSError:
        return False


def send(process: OwnProcess, signums: Sequence[int]) -> bool:
    """Send it these signals; False where it has ended. No other process that got its number has them.

    One that comes twice is sent again when the first is not pending any more: the kernel makes one of two.
    """
    with ExitStack() as stack:
        give = partial(os.kill, process.pid)
        try:
            held = os.pidfd_open(process.pid)
            stack.callback(os.close, held)
            give = partial(signal.pidfd_send_signal, held)
        except (OSError, AttributeError):  # without pidfds what is left is the moment between the look and the signal
            pass
        try:
            if still_runs(process):
                for index, signum in enumerate(signums):
                    if signum in signums[:index]:
                        _until_taken(process.pid, signum)
                    give(signum)
                return True
        except ProcessLookupError:
            pass
    return False


def _until_taken(pid: int, signum: int) -> None:
    """Wait until no such signal is pending; a process that waits in the kernel is not waited for."""
    for _ in range(100):
        with suppress(OSError, ValueError):
            lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
            if not any(mask >> (signum - 1) & 1 for mask in masks):
                return
        time.sleep(0.02)


def _started(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; null where it has ended. Pids come again, with another."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in _ENDED else int(fields[_STARTED])
    except (OSError, IndexError, ValueError):
        return None


def _here() -> tuple[int, str] | None:
    """The pid namespace that numbers are of, and the boot that ticks are counted from; no two hosts have the same."""
    try:
        pids = os.stat("/proc/self/ns/pid").st_ino
        return pids, Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
