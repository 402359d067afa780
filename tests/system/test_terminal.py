"""A job whose console is a terminal: its ranks' libraries may draw live bars, as under torchrun; and its block."""

from __future__ import annotations

import fcntl
import os
import re
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
names = ("TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "FORCE_COLOR", "LINES", "TQDM_NCOLS")
open("seen", "w").write(" ".join(os.environ.get(name, "-") for name in names))
raise ValueError("words " * 40)
"""


@contextmanager
def terminal(columns: int) -> Iterator[tuple[int, int]]:
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    try:
        os.set_blocking(leader, False)
        yield leader, follower
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.parametrize(
    ("words", "env", "seen"),
    [
        ((), {}, "1 1 91 - 24 90"),
        pytest.param((), {"TTY_COMPATIBLE": "0"}, "0 - 91 - 24 90", marks=pytest.mark.slow_system),
        pytest.param((), {"COLUMNS": "50"}, "1 1 50 - - -", marks=pytest.mark.slow_system),
        (("--console", "none"), {}, "- - - - - -"),
        pytest.param(("--redirects", "3"), {}, "- - - - - -", marks=pytest.mark.slow_system),
    ],
)
def test_ranks_are_told_of_the_terminal(ddp: Launcher, words: tuple[str, ...], env: dict[str, str], seen: str) -> None:
    """Without a terminal: test_launch.py, test_exit_codes.py."""
    program = ddp.script(SHOWS)
    inherited = {
        name: value for name, value in ddp.environ({}).items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR")
    }
    with terminal(100) as (leader, console):
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
        shown = re.sub("\x1b\\[[0-9;]*m", "", os.read(leader, 1 << 20).decode()).splitlines()
    assert (done.returncode, (ddp.cwd / "seen").read_text()) == (1, seen)
    first = next(number for number, line in enumerate(shown) if line.startswith("error[DDP600]: "))
    assert max(map(len, shown[first : first + 3])) <= 100
    assert shown[first + 1].startswith("      words words"), "the first line goes on below"
    assert shown[-1].startswith("ddp-run: verdict "), "the last line is one"
