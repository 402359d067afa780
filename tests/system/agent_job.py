"""The same job under torchrun and under ddp-run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_run.plan.installed_torch import torch_rows
from tests.ports import unused_port
from tests.waiting import limit

from .conftest import DDP_RUN

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = Path(sys.executable).with_name("torchrun")
PYTHON = DDP_RUN.read_text().partition("\n")[0].removeprefix("#!")
"""The name by which the installed commands call Python; ranks see it."""


@dataclass(frozen=True)
class Job:
    code: int
    agent_log: str
    folder: Path
    events: tuple[dict[str, Any], ...] = ()

    def named(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def _environment(changes: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_RUN", "PET_", "PYTEST_"))}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def _run(words: Sequence[str], cwd: Path, environ: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, timeout=limit(150), check=False)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def _own_port() -> list[str]:
    """Up to torch 2.9 all jobs of a host take port 29500 where none is given: other tests' too."""
    default = next(row.default for row in torch_rows() if row.dest == "master_port")
    return [] if default is None else [f"--master-port={unused_port()}"]


def torchrun(cwd: Path, logs: Path, options: Sequence[str], program: Sequence[str], **environ: str) -> Job:
    """As `torchrun OPTIONS PROGRAM`, with files per rank."""
    words = [str(TORCHRUN), *_own_port(), *options, "--redirects=3", f"--log-dir={logs}", *program]
    code, log = _run(words, cwd, _environment(environ))
    return Job(code, log, logs)


def ddp_run(cwd: Path, logs: Path, options: Sequence[str], program: Sequence[str], **environ: str) -> Job:
    """As `ddp-run OPTIONS PROGRAM`."""
    words = [str(DDP_RUN), *options, f"--log-dir={logs}", *program]
    code, console = _run(words, cwd, _environment(environ))
    folder = (logs / "latest").resolve()
    assert folder.exists(), console
    events = tuple(json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines())
    return Job(code, (folder / "attempt_0/agent.log").read_text() + console, folder, events)


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
