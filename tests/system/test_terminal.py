"""A job whose console is a terminal: its ranks' libraries may draw live bars, as under torchrun; and its block."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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


TRAINS = """
import time
import torch

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
end = time.monotonic() + 6
step = 0
while time.monotonic() < end:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        print("loss", step, flush=True)
    time.sleep(0.05)
"""


@pytest.mark.slow_system
def test_a_line_says_how_the_job_gets_on(ddp: Launcher) -> None:
    with terminal(100) as (leader, console):
        words = ["--status", "--nproc-per-node", "2", str(ddp.script(TRAINS))]
        environ = {**ddp.environ({}), "TERM": "xterm"}
        done = subprocess.Popen(
            [DDP_RUN, *words], cwd=ddp.cwd, env=environ, stdin=subprocess.DEVNULL, stdout=console, stderr=console
        )
        seen = b""
        while done.poll() is None:
            with suppress(BlockingIOError):
                seen += os.read(leader, 1 << 20)
            time.sleep(0.05)
        with suppress(BlockingIOError):
            seen += os.read(leader, 1 << 20)
    assert done.returncode == 0
    assert re.search(rb"ddp-run: 2 ranks, step \d+, 1\d(\.\d+)? steps/s(?:, slowest: rank \d \([^\r]*)?\r", seen), seen
    lines = [line.rsplit(b"\r", 1)[-1].removeprefix(b"\x1b[K") for line in seen.split(b"\r\n")]
    assert all(re.fullmatch(rb"(\[rank(0|1|0-1)\]: loss \d+)?", line) for line in lines), lines
    logs = (ddp.cwd / "ddp-run-logs" / "latest" / "attempt_0").rglob("*.log")
    assert not any("steps/s" in log.read_text() for log in logs)
