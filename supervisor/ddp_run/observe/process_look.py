"""What /proc says of a process: whether it works, and what its main thread waits for in the kernel.

Nothing is asked here that can wait for a file system or for the process itself: links and tables of /proc are read,
never a path they name, and no file of /proc that needs the lock of the process' memory (cmdline, environ, maps). What
does, the path that a system call was given, is left to `read_path`, which `ddp_run.observe.waited_paths` calls in a
process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.kernel_wait import KernelWait, call_of, file_wait, is_lock, link
from ddp_run.record.events import Rank
from ddp_run.values import kernel_text
from ddp_run.values.kernel_text import NOT_OF_THE_PROGRAM
from ddp_run.values.process_table import acting, below, children, look, threads

_TICKS = os.sysconf("SC_CLK_TCK")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""include/linux/proc_ns.h, PROC_PID_INIT_INO."""


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """What /proc says of a process: its state, CPU seconds so far, bytes read and written so far, children included.

    `switches`: how often its main thread, other threads that are not torch's, and children have gone to sleep; `naps`:
    the main thread alone.
    `helpers`: such threads that wait for a set time or for something from outside, or run: they may wake the main one.
    `on_lock` and `asleep` as in `CloseLook`. `wait`: the file that its main thread waits for; `place`: else where in
    the kernel it waits in state D. `driven`: one of its children runs, or would if it had a processor. `reaps`: it
    waits for a child to end; `child`: that one, or the only one.
    """

    state: ProcessState
    cpu_s: float = 0.0
    io_bytes: int = 0
    switches: int = 0
    wait: KernelWait | None = None
    place: str | None = None
    on_lock: bool = False
    asleep: bool = False
    helpers: int = 0
    naps: int = 0
    driven: bool = False
    reaps: bool = False
    child: int | None = None

    def waits_on(self, ranks: Mapping[int, Rank] = MappingProxyType({})) -> str | None:
        """What it waits for, in words; `ranks`: which pids are ranks."""
        return self.wait.said(ranks) if self.wait is not None else self.place


def process(pid: int, sampler: int = 0) -> ProcessLook:
    """A process now. `sampler`: the thread in it that is ddp-run's own."""
    pid = acting(pid)
    now, cpu_s = _state_and_cpu(pid)
    if now is ProcessState.GONE:
        return ProcessLook(now)
    name, arguments = call_of(pid, pid)
    wait = file_wait(pid, name, arguments)
    place = _place(pid, name) if wait is None and now is ProcessState.DISK else None
    asleep = name == "sleep" or (name is None and _wchan(pid) == "hrtimer_nanosleep")
    io_bytes = _io(pid)
    others = _other_threads(pid, sampler)
    naps = _switches(pid, pid)
    switches = naps + sum(_switches(pid, thread) for thread in others)
    driven = False
    for child in below(pid) or ():
        state_of_child, cpu_of_child = _state_and_cpu(child)
        if state_of_child is ProcessState.GONE:
            continue
        driven = driven or state_of_child is ProcessState.RUNNING
        cpu_s += cpu_of_child
        io_bytes += _io(child)
        switches += sum(_switches(child, thread) for thread in (child, *_other_threads(child)))
    helpers = sum(not is_lock(*call_of(pid, thread)) for thread in others)
    return ProcessLook(
        now,
        cpu_s,
        io_bytes,
        switches,
        wait,
        place,
        on_lock=is_lock(name, arguments),
        asleep=asleep,
        helpers=helpers,
        naps=naps,
        driven=driven,
        reaps=name == "wait",
        child=_child(pid, arguments[:2] if name == "wait" else ()),
    )


def used(pid: int) -> tuple[float, int]:
    """CPU seconds and bytes read and written so far, children included."""
    pids = (pid, *((below(pid) or ()) if children(pid) else ()))  # mostly there are none, which takes one read to see
    return sum(_state_and_cpu(each)[1] for each in pids), sum(_io(each) for each in pids)


def state(pid: int) -> ProcessState:
    """What its main thread does now, in the kernel's words."""
    return _state_and_cpu(acting(pid))[0]


def goes_on(pid: int) -> bool:
    """Whether the system call that its main thread is in goes on by itself after a signal's handler (signal(7)).

    With SA_RESTART, as faulthandler asks for it: not a sleep, nor what has a time-out.
    """
    name, arguments = call_of(pid, pid)
    return name in ("read", "write", "lock") or is_lock(name, arguments)


def in_first_pid_namespace() -> bool:
    """Whether pids here are the host's: those in the kernel's log, and those that a driver gives."""
    return link(os.getpid(), "ns/pid") == _FIRST_PID_NAMESPACE


def _state_and_cpu(pid: int) -> tuple[ProcessState, float]:
    found = look(pid)
    if found is None or found.ended:
        return ProcessState.GONE, 0.0
    known = {each.value: each for each in ProcessState}
    return known.get(found.state.decode(), ProcessState.SLEEPING), found.cpu_ticks / _TICKS


def _other_threads(pid: int, sampler: int = 0) -> list[int]:
    """Its threads but the main one, ddp-run's own and torch's."""
    found = []
    for thread in threads(pid):
        if thread in (pid, sampler):
            continue
        try:
            name = kernel_text.read(Path(f"/proc/{pid}/task/{thread}/comm"))
        except OSError:
            continue
        if not NOT_OF_THE_PROGRAM.match(name):
            found.append(thread)
    return found


def last_thread(pid: int) -> ProcessLook | None:
    """Of what a process that should have ended is still there for: its main thread, else one of the others that waits
    in the kernel. Null where it has ended."""
    looks = [seen for thread in threads(pid) if (seen := process(thread)).state is not ProcessState.GONE]
    return next((seen for seen in looks if seen.state is ProcessState.DISK), looks[0] if looks else None)


def _place(pid: int, name: str | None) -> str | None:
    """Where in the kernel it waits, where no file is known."""
    if name == "clone":
        return "the start of a program (vfork)" + _of_child(pid)
    where = _wchan(pid)
    return f"memory of a mapped file or swap ({where})" if name == "memory" and where else where


def _of_child(pid: int) -> str:
    """Who has been started last and has not begun."""
    latest = max(children(pid), default=None)
    if latest is None:
        return ""
    seen = process(latest)
    does = seen.waits_on() or ("sleeps" if seen.asleep else None)
    return f": process {latest}" + (f", {does}" if does else "")


def _child(pid: int, named: Sequence[int]) -> int | None:
    """The one that a call names, else the only one that has not ended."""
    started = [each for each in children(pid) if state(each) is not ProcessState.GONE]
    found = [each for each in started if each in named] or started
    return found[0] if len(found) == 1 else None


def _switches(pid: int, thread: int) -> int:
    try:
        lines = kernel_text.lines(Path(f"/proc/{pid}/task/{thread}/status"))
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def _io(pid: int) -> int:
    """Bytes that its system calls have read and written, files and sockets alike."""
    try:
        lines = kernel_text.lines(Path(f"/proc/{pid}/io"))
    except OSError:
        return 0
    values = dict(line.split(": ") for line in lines if ": " in line)
    return int(values.get("rchar", 0)) + int(values.get("wchar", 0))


def _wchan(pid: int) -> str | None:
    try:
        name = kernel_text.read(Path(f"/proc/{pid}/wchan")).strip()
    except OSError:
        return None
    return name if name not in ("", "0") else None
