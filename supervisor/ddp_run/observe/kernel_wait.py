"""What a thread waits for in the kernel: its system call, and the file, lock or mount involved."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_run.observe.close_look import INPUT
from ddp_run.observe.mounts import Mount, mount_over, mounts
from ddp_run.record.events import Rank
from ddp_run.values import kernel_text

_LONGEST_PATH = 4096
_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class PathArgument:
    """Where in a process's memory the path argument of its system call is. `base`: the folder it starts from."""

    pid: int
    address: int
    base: str | None = None


@dataclass(frozen=True, slots=True)
class KernelWait:
    """What a thread waits for: `call` ("write to"), the path concerned, and what is known about it."""

    call: str
    path: str | None = None
    argument: PathArgument | None = None
    """Where to read the path, while it isn't known."""
    mount: Mount | None = None
    holder: int | None = None
    """The process that holds the lock."""

    def said(self, ranks: Mapping[int, Rank]) -> str:
        """`write to /mnt/x/ckpt.pt (fuse at /mnt/x)`; `ranks`: which pids are ranks."""
        if self.call == INPUT:
            return INPUT
        mount = f" ({self.mount.said})" if self.mount is not None and self.mount.point != "/" else ""
        holder = ""
        if self.holder is not None:
            rank = ranks.get(self.holder)
            holder = f", held by process {self.holder}" if rank is None else f", held by rank {rank}"
        return f"{self.call} {self.path or 'a file'}{mount}{holder}"


_CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "read": ((0, 17, 19, 295, 327), (63, 65, 67, 69, 286)),
    "write": ((1, 18, 20, 296, 328), (64, 66, 68, 70, 287)),
    "fsync": ((74, 75, 277, 306), (82, 83, 84, 267)),
    "close": ((3,), (57,)),
    "list": ((78, 217), (61,)),
    "size": ((77, 285), (46, 47)),
    "status": ((5, 138), (80, 44)),
    "lock": ((73,), (32,)),
    "fcntl": ((72,), (25,)),
    "open": ((2, 85), ()),
    "openat": ((257, 437), (56, 437)),
    "look": ((4, 6, 21, 80, 137), (43,)),
    "lookat": ((262, 269, 332, 439), (79, 48, 291, 439)),
    "change": ((82, 83, 84, 87, 76), (45,)),
    "changeat": ((258, 263, 264, 316), (34, 35, 38, 276)),
    "start": ((59,), (221,)),
    "wait": ((61, 247), (95, 260)),
    "futex": ((202,), (98,)),
    "sleep": ((35, 230), (101, 115)),
    "clone": ((56, 58, 435), (220, 435)),
    "memory": ((-1,), (-1,)),
}
"""The system calls that show what a thread waits for, by number on x86_64 and on aarch64 (Linux, asm/unistd.h). `…at`:
the second argument is a path, the first the descriptor of the folder that it starts from. -1: not in a system call, so
it waits for memory."""
_MACHINE = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
_NAMES = {} if _MACHINE is None else {number: name for name, on in _CALLS.items() for number in on[_MACHINE]}
KNOWS_CALLS = bool(_NAMES)
_OF_DESCRIPTOR = {"read": "read of", "write": "write to", "fsync": "fsync of", "lock": "flock of", "close": "close of"}
_OF_DESCRIPTOR |= {"list": "listing of", "size": "change of size of", "status": "status of", "fcntl": "lock of"}
_OF_PATH = {"open": "open of", "look": "look-up of", "change": "change of", "start": "start of"}
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_AT_FDCWD = 0xFFFFFF9C
"""-100, in place of a descriptor: the working directory (linux/fcntl.h)."""
_LOCKS = (7, 38)
"""F_SETLKW and F_OFD_SETLKW (linux/fcntl.h)."""


def call_of(pid: int, thread: int) -> tuple[str | None, list[int]]:
    """The system call that a thread is in, and its arguments.

    Needs the right to trace the process, which its ancestor has by default (ptrace_scope 1).
    """
    try:
        words = kernel_text.read(Path(f"/proc/{pid}/task/{thread}/syscall")).split()
        return _NAMES.get(int(words[0])), [int(word, 16) for word in words[1:7]]
    except (ValueError, IndexError):
        return None, []


def is_lock(name: str | None, arguments: list[int]) -> bool:
    """Whether a call waits for a lock without a timeout."""
    return name == "futex" and len(arguments) > 3 and arguments[3] == 0


def file_wait(pid: int, name: str | None, arguments: list[int]) -> KernelWait | None:
    """What the call waits for, if that is a file."""
    if name is None or len(arguments) < 3:
        return None
    if name in _OF_DESCRIPTOR:
        if name == "fcntl" and arguments[1] not in _LOCKS:
            return None
        if name == "close":  # the descriptor is already gone, and with it the path
            return KernelWait("close of")
        return _of_descriptor(pid, name, arguments[0] & 0xFFFFFFFF)
    if name.removesuffix("at") not in _OF_PATH:
        return None
    is_at = name.endswith("at")
    folder = arguments[0] & 0xFFFFFFFF if is_at else _AT_FDCWD
    base = link(pid, "cwd" if folder == _AT_FDCWD else f"fd/{folder}")
    argument = PathArgument(pid, arguments[1 if is_at else 0], base)
    return KernelWait(_OF_PATH[name.removesuffix("at")], argument=argument)


def _of_descriptor(pid: int, name: str, descriptor: int) -> KernelWait | None:
    path = link(pid, f"fd/{descriptor}")
    if path is None:
        return None
    piped = descriptor == 0 and path.startswith(("pipe:", "socket:"))
    if name == "read" and (piped or path.startswith(_TERMINALS)):
        return KernelWait(INPUT)
    if not path.startswith("/"):
        return None
    holder = _holder(pid) if name in ("lock", "fcntl") else None
    return KernelWait(_OF_DESCRIPTOR[name], path, mount=_mount_of(pid, descriptor), holder=holder)


def _mount_of(pid: int, descriptor: int) -> Mount | None:
    """The mount that an open file is on, by its number in fdinfo. None for files on no mount (pipes)."""
    info = kernel_text.lines(Path(f"/proc/{pid}/fdinfo/{descriptor}"))
    numbers = {line.removeprefix("mnt_id:").strip() for line in info if line.startswith("mnt_id:")}
    return next((mount for mount in mounts(Path(f"/proc/{pid}")) if mount.number in numbers), None)


def with_path(wait: KernelWait, path: str) -> KernelWait:
    """The wait with the path that its argument holds.

    Names the mount only if it is remote: the path may contain a link that leads elsewhere, and local file systems
    aren't worth naming.
    """
    if wait.argument is None:
        return wait
    if not path.startswith("/"):
        base = wait.argument.base
        if base is None or not base.startswith("/"):
            return KernelWait(wait.call, path)
        path = f"{base.rstrip('/')}/{path}" if path else base
    mount = mount_over(path, mounts(Path(f"/proc/{wait.argument.pid}")))
    return KernelWait(wait.call, path, mount=mount if mount is not None and mount.remote else None)


def memory_of(pid: int) -> int | None:
    """A descriptor of a process's memory; None if it may not be read.

    On opening, the kernel checks whether the reader may trace the process: an ancestor may, a sibling may not.
    """
    try:
        return os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def read_path(memory: int, address: int) -> str | None:
    """The path at this address; None if there is none.

    Takes the lock of the process's memory, which can block forever: call it in a separate process.
    """
    length = min(_LONGEST_PATH, 2 * _PAGE - address % _PAGE)
    try:
        found = os.pread(memory, length, address)
    except (OSError, OverflowError):
        return None
    path, end, _ = found.partition(b"\0")
    return path.decode("utf-8", "backslashreplace") if end else None


def _holder(pid: int) -> int | None:
    """The holder of the lock that a process waits for."""
    locks = _locks()
    awaited = {number for number, who, _, waits in locks if waits and who == pid}
    return next((who for number, who, _, waits in locks if number in awaited and not waits), None)


def _locks() -> list[tuple[str, int, str, bool]]:
    """The number of each lock, the process, the file (device and inode), and whether it only waits for the lock.

    /proc/locks marks those by `->`. Its pid is 0 for a process of another pid namespace: left out.
    """
    found = []
    for line in kernel_text.lines(Path("/proc/locks")):
        words = line.replace("->", " ").split()
        if len(words) > 5 and words[4].isdigit() and words[4] != "0":
            found.append((words[0], int(words[4]), words[5], "->" in line))
    return found


def holder_of(path: str, waiting: Collection[int]) -> int | None:
    """A process not in `waiting` that has locked a file, or else has it open, as the maker of a lock file does.

    None if no such process is visible: it may belong to another user or run on another host. Asks the file system, so
    call it in a separate process. Raises OSError.
    """
    seen = os.stat(path)
    device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    for _, who, file, waits in _locks():
        if file == device and not waits and who not in waiting:
            return who
    wanted = os.path.realpath(path)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) in waiting:
            continue
        try:
            if any(str(opened.readlink()) == wanted for opened in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:  # not ours, or it ended
            continue
    return None


def link(pid: int, name: str) -> str | None:
    """The target of a link in /proc/PID, which the kernel knows without asking a file system."""
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return None
