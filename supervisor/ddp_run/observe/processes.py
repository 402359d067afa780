"""Looks at processes by their numbers, and signals to them. No policy.

Source: proc(5), kill(2), tgkill(2), linux/pidfd.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from ddp_run.values import kernel_text

_ENDED = (b"Z", b"X")
_TGKILL = {"x86_64": 234, "aarch64": 131, "riscv64": 131, "loongarch64": 131, "ppc64le": 250, "s390x": 241}
"""Its number (Linux, asm/unistd.h): the C library has a name for it only since glibc 2.30."""
# linux/pidfd.h: struct pidfd_info as of its first version (64 bytes), its ioctl and the flag for the exit code.
_PIDFD_INFO = struct.Struct("QQ11Ii")
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3


def read_exit_status(pid: int, pidfd: int | None) -> int | None:
    """Wait status of a process that ended and is not our child, as wait(2) gives it; null where unreadable.

    While its parent has not reaped it, /proc/PID/stat shows the wait status in its last field (proc(5), field 52);
    afterwards the kernel (6.15 and newer) still tells through the pidfd (linux/pidfd.h, PIDFD_GET_INFO).
    """
    status = _zombie_status(pid)
    return _pidfd_status(pidfd) if status is None and pidfd is not None else status


def _zombie_status(pid: int) -> int | None:
    fields = _stat(pid)
    if fields is None or fields[0] not in _ENDED:
        return None
    status = int(fields[49])
    return status if status or _may_trace(pid) else None


def _may_trace(pid: int) -> bool:
    """Whether the kernel would show an exit code: to others than who may trace the process it shows 0.

    The same right is asked for the process' namespaces (fs/proc/array.c, fs/proc/namespaces.c); a rank may have become
    another user.
    """
    try:
        Path(f"/proc/{pid}/ns/user").readlink()
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def _stat(pid: int) -> list[bytes] | None:
    """/proc/PID/stat (proc(5)) from the third field, the state, on; null where it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 49 else None


def _pidfd_status(pidfd: int) -> int | None:
    request = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, *_rest, status = _PIDFD_INFO.unpack(request)
    return status if mask & _PIDFD_INFO_EXIT else None


def send_signal(pids: Iterable[int], signum: int) -> tuple[int, ...]:
    """Signal each process; those that are gone (or not ours to signal) are passed over. Returns the reached.

    Numbers below 2 mean other things than one process (kill(2)): groups, everybody, the first process.
    """
    reached = []
    for pid in pids:
        if pid <= 1 or pid == os.getpid():
            continue
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError, OverflowError):
            continue
        reached.append(pid)
    return tuple(reached)


def send_to_thread(pid: int, thread: int, signum: int) -> bool:
    """Signal one thread of a process (tgkill(2)): no call of another thread ends early. Whether that was done."""
    number = _TGKILL.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, pid, thread, signum) == 0


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    fields = _stat(pid)
    if fields is not None:
        return fields[0] not in _ENDED
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def outlives(pid: int, signum: int) -> bool:
    """Whether a process catches or ignores a signal, so that sending it does not end it."""
    return _in_masks(pid, signum, ("SigCgt:", "SigIgn:"))


def catches(pid: int, signum: int) -> bool:
    """Whether a process handles a signal now: it does not any more once it has run another program (exec)."""
    return _in_masks(pid, signum, ("SigCgt:",))


def _in_masks(pid: int, signum: int, names: tuple[str, ...]) -> bool:
    """Whether a signal is in one of these masks of a process (proc(5)); not where it is gone."""
    try:
        status = kernel_text.lines(Path(f"/proc/{pid}/status"))
    except OSError:
        return False
    masks = (line.split()[1] for line in status if line.startswith(names))
    return any(int(mask, 16) >> (signum - 1) & 1 for mask in masks)


def descendants(*, but: Iterable[int] = ()) -> list[int]:
    """Pids of all that live below this process (as subreaper: the whole job), without `but` and zombies.

    Empty where /proc cannot be read.
    """
    return below(but=but) or []


def below(*, but: Iterable[int] = ()) -> list[int] | None:
    """As `descendants`; null where /proc cannot be read."""
    try:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    looks = {pid: fields for pid in pids if (fields := _stat(pid)) is not None}
    if os.getpid() not in looks:
        return None
    children: dict[int, list[int]] = {}
    for pid, fields in looks.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, ())
    left_out = {os.getpid(), *but}
    return [pid for pid in found if pid not in left_out and looks[pid][0] not in _ENDED]


def tree(root: int) -> set[int]:
    """Pids of what was started below a process, without itself. Reads those alone, where `below` reads all of /proc."""
    found, waiting = set[int](), [root]
    while waiting:
        for thread in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                started = {int(word) for word in thread.read_bytes().split()} - found
            except OSError:
                continue
            found |= started
            waiting += started
    return found


def began(pid: int) -> int | None:
    """When a process began, in ticks since the boot (proc(5), starttime): pids come again. Null where it has ended."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None and fields[0] not in _ENDED else None


def describe(pid: int) -> str:
    """Pid and command line of a process without its secrets, for a note; its name alone where it waits in the kernel.

    Reading a command line can wait for what the process waits for (a lock of its memory, held at a dead mount).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        name, _, rest = stat.partition(b"(")[2].rpartition(b") ")
        in_kernel = rest.startswith(b"D")
        words = [name] if in_kernel else Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return str(pid)
    from ddp_run.values.redaction import redact_words

    shown = " ".join(" ".join(redact_words([word.decode(errors="replace") for word in words])).split())
    return f"{pid} ({shown[:120]})"


def find_ranks(agent: int) -> list[tuple[int, dict[str, str]]]:
    """The agent's children that have a rank: (pid, environment). For ranks that cannot say hello themselves."""
    found = []
    for child in _children(agent):
        fields = _stat(child)
        # reading the environment of what waits in the kernel can wait for the same
        environ = _environ(child) if fields is not None and fields[0] != b"D" else {}
        if environ.get("RANK", "").isdigit() and environ.get("TORCHELASTIC_RESTART_COUNT", "").isdigit():
            found.append((child, environ))
    return found


def _children(parent: int) -> list[int]:
    """Of all its threads; by a look at every process where the kernel keeps no such list (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (thread / "children").read_bytes().split())
    except OSError:
        return [pid for pid in descendants() if (fields := _stat(pid)) is not None and int(fields[1]) == parent]
    return found


def _environ(pid: int) -> dict[str, str]:
    try:
        entries = kernel_text.read(Path(f"/proc/{pid}/environ")).split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
