"""A job whose console is a terminal: its ranks' libraries may draw live bars, as they do under torchrun."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.waiting import limit

from .conftest import DDP_RUN, Launcher

SHOWS = """
import os
names = ("TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "FORCE_COLOR")
open("seen", "w").write(" ".join(os.environ.get(name, "-") for name in names))
"""


@contextmanager
def terminal(columns: int) -> Iterator[int]:
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    try:
        yield follower
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.parametrize(
    ("words", "env", "seen"),
    [
        ((), {}, "1 1 91 -"),
        pytest.param((), {"TTY_COMPATIBLE": "0"}, "0 - 91 -", marks=pytest.mark.slow_system),
        pytest.param((), {"COLUMNS": "50"}, "1 1 50 -", marks=pytest.mark.slow_system),
        (("--console", "none"), {}, "- - - -"),
        pytest.param(("--redirects", "3"), {}, "- - - -", marks=pytest.mark.slow_system),
    ],
)
def test_ranks_are_told_of_the_terminal(ddp: Launcher, words: tuple[str, ...], env: dict[str, str], seen: str) -> None:
    program = ddp.script(SHOWS)
    inherited = {name: value for name, value in ddp.environ({}).items() if name not in ("COLUMNS", "FORCE_COLOR")}
    with terminal(100) as console:
        done = subprocess.run(
            [DDP_RUN, *words, program],
            cwd=ddp.cwd,
            env={**inherited, "TERM": "xterm", **env},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            timeout=limit(120),
            check=False,
        )
    assert (done.returncode, (ddp.cwd / "seen").read_text()) == (0, seen)


def test_without_a_terminal_they_are_told_nothing(ddp: Launcher) -> None:
    outcome = ddp(ddp.script(SHOWS))
    assert (outcome.code, (ddp.cwd / "run0" / "seen").read_text()[:3]) == (0, "- -")
