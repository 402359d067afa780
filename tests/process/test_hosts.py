"""`ddp-run hosts` through the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.waiting import limit

from ddp_run.record import host_failures
from ddp_run.record.host_failures import HostFailure

DDP_RUN = Path(sys.executable).with_name("ddp-run")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "DDP_RUN_HOSTS_DIR": str(folder)}
    return subprocess.run(
        [DDP_RUN, "hosts", *words], env=environ, capture_output=True, text=True, timeout=limit(120), check=False
    )


def test_hosts_and_what_to_exclude(tmp_path: Path) -> None:
    now = time.time()
    for host, cause, ago_s in (("node7", "gpu-hardware", 60), ("node3", "host-oom", 60), ("node9", "disk-full", 1e7)):
        for number in range(2 if host == "node3" else 1):
            kept = HostFailure(host, now - ago_s, cause, "certain", f"{host}{number}", f"\x1b[31m{cause}")
            host_failures.append(tmp_path, kept)
    done = run(tmp_path)
    first, second, last = done.stdout.splitlines()
    assert first.startswith("node3  host-oom 2x  last 20")
    assert second.startswith("node7  gpu-hardware 1x  last 20")
    assert last == "sbatch --exclude=node3,node7 …"
    assert "\x1b" not in done.stdout
    told = json.loads(run(tmp_path, "--json", "--days", "3000").stdout)
    assert (told["exclude"], [each["host"] for each in told["hosts"]]) == ("node3,node7", ["node3", "node7", "node9"])


def test_nothing_is_known(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing")
    assert (done.returncode, done.stdout.startswith("no host-related failures in 30 days")) == (0, True)
    assert run(tmp_path, str(tmp_path / "nothing")).returncode == 2
