"""What /proc says about a process: whether it works, and what its main thread waits for in the kernel.

Nothing here can wait for a file system or for the process itself. It reads links and tables of /proc, never a path they
name. It reads no file that needs the lock of the process's memory (cmdline, environ, maps). `read_path` does need that
lock, for the path that a system call was given; `ddp_run.observe.waited_paths` calls it in a separate process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.kernel_wait import KernelWait, call_of, file_wait, is_lock, link
from ddp_run.record.events import Rank
from ddp_run.values import kernel_text
from ddp_run.values.kernel_text import NOT_OF_THE_PROGRAM
from ddp_run.values.process_table import acting, below, children, command_lines, look, status, threads

_SLEPT = "voluntary_ctxt_switches"
_TICKS = os.sysconf("SC_CLK_TCK")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""include/linux/proc_ns.h, PROC_PID_INIT_INO."""


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """A process at one moment. CPU seconds and bytes read and written are totals so far, children included."""

    state: ProcessState
    cpu_s: float = 0.0
    io_bytes: int = 0
    switches: int = 0
    """How often its main thread, its other threads (without torch's) and its children have gone to sleep."""
    wait: KernelWait | None = None
    """The file that its main thread waits for."""
    place: str | None = None
    """Where else in the kernel it waits in state D."""
    on_lock: bool = False
    """As in `CloseLook`, like `asleep`."""
    asleep: bool = False
    helpers: int = 0
    """Threads of the program that run, wait for a set time, or wait for input: they may wake the main thread."""
    naps: int = 0
    """How often its main thread has gone to sleep."""
    driven: bool = False
    """One of its children runs, or is ready to run."""
    reaps: bool = False
    """It waits for a child to end."""
    child: int | None = None
    """That child, or the only one."""

    def waits_on(self, ranks: Mapping[int, Rank] = MappingProxyType({})) -> str | None:
        """What it waits for, in words. `ranks`: the ranks' pids."""
        return self.wait.said(ranks) if self.wait is not None else self.place


def process(pid: int, sampler: int = 0) -> ProcessLook:
    """Look at a process now. `sampler`: the id of ddp-run's own thread in it."""
    pid = acting(pid)
    now, cpu_s = _state_and_cpu(pid)
    if now is ProcessState.GONE:
        return ProcessLook(now)
    name, arguments = call_of(pid, pid)
    wait = file_wait(pid, name, arguments)
    place = _place(pid, name) if wait is None and now is ProcessState.DISK else None
    asleep = name == "sleep" or (name is None and _wchan(pid) == "hrtimer_nanosleep")
    io_bytes = _io(pid)
    naps = _switches(pid)
    others = _other_threads(pid, sampler)
    switches = naps + sum(others.values())
    driven = False
    for child in below(pid) or ():
        state_of_child, cpu_of_child = _state_and_cpu(child)
        if state_of_child is ProcessState.GONE:
            continue
        driven = driven or state_of_child is ProcessState.RUNNING
        cpu_s += cpu_of_child
        io_bytes += _io(child)
        switches += _switches(child) + sum(_other_threads(child).values())
    return ProcessLook(
        now,
        cpu_s,
        io_bytes,
        switches,
        wait,
        place,
        on_lock=is_lock(name, arguments),
        asleep=asleep,
        helpers=sum(not is_lock(*call_of(pid, thread)) for thread in others),
        naps=naps,
        driven=driven,
        reaps=name == "wait",
        child=_child(pid, arguments[:2] if name == "wait" else ()),
    )


def used(pid: int) -> tuple[float, int]:
    """CPU seconds, and bytes read and written so far, children included."""
    pids = (pid, *((below(pid) or ()) if children(pid) else ()))  # mostly it has none, which one read shows
    return sum(_state_and_cpu(each)[1] for each in pids), sum(_io(each) for each in pids)


def state(pid: int) -> ProcessState:
    """The state of its main thread, as the kernel names it."""
    return _state_and_cpu(acting(pid))[0]


def goes_on(pid: int) -> bool:
    """Whether its main thread's system call continues after a signal handler with SA_RESTART, like faulthandler's.

    Sleeps and calls with a timeout don't (signal(7)).
    """
    name, arguments = call_of(pid, pid)
    return name in ("read", "write", "lock") or is_lock(name, arguments)


def in_first_pid_namespace() -> bool:
    """Whether pids here are the host's: those in the kernel's log, and those that a driver shows."""
    return link(os.getpid(), "ns/pid") == _FIRST_PID_NAMESPACE


def last_thread(pid: int) -> ProcessLook | None:
    """Why a process that should have ended is still there: a thread that waits in the kernel, else the main thread.

    Returns None if it has ended.
    """
    looks = [seen for thread in threads(pid) if (seen := process(thread)).state is not ProcessState.GONE]
    return next((seen for seen in looks if seen.state is ProcessState.DISK), looks[0] if looks else None)


def described(pid: int) -> str:
    """Pid and command line, as `descriptions` gives them; the pid alone if it has ended."""
    return descriptions([pid]).get(pid, str(pid))


def descriptions(pids: Iterable[int]) -> dict[int, str]:
    """Pid and command line of each without secrets, for messages; the name alone if the command line can't be read."""
    from ddp_run.values.redaction import redact_words

    named = {pid: [found.name.decode(errors="replace")] for pid in pids if (found := look(pid)) is not None}
    named |= command_lines(named)
    return {pid: f"{pid} ({' '.join(' '.join(redact_words(words)).split())[:120]})" for pid, words in named.items()}


def _state_and_cpu(pid: int) -> tuple[ProcessState, float]:
    found = look(pid)
    if found is None or found.ended:
        return ProcessState.GONE, 0.0
    known = {each.value: each for each in ProcessState}
    return known.get(found.state.decode(), ProcessState.SLEEPING), found.cpu_ticks / _TICKS


def _other_threads(pid: int, sampler: int = 0) -> dict[int, int]:
    """Its threads without the main one, ddp-run's own and torch's, and how often each has gone to sleep."""
    seen = {thread: status(thread) for thread in threads(pid) if thread not in (pid, sampler)}
    return {
        thread: int(fields.get(_SLEPT, 0))
        for thread, fields in seen.items()
        if fields and not NOT_OF_THE_PROGRAM.match(fields["Name"])
    }


def _place(pid: int, name: str | None) -> str | None:
    """Where in the kernel it waits, if no file is known."""
    if name == "clone":
        return "the start of a program (vfork)" + _of_child(pid)
    where = _wchan(pid)
    return f"memory of a mapped file or swap ({where})" if name == "memory" and where else where


def _of_child(pid: int) -> str:
    """The child that was started last and hasn't begun to run its program."""
    latest = max(children(pid), default=None)
    if latest is None:
        return ""
    seen = process(latest)
    does = seen.waits_on() or ("sleeps" if seen.asleep else None)
    return f": process {latest}" + (f", {does}" if does else "")


def _child(pid: int, named: Sequence[int]) -> int | None:
    """The child that a call names, else the only one that hasn't ended."""
    started = [each for each in children(pid) if state(each) is not ProcessState.GONE]
    found = [each for each in started if each in named] or started
    return found[0] if len(found) == 1 else None


def _switches(thread: int) -> int:
    """How often a thread has gone to sleep."""
    return int(status(thread).get(_SLEPT, 0))


def _io(pid: int) -> int:
    """Bytes that its system calls have read and written, files and sockets alike."""
    values = dict(line.split(": ") for line in kernel_text.lines(Path(f"/proc/{pid}/io")) if ": " in line)
    return int(values.get("rchar", 0)) + int(values.get("wchar", 0))


def _wchan(pid: int) -> str | None:
    name = kernel_text.read(Path(f"/proc/{pid}/wchan")).strip()
    return name if name not in ("", "0") else None
