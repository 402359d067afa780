"""Small programs that ddp-run starts beside the job, and that end with it.

What a library might crash in, or wait in for ever, is asked of such a process and not done in ddp-run itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def libc_prctl() -> Callable[[int, int, int, int, int], int]:
    """prctl(2)."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    prctl.restype = ctypes.c_int
    return prctl


def die_with_parent() -> Callable[[], None]:
    """For a child between fork and exec: SIGKILL when the thread that forked it ends (PR_SET_PDEATHSIG)."""
    prctl, parent = libc_prctl(), os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent was gone before the request: no signal would come
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child


def start_probe(program: Path) -> subprocess.Popen[bytes]:
    """Start a program that answers questions on its standard input, and ends with this process. Raises OSError.

    Nobody may wait for it but `ddp_run.supervise.loop.reap`. `-P`: the names of ddp-run's own modules must not hide
    others.
    """
    return subprocess.Popen(
        [sys.executable, "-P", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        start_new_session=True,
        preexec_fn=die_with_parent(),  # noqa: PLW1509  # this process has one thread
    )
