"""Processes: starting the agent, watching ranks, and ending all of it. No policy."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ddp_run import kernel_text

RANK_PROGRAM = Path(__file__).parent / "rank" / "__main__.py"
"""What the agent starts instead of the user's script; it runs that script."""
_KEEPER = Path(__file__).parent / "keeper.py"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# linux/pidfd.h: struct pidfd_info as of its first version (64 bytes), its ioctl and the flag for the exit code.
_PIDFD_INFO = struct.Struct("QQ11Ii")
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3


def _libc_prctl() -> Callable[[int, int, int, int, int], int]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    prctl.restype = ctypes.c_int
    return prctl


def become_subreaper() -> bool:
    """Make processes whose parent dies our children (prctl(2), PR_SET_CHILD_SUBREAPER). False where refused."""
    return _libc_prctl()(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _die_with_parent() -> Callable[[], None]:
    """For a child between fork and exec: SIGKILL when the thread that forked it ends (PR_SET_PDEATHSIG)."""
    prctl, parent = _libc_prctl(), os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent was gone before the request: no signal would come
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child


def start_agent(argv: Sequence[str], environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start the agent in a session of its own, its output in `log`. Raises OSError.

    Nobody may wait for it but `ddp_run.loop.reap`, which would otherwise race for its exit code.
    """
    with log.open("ab", buffering=0) as output:
        return subprocess.Popen(
            argv,
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509  # this process has one thread
        )


def start_keeper(run_id: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends the job's processes should ddp-run itself be killed. See `ddp_run.keeper`."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_KEEPER), run_id, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def start_probe(program: Path) -> subprocess.Popen[bytes]:
    """Start a program that answers questions on its standard input, and ends with this process. Raises OSError.

    Nobody may wait for it but `ddp_run.loop.reap`. `-P`: the names of ddp-run's own modules must not hide others.
    """
    return subprocess.Popen(
        [sys.executable, "-P", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        start_new_session=True,
        preexec_fn=_die_with_parent(),  # noqa: PLW1509  # this process has one thread
    )


def dismiss_keeper(keeper: subprocess.Popen[bytes]) -> None:
    """Tell the keeper that this run ends regularly, and see it go."""
    try:
        keeper.communicate(b"q", timeout=1)
    except (OSError, subprocess.TimeoutExpired):
        keeper.kill()


def kill_everything_below() -> None:
    """SIGKILL for all descendants, as a last resort."""
    for _ in range(20):
        if not send_signal(descendants(), signal.SIGKILL):
            return
        time.sleep(0.02)


def read_exit_status(pid: int, pidfd: int | None) -> int | None:
    """Wait status of a process that ended and is not our child, as wait(2) gives it; null where unreadable.

    While its parent has not reaped it, /proc/PID/stat shows the wait status in its last field (proc(5), field 52);
    afterwards the kernel (6.15 and newer) still tells through the pidfd (linux/pidfd.h, PIDFD_GET_INFO).
    """
    status = _zombie_status(pid)
    return _pidfd_status(pidfd) if status is None and pidfd is not None else status


def _zombie_status(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()
    if not fields or fields[0] not in (b"Z", b"X"):
        return None
    return int(fields[49])


def _pidfd_status(pidfd: int) -> int | None:
    request = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, *_rest, status = _PIDFD_INFO.unpack(request)
    return status if mask & _PIDFD_INFO_EXIT else None


def send_signal(pids: Iterable[int], signum: int) -> tuple[int, ...]:
    """Signal each process; those that are gone (or not ours to signal) are passed over. Returns the reached."""
    reached = []
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue
        reached.append(pid)
    return tuple(reached)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return _zombie_status(pid) is None and Path(f"/proc/{pid}").exists()
    except OSError:
        return False


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
    """Pids of all that live below this process (as subreaper: the whole job), without `but` and zombies."""
    import psutil

    left_out = set(but)
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.pid not in left_out and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def describe(pid: int) -> str:
    """Pid and command line of a process, for a note; its name alone where it waits in the kernel.

    Reading a command line can wait for what the process waits for (a lock of its memory, held at a dead mount).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        name, _, rest = stat.partition(b"(")[2].rpartition(b") ")
        in_kernel = rest.startswith(b"D")
        words = [name] if in_kernel else Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return str(pid)
    return f"{pid} ({b' '.join(words).decode(errors='replace').strip()[:120]})"


def find_ranks(agent: int) -> list[tuple[int, dict[str, str]]]:
    """The agent's children that have a rank: (pid, environment). For ranks that cannot say hello themselves."""
    import psutil

    found = []
    try:
        children = psutil.Process(agent).children()
    except psutil.Error:
        return []
    for child in children:
        try:
            environ = child.environ()
        except (psutil.Error, OSError):
            continue
        if environ.get("RANK", "").isdigit() and environ.get("TORCHELASTIC_RESTART_COUNT", "").isdigit():
            found.append((child.pid, environ))
    return found
