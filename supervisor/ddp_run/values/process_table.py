"""What /proc says of processes: who runs and since when, who is below whom, who carries a mark; signals to just those.

The keeper, which runs alone, is made of this file too: standard library only, and little of it.

- A process has ended when no thread of it is left. One whose main thread has exited is listed as a zombie like one that
  has ended, acts on, and may yet exit with any code.
- A number is the same process for as long as it has the same start time: numbers come again.
- Children are those of each thread; when a thread exits, another one of the process gets its children.

Source: proc(5); Linux, fs/proc/array.c, kernel/exit.c.
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
"""Kernels that keep no such lists (CONFIG_PROC_CHILDREN) are asked for every process's parent."""
_SILENT_S = 0.3


class Process(NamedTuple):
    """/proc/PID/stat. `began` in clock ticks since the boot; `cpu_ticks` of all threads, and of children waited for.

    `exit_status` as wait(2) gives it, once it has ended.
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
    """A process now, or the one thread that has this number; null where there is none, or /proc cannot be read."""
    before, _, after = _read(f"/proc/{pid}/stat").rpartition(b")")
    fields = after.split()
    if len(fields) < 50:
        return None
    cpu_ticks = sum(map(int, fields[11:15]))
    name = before.partition(b"(")[2]
    return Process(name, fields[0], int(fields[1]), cpu_ticks, int(fields[17]), int(fields[19]), int(fields[49]))


def began(pid: int) -> int | None:
    """When a process began; null where it has ended."""
    found = look(pid)
    return None if found is None or found.ended else found.began


def living(known: Mapping[int, int]) -> dict[int, int]:
    """Those of them that are still the same process, which has not ended. `known`: when each began."""
    return {pid: at for pid, at in known.items() if began(pid) == at}


def threads(pid: int) -> list[int]:
    """Numbers of its threads, which /proc knows as it knows a process'; none where it is gone."""
    return sorted(_numbers(f"/proc/{pid}/task"))


def acting(pid: int) -> int:
    """The main thread of a process, or another one where that has exited and shows nothing of the process any more."""
    found = look(pid)
    exited = found is not None and found.state == b"Z" and not found.ended
    return next((thread for thread in threads(pid) if thread != pid), pid) if exited else pid


def in_masks(pid: int, names: tuple[bytes, ...], signums: Iterable[int]) -> bool:
    """Whether one of these signals is in one of these masks of a process (`SigCgt:`); not where it is gone."""
    lines = [line for line in _read(f"/proc/{pid}/status").split(b"\n") if line.startswith(names)]
    return any(int(line.split()[1], 16) >> (signum - 1) & 1 for line in lines for signum in signums)


def children(pid: int) -> list[int]:
    """Whom any thread of a process has started or taken over; also those that it has not waited for."""
    return _children_of()(pid)


def below(root: int, but: Iterable[int] = ()) -> dict[int, int] | None:
    """Who lives below a process, and when each began; null where /proc cannot be read.

    Without this process, without `but`, and without what is below those.
    """
    if look(os.getpid()) is None:
        return None
    let_be = {root, os.getpid(), *but}
    before: list[int] = []
    while True:
        children_of, found, listed, passed_over = _children_of(), dict[int, int](), [root], {*let_be}
        for parent in listed:
            fresh = [pid for pid in children_of(parent) if pid not in passed_over]
            passed_over.update(fresh)
            listed += fresh
            found |= {pid: at for pid in fresh if (at := began(pid)) is not None}
        # who has lost its parent just now is the root's own child, and was not in its list before
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
    """All of such a file; nothing where that cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _numbers(folder: str) -> list[int]:
    """Those that an entry of the folder has for a name; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError:
        return []


def send(known: Mapping[int, int], signum: int) -> tuple[int, ...]:
    """Signal each that is still the same process. Returns those that were reached: not who is gone, or not ours."""
    return tuple(pid for pid in living(known) if send_one(pid, signum))


def send_one(pid: int, signum: int, pidfd: int | None = None) -> bool:
    """Signal a process, by its pidfd where there is one: its number may have come again. Whether it was reached."""
    try:
        if pidfd is None:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(pidfd, signum)
    except OSError:
        return False
    return True


# --------------------------------------------------------------- what needs the lock of a process' memory


def carriers(marks: Collection[bytes]) -> Iterator[int]:
    """Processes that have one of these entries in their environment."""
    for pid, environ in asked(_numbers("/proc"), "environ"):
        if pid != os.getpid() and not {*marks}.isdisjoint(environ.split(b"\0")):
            yield pid


def command_lines(pids: Iterable[int], most_s: float) -> dict[int, list[str]]:
    """Of those that have one and answer."""
    texts = ((pid, text.rstrip(b"\0")) for pid, text in asked(pids, "cmdline", most_s))
    return {pid: text.decode(errors="replace").split("\0") for pid, text in texts if text}


def asked(pids: Iterable[int], name: str, most_s: float = float("inf")) -> Iterator[tuple[int, bytes]]:
    """`environ` or `cmdline` of each; empty where it may not be read.

    Reading them takes the lock of the process' memory, which one of its threads may hold for ever: where it waits for
    a dead mount. So who is in state D is not asked, a fork reads, and who does not answer is passed over.
    """
    waiting = [pid for pid in pids if (process := look(pid)) is not None and process.state != b"D"]
    deadline = time.monotonic() + most_s
    while waiting and time.monotonic() < deadline:
        try:
            reader = fork(partial(_read_each, waiting, name), _SILENT_S)
        except OSError:
            return
        answered, held, over = 0, b"", False
        while not over and not reader.late:
            reader.wait()
            said, over = reader.take()
            held += said
            *lines, held = held.split(b"\n")
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
