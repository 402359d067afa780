"""The process table: which processes run and since when, who is below whom, what they carry; and signals to them.

The only reader of /proc/PID/stat, status, children, environ and cmdline. The keeper, which runs alone, uses this file
too, so it needs only the standard library, and little of that.

- A process has ended when no thread of it is left. If only its main thread has exited, it's listed as a zombie too, but
  runs on and may exit with any code.
- A pid is the same process only while its start time is the same: the kernel reuses pids.
- Each thread has its own children. When it exits, another thread of the process inherits them.

Source: proc(5); tgkill(2); Linux, fs/proc/array.c, kernel/exit.c.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ddp_run.values.helper_process import fork, reap

_CHILDREN = "/proc/thread-self/children"
"""Missing on kernels without CONFIG_PROC_CHILDREN; there, the parent of every process is read."""
_SILENT_S = 0.3
_READ_S = 0.7
"""The longest that ddp-run's loop waits for environments or command lines that a process may keep from being read."""
_PF_EXITING = 0x4
_TGKILL = {"x86_64": 234, "aarch64": 131, "riscv64": 131, "loongarch64": 131, "ppc64le": 250, "s390x": 241}
"""The system call's number (Linux, asm/unistd.h). The C library has tgkill only since glibc 2.30."""


class Process(NamedTuple):
    """/proc/PID/stat. `began`: clock ticks since the boot; `cpu_ticks`: all threads and children already waited for.

    `exit_status`: as wait(2) gives it, once the process has ended.
    """

    name: bytes
    state: bytes
    parent: int
    cpu_ticks: int
    threads: int
    began: int
    exit_status: int

    @property
    def ended(self) -> bool:
        """Whether no thread is left."""
        return self.state in (b"Z", b"X") and self.threads <= 1


def look(pid: int) -> Process | None:
    """A process or a thread as it is now; None if it's gone or /proc can't be read."""
    before, _, after = _read(f"/proc/{pid}/stat").rpartition(b")")
    fields = after.split()
    if len(fields) < 50:
        return None
    cpu_ticks = sum(map(int, fields[11:15]))
    name = before.partition(b"(")[2]
    return Process(name, fields[0], int(fields[1]), cpu_ticks, int(fields[17]), int(fields[19]), int(fields[49]))


def began(pid: int) -> int | None:
    """When a process began; None if it has ended."""
    found = look(pid)
    return None if found is None or found.ended else found.began


def living(known: Mapping[int, int]) -> dict[int, int]:
    """Those that still run and are still the same process. `known`: pids and when each began."""
    return {pid: at for pid, at in known.items() if began(pid) == at}


def is_alive(pid: int) -> bool:
    """Whether a process exists and hasn't ended. Also works without /proc."""
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


def is_ending(pid: int) -> bool:
    """Whether a process has got SIGKILL, or is on its way out for another reason (linux/sched.h: PF_EXITING)."""
    flags = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[6:7]
    return any(int(each) & _PF_EXITING for each in flags) or in_masks(pid, ("SigPnd",), [signal.SIGKILL])


def threads(pid: int) -> list[int]:
    """The thread ids of a process; /proc knows each like a pid. Empty if it's gone."""
    return sorted(_numbers(f"/proc/{pid}/task"))


def acting(pid: int) -> int:
    """The main thread, or another one if that has exited: it no longer shows anything of the process."""
    found = look(pid)
    exited = found is not None and found.state == b"Z" and not found.ended
    return next((thread for thread in threads(pid) if thread != pid), pid) if exited else pid


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status of a process or a thread, by name; empty if it's gone."""
    lines = _read(f"/proc/{pid}/status").decode("utf-8", "surrogateescape").split("\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


def in_masks(pid: int, names: Iterable[str], signums: Iterable[int]) -> bool:
    """Whether one of these signals is in one of these masks of a process (`SigCgt`); False if it's gone."""
    found = status(pid)
    masks = [int(found[name], 16) for name in names if name in found]
    return any(mask >> (signum - 1) & 1 for signum in signums for mask in masks)


# ------------------------------------------------------------------------------------- who is below whom


def children(pid: int) -> list[int]:
    """The children of all threads of a process, including ended ones that it hasn't waited for."""
    return _children_of()(pid)


def below(root: int, but: Iterable[int] = ()) -> dict[int, int] | None:
    """Living descendants of a process and when each began; None if /proc can't be read.

    Leaves out this process, `but`, and the descendants of both.
    """
    if look(os.getpid()) is None:
        return None
    left_out = {root, os.getpid(), *but}
    before: list[int] = []
    while True:
        children_of, found, listed, seen = _children_of(), dict[int, int](), [root], {*left_out}
        for parent in listed:
            fresh = [pid for pid in children_of(parent) if pid not in seen]
            seen.update(fresh)
            listed += fresh
            found |= {pid: at for pid in fresh if (at := began(pid)) is not None}
        # A process whose parent has just died is now root's child, but wasn't when root's list was read.
        if found or listed == before:
            return found
        before = listed


def _children_of() -> Callable[[int], list[int]]:
    if os.access(_CHILDREN, os.F_OK):
        return lambda pid: [
            int(n) for thread in threads(pid) for n in _read(f"/proc/{pid}/task/{thread}/children").split()
        ]
    found: dict[int, list[int]] = {}
    for pid in _numbers("/proc"):
        if (process := look(pid)) is not None:
            found.setdefault(process.parent, []).append(pid)
    return lambda pid: found.get(pid, [])


def _read(path: str) -> bytes:
    """The whole file; empty if it can't be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _numbers(folder: str) -> list[int]:
    """The entries of a folder that are numbers; none if it can't be read."""
    try:
        with os.scandir(folder) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError:
        return []


# ----------------------------------------------------------------------------------------------- signals


def send(known: Mapping[int, int], signum: int) -> tuple[int, ...]:
    """Signal each that is still the same process. Returns the pids that got it; those of other users don't."""
    return tuple(pid for pid in living(known) if send_one(pid, signum))


def send_one(pid: int, signum: int, pidfd: int | None = None) -> bool:
    """Signal a process, through its pidfd if there is one: the pid may be reused. Returns whether it got it."""
    try:
        if pidfd is None:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(pidfd, signum)
    except OSError:
        return False
    return True


def send_to_thread(pid: int, thread: int, signum: int) -> bool:
    """Signal one thread, so that no other thread's system call ends early. Returns whether that worked."""
    import ctypes

    number = _TGKILL.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, pid, thread, signum) == 0


# ------------------------------------------------------------ files that need the lock of a process's memory


def carriers(marks: Collection[bytes]) -> Iterator[int]:
    """Processes that have one of these entries in their environment."""
    for pid, environ in asked(_numbers("/proc"), "environ"):
        if pid != os.getpid() and not {*marks}.isdisjoint(environ.split(b"\0")):
            yield pid


def command_lines(pids: Iterable[int], most_s: float = _READ_S) -> dict[int, list[str]]:
    """The command lines of those that have one and answer within `most_s` seconds."""
    texts = ((pid, text.rstrip(b"\0")) for pid, text in asked(pids, "cmdline", most_s))
    return {pid: text.decode(errors="replace").split("\0") for pid, text in texts if text}


def environs(pids: Iterable[int]) -> dict[int, dict[str, str]]:
    """The variables that each was started with, leaving out processes that can't be read."""
    texts = {pid: text.decode("utf-8", "surrogateescape") for pid, text in asked(pids, "environ", _READ_S) if text}
    return {pid: dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry) for pid, text in texts.items()}


def asked(pids: Iterable[int], name: str, most_s: float = float("inf")) -> Iterator[tuple[int, bytes]]:
    """`environ` or `cmdline` of each; empty if it may not be read.

    Reading these takes the lock of the process's memory. A thread that waits for a dead mount may hold it forever. So
    processes in state D aren't asked, a fork does the reading, and a process that doesn't answer is skipped.
    """
    waiting = [pid for pid in pids if (process := look(pid)) is not None and process.state != b"D"]
    deadline = time.monotonic() + most_s
    while waiting and time.monotonic() < deadline:
        try:
            reader = fork(partial(_read_each, waiting, name), _SILENT_S)
        except OSError:
            return
        answered, over = 0, False
        while not over and not reader.late:
            reader.wait()
            lines, over = reader.lines()
            for line in lines:
                yield waiting[answered], bytes.fromhex(line.decode())
                answered += 1
                reader.deadline = min(time.monotonic() + _SILENT_S, deadline)
        reader.end()
        reap(reader.pid)
        waiting = waiting[answered + 1 :]


def _read_each(pids: Iterable[int], name: str, fd: int) -> None:
    for pid in pids:
        os.write(fd, _read(f"/proc/{acting(pid)}/{name}").hex().encode() + b"\n")
