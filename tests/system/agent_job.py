"""Starts torchrun's agent the way torchrun does, and the way ddp-run does."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_run.launch import RANK_PROGRAM

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Job:
    code: int
    agent_log: str
    folder: Path
    messages: tuple[dict[str, Any], ...] = ()


def _environment(changes: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_RUN", "PET_", "PYTEST_"))}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def _run(words: Sequence[str], cwd: Path, environ: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, timeout=150, check=False)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def torchrun(cwd: Path, logs: Path, options: Sequence[str], program: Sequence[str], **environ: str) -> Job:
    """As `torchrun OPTIONS PROGRAM`, with files per rank."""
    words = [sys.executable, "-m", "torch.distributed.run", *options, "--redirects=3", f"--log-dir={logs}", *program]
    code, log = _run(words, cwd, _environment(environ))
    return Job(code, log, logs)


def ranks_of_ddp_run(
    cwd: Path,
    logs: Path,
    options: Sequence[str],
    program: Sequence[str],
    *,
    wishes: dict[str, Any] | None = None,
    **environ: str,
) -> Job:
    """As ddp-run starts `PROGRAM`, whose first word is the bootstrap's mode."""
    with (
        tempfile.TemporaryDirectory(prefix="ddp-run-test-") as short,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
    ):
        inbox.bind(f"{short}/events.sock")
        inbox.setblocking(False)
        asked = {"run_folder": str(logs), "attempt": 0, "socket": f"{short}/events.sock", "nccl_debug": False}
        asked |= {"restore": {}, "logs_specs": None, **(wishes or {})}
        words = [sys.executable, "-m", "torch.distributed.run", *options, "--logs-specs=ddp-run", "--redirects=3"]
        words += [f"--log-dir={logs}", str(RANK_PROGRAM), *program]
        code, log = _run(words, cwd, _environment({**environ, "DDP_RUN_AGENT": json.dumps(asked)}))
        return Job(code, log, logs, tuple(_messages(inbox)))


def _messages(inbox: socket.socket) -> list[dict[str, Any]]:
    found = []
    while True:
        try:
            found.append(json.loads(inbox.recv(1 << 18)))
        except BlockingIOError:
            return found


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
