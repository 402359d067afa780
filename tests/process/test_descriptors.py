"""ddp-run where whoever starts it has closed stdin, stdout or stderr, or does not read them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from itertools import chain, combinations
from pathlib import Path

import pytest
from tests.waiting import limit

DDP_RUN = Path(sys.executable).with_name("ddp-run")
SOME = list(chain.from_iterable(combinations(range(3), count) for count in (1, 2, 3)))


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [
        *[(each, ["--version"], 0) for each in SOME],
        ((2,), ["no-such.py"], 2),
        ((0, 1, 2), ["no-such.py"], 2),
        ((0, 1, 2), ["rules"], 0),
    ],
    ids=str,
)
def test_short_answers(tmp_path: Path, closed: tuple[int, ...], words: list[str], code: int) -> None:
    closing = " ".join(f"{fd}>&-" for fd in closed)
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closing}', str(DDP_RUN), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (code == 0 and 1 not in closed)
    assert bool(done.stderr) == (code != 0 and 2 not in closed)


# An error of ddp-run's own, where the agent is about to be started.
BREAKS = """
import sys

def hook(event, arguments):
    if event == "subprocess.Popen" and "torch.distributed.run" in arguments[1]:
        raise KeyError("x")

sys.addaudithook(hook)
sys.argv[0] = "ddp-run"
from ddp_run.cli import main
main()
"""


@pytest.mark.parametrize(
    ("reader", "words", "code"),
    [
        ("reads", ["t.py"], 70),
        ("is gone", ["t.py"], 70),
        ("never reads", ["t.py"], 70),
        ("is gone", ["--log-dir=/proc/none", "t.py"], 2),
        ("is gone", ["no-such.py"], 2),
    ],
    ids=str,
)
def test_the_exit_code_outlives_a_broken_stderr(tmp_path: Path, reader: str, words: list[str], code: int) -> None:
    (tmp_path / "t.py").touch()
    reading, writing = os.pipe()
    if reader == "is gone":
        os.close(reading)
    elif reader == "never reads":
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 65536)
        os.set_blocking(writing, True)
    started = subprocess.Popen(
        [sys.executable, "-c", BREAKS, *words], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=writing
    )
    os.close(writing)
    assert started.wait(limit(60)) == code
    if reader != "is gone":
        assert b"ddp-run: internal error; the job was killed" in os.read(reading, 1 << 20)
        os.close(reading)
