"""How ranks end, what they handle, what is left behind: further looks at processes by their numbers. No policy.

Source: proc(5), tgkill(2), linux/pidfd.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Collection, Iterable
from pathlib import Path

from ddp_run.values.process_table import asked, below, children, command_lines, in_masks, look

_TGKILL = {"x86_64": 234, "aarch64": 131, "riscv64": 131, "loongarch64": 131, "ppc64le": 250, "s390x": 241}
"""Its number (Linux, asm/unistd.h): the C library has a name for it only since glibc 2.30."""
# linux/pidfd.h: struct pidfd_info as of its first version (64 bytes), its ioctl and the flag for the exit code.
_PIDFD_INFO = struct.Struct("QQ11Ii")
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
_READ_S = 0.7
"""Most that the loop is away for what a process may keep from being read."""


def read_exit_status(pid: int, pidfd: int | None) -> int | None:
    """Wait status of a process that ended and is not our child, as wait(2) gives it; null where unreadable.

    While its parent has not reaped it, /proc/PID/stat shows the wait status in its last field (proc(5), field 52);
    afterwards the kernel (6.15 and newer) still tells through the pidfd (linux/pidfd.h, PIDFD_GET_INFO).
    """
    status = _zombie_status(pid)
    return _pidfd_status(pidfd) if status is None and pidfd is not None else status


def _zombie_status(pid: int) -> int | None:
    found = look(pid)
    if found is None or not found.ended:
        return None
    return found.exit_status if found.exit_status or _may_trace(pid) else None


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


def _pidfd_status(pidfd: int) -> int | None:
    request = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, *_rest, status = _PIDFD_INFO.unpack(request)
    return status if mask & _PIDFD_INFO_EXIT else None


def send_to_thread(pid: int, thread: int, signum: int) -> bool:
    """Signal one thread of a process (tgkill(2)): no call of another thread ends early. Whether that was done."""
    number = _TGKILL.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, pid, thread, signum) == 0


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    found = look(pid)
    if found is not None:
        return not found.ended
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def outlives(pid: int, signum: int) -> bool:
    """Whether a process catches or ignores a signal, so that sending it does not end it."""
    return in_masks(pid, (b"SigCgt:", b"SigIgn:"), [signum])


def catches(pid: int, signum: int) -> bool:
    """Whether a process handles a signal now: it does not any more once it has run another program (exec)."""
    return in_masks(pid, (b"SigCgt:",), [signum])


def descendants(*, but: Iterable[int] = ()) -> dict[int, int]:
    """Who lives below this process (as subreaper: the whole job), as `below`; nobody where /proc cannot be read."""
    return below(os.getpid(), but) or {}


def described(pid: int) -> str:
    """Pid and command line, as `descriptions`; the pid alone where it has ended."""
    return descriptions([pid]).get(pid, str(pid))


def descriptions(pids: Iterable[int]) -> dict[int, str]:
    """Pid and command line of each, without its secrets, for a note; the name alone where that cannot be read."""
    from ddp_run.values.redaction import redact_words

    named = {pid: [process.name.decode(errors="replace")] for pid in pids if (process := look(pid)) is not None}
    named |= command_lines(named, _READ_S)
    return {pid: f"{pid} ({' '.join(' '.join(redact_words(words)).split())[:120]})" for pid, words in named.items()}


def find_ranks(agent: int, but: Collection[int] = ()) -> list[tuple[int, dict[str, str]]]:
    """The agent's children that have a rank: (pid, environment). For ranks that cannot say hello themselves."""
    return [
        (pid, environ)
        for pid, environ in environs(pid for pid in children(agent) if pid not in but).items()
        if environ.get("RANK", "").isdigit() and environ.get("TORCHELASTIC_RESTART_COUNT", "").isdigit()
    ]


def environs(pids: Iterable[int]) -> dict[int, dict[str, str]]:
    """The variables that each was started with; without those that cannot be read."""
    texts = {pid: text.decode("utf-8", "surrogateescape") for pid, text in asked(pids, "environ", _READ_S) if text}
    return {pid: dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry) for pid, text in texts.items()}
