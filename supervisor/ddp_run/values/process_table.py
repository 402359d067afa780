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
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ddp_run.values.helper_process import fork, reap

_CHILDREN = Path("/proc/thread-self/children")
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
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            before, _, after = file.read().rpartition(b")")
    except OSError:
        return None
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
    """Numbers of its threads, the main one first; none where it is gone."""
    return sorted(_numbers(f"/proc/{pid}/task"), key=lambda thread: (thread != pid, thread))


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
    if _CHILDREN.exists():
        return _listed_children
    found: dict[int, list[int]] = {}
    for pid in _numbers("/proc"):
        if (process := look(pid)) is not None:
            found.setdefault(process.parent, []).append(pid)
    return lambda pid: found.get(pid, [])


def _listed_children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def _numbers(folder: str) -> list[int]:
    """Those that an entry of the folder has for a name; none where it cannot be read."""
    try:
        return [int(entry.name) for entry in Path(folder).iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def send(known: Mapping[int, int], signum: int) -> tuple[int, ...]:
    """Signal each that is still the same process; those that are gone, or not ours to signal, are passed over.

    Returns those that were reached.
    """
    reached = []
    for pid in living(known):
        try:
            os.kill(pid, signum)
        except OSError:
            continue
        reached.append(pid)
    return tuple(reached)


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
            while len(held) >= 8 and len(held) >= 8 + (length := int.from_bytes(held[:8], "little")):
                yield waiting[answered], held[8 : 8 + length]
                answered, held = answered + 1, held[8 + length :]
                reader.deadline = min(time.monotonic() + _SILENT_S, deadline)
        reader.end()
        reap(reader.pid)
        waiting = waiting[answered + 1 :]


def _read_each(pids: Iterable[int], name: str, fd: int) -> None:
    for pid in pids:
        process = look(pid)
        # a main thread that has exited has let go of the memory
        living_thread = threads(pid)[-1:] if process is not None and process.state == b"Z" else [pid]
        text = b""
        for thread in living_thread:
            try:
                with open(f"/proc/{thread}/{name}", "rb", buffering=0) as file:
                    text = file.read()
            except OSError:
                continue
        os.write(fd, len(text).to_bytes(8, "little") + text)
