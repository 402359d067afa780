"""Whoever reads ddp-run's console pauses, is slow, is gone or never reads again: the block and the last line arrive.

Readers begin when verdict.json is written, so that all of it happens at the job's end.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import limit, wait_until

from .conftest import DDP_RUN, Launcher

pytestmark = pytest.mark.slow_system

PROGRAM = """
import os, sys, time
for number in range(int(sys.argv[1])):
    sys.stderr.write(f"line {number:06d} of rank {os.environ['RANK']} ".ljust(99, "x") + "\\n")
if os.environ["RANK"] == "0":
    open("written", "w")  # or the failure of rank 1 ends it before that
else:
    while not os.path.exists("written"):
        time.sleep(0.05)
    raise ValueError("what ddp-run is for")
"""
LITTLE, MUCH = 8_000, 60_000
"""Lines of 99 characters from each of two ranks: two megabytes, and more than a slow reader takes in a minute."""
_OF_TRACEBACK = 4
VERDICT = "ddp-run-logs/latest/verdict.json"
LATE = f"until [ -s {VERDICT} ]; do sleep 0.1; done; "
SLOWLY = "python3 -c 'import os, time\nwhile data := os.read(0, 16384): os.write(1, data); time.sleep(0.25)'"


def assert_told(console: str, lines: int) -> None:
    """All lines are shown, or counted; block and last line are there, and no line is torn."""
    told = console.splitlines()
    assert told[-1].startswith("ddp-run: verdict outcome=failed cause=python-exception"), told[-3:]
    assert any(line.startswith("error[DDP600]: rank 1 raised ValueError") for line in told)
    shown = [line for line in told if " of rank " in line]
    assert {len(line) for line in shown} <= {108}
    unshown = [
        int(found[1]) for line in told if (found := re.search(r"(\d+) lines of the ranks not shown .*see /", line))
    ]
    more = 2 + 2 * console.count("Traceback (most")  # the rest of the traceback may be among what is not shown
    assert 2 * lines <= len(shown) + sum(unshown) <= 2 * lines + 2 + more


def ended_after_s(folder: Path) -> float:
    """Seconds from the end of the attempt to that of the process, which touches nothing later."""
    events = (folder / "ddp-run-logs" / "latest" / "events.jsonl").read_text().splitlines()
    ended = next(line for line in events if '"AttemptEnded"' in line)
    found = re.search(r'"at": (\d+)', ended)
    assert found is not None
    return (time.monotonic_ns() - int(found[1])) / 1e9


@pytest.mark.parametrize(
    ("lines", "reader"),
    [
        (LITTLE, f"({LATE} sleep 0.6; cat > shown)"),
        (LITTLE, f"({LATE} sleep 4; cat > shown)"),
        (LITTLE, f"({LATE} sleep 20; cat > shown)"),
        (MUCH, f"({SLOWLY} > shown)"),
        (MUCH, f"(mkfifo slow; ({SLOWLY} < slow > shown) & {LATE} tee slow > /dev/null; wait)"),
        (MUCH, f"({LATE} sleep 45; cat > shown)"),
    ],
    ids=["0.6 s", "4 s", "20 s", "64 KiB/s", "tee to a slow file system", "45 s"],
)
def test_a_pipe_that_is_read_late_or_slowly(ddp: Launcher, lines: int, reader: str) -> None:
    line = f"{DDP_RUN} --nproc-per-node 2 {ddp.script(PROGRAM)} {lines} 2>&1 | {reader}"
    subprocess.run(["bash", "-c", line], cwd=ddp.cwd, env=ddp.environ({}), timeout=limit(150), check=True)
    assert_told((ddp.cwd / "shown").read_text(), lines)


@contextmanager
def job(ddp: Launcher, console: int, lines: int) -> Iterator[subprocess.Popen[bytes]]:
    words = [str(DDP_RUN), "--nproc-per-node", "2", str(ddp.script(PROGRAM)), str(lines)]
    running = subprocess.Popen(
        words, cwd=ddp.cwd, env=ddp.environ({"NO_COLOR": "1"}), stdin=subprocess.DEVNULL, stdout=console, stderr=console
    )
    try:
        wait_until((ddp.cwd / VERDICT).exists, "the verdict")
        yield running
    finally:
        running.kill()
        running.wait()


def read_to_the_end(fd: int, running: subprocess.Popen[bytes]) -> str:
    data = b""
    while True:
        ended = running.poll() is not None
        if select.select([fd], [], [], 0 if ended else 0.5)[0]:
            try:
                piece = os.read(fd, 65536)
            except OSError:  # a terminal that nobody has open any more
                break
            data += piece
            ended = not piece
        if ended:
            break
    return data.decode().replace("\r\n", "\n")


def test_a_terminal_that_was_stopped_by_ctrl_s(ddp: Launcher) -> None:
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 200, 0, 0))
    os.write(leader, b"\x13")
    with job(ddp, follower, LITTLE) as running:
        time.sleep(8)  # people do not hurry
        assert running.poll() is None
        os.write(leader, b"\x11")
        shown = read_to_the_end(leader, running)
        assert running.wait(limit(60)) == 1
    assert_told(shown + read_to_the_end(leader, running), LITTLE)


def test_an_ssh_whose_peer_stands_still(ddp: Launcher) -> None:
    """Without a terminal, sshd gives a command one end of a socket pair."""
    peer, console = socket.socketpair()
    with job(ddp, console.fileno(), LITTLE) as running:
        console.close()
        time.sleep(10)
        assert running.poll() is None
        assert_told(read_to_the_end(peer.fileno(), running), LITTLE)
        assert running.wait(limit(60)) == 1


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
def test_less_shows_the_verdict_when_people_go_to_the_end(ddp: Launcher) -> None:
    """It reads a screen, and the rest when it is asked for: here when ddp-run has ended."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 40, 250, 0, 0))
    line = f"({DDP_RUN} --nproc-per-node 2 {ddp.script(PROGRAM)} {LITTLE} 2>&1; touch over) | less"
    with subprocess.Popen(
        ["bash", "-c", line],
        cwd=ddp.cwd,
        env=ddp.environ({"TERM": "xterm"}),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as shell:
        os.close(follower)
        wait_until((ddp.cwd / "over").exists, "the end of ddp-run")
        shown = b""
        os.write(leader, b"G")
        while b"ddp-run: verdict outcome=failed" not in shown:
            assert select.select([leader], [], [], limit(60))[0], shown[-3000:]
            shown += os.read(leader, 65536)
        assert b"error[DDP600]" in shown
        os.write(leader, b"q")
        shell.wait(limit(60))
    os.close(leader)


def test_a_reader_that_goes_away_ends_the_waiting(ddp: Launcher) -> None:
    peer, console = socket.socketpair()
    with job(ddp, console.fileno(), MUCH) as running:
        console.close()
        time.sleep(2)
        assert running.poll() is None
        peer.close()
        assert running.wait(limit(60)) == 1
        assert ended_after_s(ddp.cwd) < 30


@pytest.mark.parametrize("kind", ["terminal", "socket"])
def test_a_reader_that_never_reads_again_holds_the_end_for_a_minute_and_the_ranks_not_at_all(
    ddp: Launcher, kind: str
) -> None:
    if kind == "terminal":
        leader, follower = os.openpty()
        os.write(leader, b"\x13")
    else:
        leader, follower = (each.detach() for each in socket.socketpair())
    with job(ddp, follower, MUCH) as running:
        assert (ddp.cwd / "ddp-run-logs/latest/attempt_0/rank_0/stderr.log").stat().st_size >= MUCH * 100
        assert running.wait(limit(90)) == 1
        assert 50 < ended_after_s(ddp.cwd) < limit(75)


def test_a_pipe_that_is_never_read_gets_block_and_last_line_after_half_a_minute(ddp: Launcher) -> None:
    reader, writer = os.pipe()
    with job(ddp, writer, MUCH) as running:
        os.close(writer)
        assert running.wait(limit(90)) == 1
        assert 25 < ended_after_s(ddp.cwd) < limit(50)
        assert_told(read_to_the_end(reader, running), MUCH)


def test_another_attempt_does_not_wait_long_for_a_console_that_stands_still(ddp: Launcher) -> None:
    reader, writer = os.pipe()
    words = [
        str(DDP_RUN),
        "--max-retries=1",
        "--retry=always",
        "--nproc-per-node=2",
        str(ddp.script(PROGRAM)),
        str(MUCH),
    ]
    with subprocess.Popen(words, cwd=ddp.cwd, env=ddp.environ({}), stdout=writer, stderr=writer) as running:
        os.close(writer)
        second = ddp.cwd / "ddp-run-logs/latest/attempt_1"
        wait_until(second.exists, "another attempt")
        assert ended_after_s(ddp.cwd) < 15
        shown = read_to_the_end(reader, running)
        assert running.wait(limit(90)) == 1
    assert "lines of the ranks not shown" in shown.partition("retrying now")[0]
    assert shown.splitlines()[-1].startswith("ddp-run: verdict outcome=failed")
