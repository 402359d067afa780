"""What /proc says of a process: its state, and what it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import wait_until

from ddp_run.observe import boards
from ddp_run.observe.close_look import ProcessState
from ddp_run.observe.kernel_wait import KNOWS_CALLS, call_of, file_wait
from ddp_run.observe.process_look import ProcessLook, process
from ddp_run.values import kernel_text
from ddp_run.values.process_table import in_masks


@contextmanager
def _started(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def _seen(pid: int, wanted: Callable[[ProcessLook], bool]) -> ProcessLook:
    (look,) = wait_until(lambda: [look for look in [process(pid)] if wanted(look)], f"a look at {pid}")
    return look


@pytest.mark.skipif(not KNOWS_CALLS, reason="system calls of this machine are not known")
def test_what_a_process_waits_for(tmp_path: Path) -> None:
    with _started("import time; print(flush=True); time.sleep(100)") as pid:
        # state and call are read one after the other: it may fall asleep in between
        look = _seen(pid, lambda look: look.asleep and look.state is ProcessState.SLEEPING)
        assert (look.on_lock, look.waits_on()) == (False, None)
    with _started(
        "import _thread; lock = _thread.allocate(); print(flush=True); lock.acquire(); lock.acquire()"
    ) as pid:
        look = _seen(pid, lambda look: look.on_lock)
        assert (look.asleep, look.on_lock) == (False, True)
    with _started("import threading; print(flush=True); threading.Event().wait(100)") as pid:
        look = _seen(pid, lambda look: look.switches > 0 and look.state is ProcessState.SLEEPING)
        assert (look.asleep, look.on_lock) == (False, False)  # a time-out opens it
    with _started("import os; a, b = os.openpty(); print(flush=True); os.read(b, 1)") as pid:
        assert _seen(pid, lambda look: look.waits_on() is not None).waits_on() == "input"
    with _started("import os; a, b = os.pipe(); os.dup2(a, 0); print(flush=True); input()") as pid:
        assert _seen(pid, lambda look: look.waits_on() is not None).waits_on() == "input"
    os.mkfifo(tmp_path / "pipe")
    with _started(f"import os; a = os.open('{tmp_path}/pipe', os.O_RDWR); print(flush=True); os.read(a, 1)") as pid:
        assert _seen(pid, lambda look: look.waits_on() is not None).waits_on() == f"read of {tmp_path}/pipe"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
@pytest.mark.parametrize(
    ("number", "address", "call"),
    [(2, 7, "open of"), (257, 8, "open of"), (21, 7, "look-up of"), (262, 8, "look-up of"), (83, 7, "change of")],
)
def test_a_system_call_with_a_path(number: int, address: int, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """open, openat, access, newfstatat, mkdir; those that end in `at` have the path as their second argument."""
    monkeypatch.setattr(kernel_text, "read", lambda _path: f"{number} 0x7 0x8 0x0 0x0 0x0 0x0 0x7ffc 0x7f00")
    wait = file_wait(os.getpid(), *call_of(os.getpid(), os.getpid()))
    assert wait is not None
    assert wait.argument is not None
    assert (wait.call, wait.argument.address) == (call, address)


_LOCKED = """
    import threading, time, _thread
    lock = _thread.allocate(); lock.acquire()
    {}
    print(flush=True); lock.acquire()
"""


@pytest.mark.skipif(not KNOWS_CALLS, reason="system calls of this machine are not known")
@pytest.mark.parametrize(
    ("begin", "helpers"),
    [
        ("", 0),
        ("threading.Timer(100, lock.release).start()", 1),
        ("open('/proc/self/comm', 'w').write('pt_main_thread'); threading.Timer(100, lock.release).start()", 1),
        ("_thread.start_new(lock.acquire, ())", 0),
    ],
)
def test_threads_that_may_bring_what_the_main_one_waits_for(begin: str, helpers: int) -> None:
    with _started(_LOCKED.format(begin)) as pid:
        _seen(pid, lambda look: look.on_lock and look.helpers == helpers)


@pytest.mark.skipif(not KNOWS_CALLS, reason="system calls of this machine are not known")
def test_ddp_runs_own_thread_is_no_helper() -> None:
    with _started(_LOCKED.format("_thread.start_new(time.sleep, (100,))")) as pid:
        _seen(pid, lambda look: look.on_lock)
        (thread,) = {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()} - {pid}
        assert (process(pid).helpers, process(pid, thread).helpers) == (1, 0)


def test_what_children_do_counts() -> None:
    works = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    with _started(
        f"import subprocess, sys; print(flush=True); subprocess.run([sys.executable, '-c', {works!r}])"
    ) as pid:
        first = process(pid)
        look = _seen(pid, lambda look: look.cpu_s > first.cpu_s + 0.2)
        assert look.state is ProcessState.SLEEPING


def test_a_process_that_works_is_stopped_and_gone() -> None:
    with _started("print(flush=True)\nwhile True: pass") as pid:
        first = process(pid)
        _seen(pid, lambda look: look.cpu_s > first.cpu_s + 0.1)
        os.kill(pid, signal.SIGSTOP)
        _seen(pid, lambda look: look.state is ProcessState.STOPPED)
    assert process(pid) == ProcessLook(ProcessState.GONE)


_NAMED = """
import ctypes, signal, threading, time
signal.signal(signal.SIGUSR1, lambda *_: None)
named = threading.Event()
def thread():
    ctypes.CDLL(None).prctl(15, bytes.fromhex("c3a9c3"), 0, 0, 0)
    named.set()
    while True: time.sleep(0.01)
threading.Thread(target=thread, daemon=True).start()
named.wait()
ctypes.CDLL(None).prctl(15, bytes.fromhex("c3a9c3"), 0, 0, 0)
print(flush=True)
while True: time.sleep(0.01)
"""


def test_names_cut_within_a_character_are_names() -> None:
    """The kernel cuts names after 15 bytes (prctl(2), PR_SET_NAME), and setproctitle's users write what they like."""
    with _started(_NAMED) as pid:
        assert in_masks(pid, ("SigCgt", "SigIgn"), [signal.SIGUSR1])
        assert not in_masks(pid, ("SigCgt", "SigIgn"), [signal.SIGUSR2])
        assert len(boards.threads(pid)) == 2
        _seen(pid, lambda look: look.switches > 0)
