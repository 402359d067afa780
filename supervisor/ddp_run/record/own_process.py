"""Which process ddp-run is, whether the ddp-run of a recorded run still runs, and signals to it.

Source: proc(5): /proc/PID/stat, field 22; /proc/sys/kernel/random/boot_id; pid_namespaces(7).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
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
    """Send it these signals, in order; False where it has ended. No other process that got its number has them."""
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
                for signum in signums:
                    give(signum)
                return True
        except ProcessLookupError:
            pass
    return False


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
