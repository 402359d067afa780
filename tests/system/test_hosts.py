"""A failed run that speaks against its host is kept for later runs, and nothing of that can hold the job up."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from ddp_run.record import host_failures
from tests.waiting import limit

from .conftest import Launcher

pytestmark = pytest.mark.slow_system
FULL = "import os\nraise OSError(28, 'No space left on device')\n"


def test_a_full_disk_is_kept(ddp: Launcher, tmp_path: Path) -> None:
    outcome = ddp("--nproc-per-node", 1, ddp.script(FULL), env={"DDP_RUN_HOSTS_DIR": str(tmp_path / "hosts")})
    assert outcome.code == 1
    (kept,) = host_failures.read(tmp_path / "hosts")
    assert (kept.host, kept.cause) == (socket.gethostname(), "disk-full")
    assert outcome.folder is not None and kept.run_id == outcome.folder.name


def test_a_fault_of_the_program_is_not(ddp: Launcher, tmp_path: Path) -> None:
    ddp("--nproc-per-node", 1, ddp.script("1 / 0"), env={"DDP_RUN_HOSTS_DIR": str(tmp_path / "hosts")})
    assert not (tmp_path / "hosts").exists()


def test_a_folder_that_does_not_take_it(ddp: Launcher, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.mkdir()
    os.mkfifo(hosts / f"{socket.gethostname()}.{os.geteuid()}.jsonl")
    begun = time.monotonic()
    assert ddp("--nproc-per-node", 1, ddp.script(FULL), env={"DDP_RUN_HOSTS_DIR": str(hosts)}).code == 1
    assert time.monotonic() - begun < limit(60)
