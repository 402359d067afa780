"""A command that takes long says so on a terminal, and leaves nothing of it there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.waiting import limit

DDP_RUN = Path(sys.executable).with_name("ddp-run")


def test_explain_says_on_a_terminal_that_it_still_reads(tmp_path: Path) -> None:
    leader, console = os.openpty()
    log = tmp_path / "log"
    os.mkfifo(log)
    with subprocess.Popen([DDP_RUN, "explain", log], stdout=subprocess.PIPE, stderr=console) as process:
        writer = os.open(log, os.O_WRONLY)
        said = b""
        while b", 3 s" not in said:
            said += os.read(leader, 4096)
        os.write(writer, b"Traceback (most recent call last):\nKeyError: 'labels'\n")
        os.close(writer)
        out, _ = process.communicate(timeout=limit(60))
        said += os.read(leader, 4096)
    os.close(leader)
    os.close(console)
    assert process.returncode == 0
    assert re.match(rb"\r\x1b\[Kreading the logs, 2 s\r\x1b\[Kreading the logs, 3 s", said)
    assert said.endswith(b"\r\x1b[K")
    assert b"KeyError" in out


def test_without_a_terminal_it_says_nothing(tmp_path: Path) -> None:
    command = f"(sleep 3; echo \"KeyError: 'labels'\") | '{DDP_RUN}' explain"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=limit(60), check=True)
    assert done.stderr == b""
