"""A kill by the kernel for lack of memory and a kill by somebody are told apart. Needs root and a memory cgroup."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_run.evidence.gather import gather
from ddp_run.record import journal
from tests.waiting import limit

from .conftest import DDP_RUN, LOOKED_AT, Launcher, Outcome, assert_replay_agrees

EATS = f"""{LOOKED_AT}
if os.environ["RANK"] == "1":
    held = []
    while not looked_at(1, 0): time.sleep(0.05)
    while not looked_at(1, 250 << 20):
        if len(held) < 20: held.append(bytearray(16 << 20))
        time.sleep(0.05)
    while True: held.append(bytearray(16 << 20))
while True: time.sleep(1)
"""
LIMIT = 1500 << 20
"""So much that the rank is the largest process, where torch is built with CUDA too (400 MiB in every process)."""
pytestmark = pytest.mark.alone
"""The kernel counts its kills for want of memory for the whole host: other tests' ranks must not die meanwhile."""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of `LIMIT` bytes: v1's hierarchy, or v2's where the controller can be handed down."""
    root = Path("/sys/fs/cgroup")
    place, limit = (root / "memory", "memory.limit_in_bytes") if (root / "memory").is_dir() else (root, "memory.max")
    group = place / f"ddp-run-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no memory cgroup of our own: {error}")
    yield group
    group.rmdir()


def in_cgroup(ddp: Launcher, cgroup: Path, before: str, *words: object) -> Outcome:
    """Run ddp-run within the cgroup; `before` are words of a command that runs it."""
    command = shlex.join([*before.split(), str(DDP_RUN), *map(str, words)])
    done = subprocess.run(
        ["sh", "-c", f"echo $$ > {cgroup}/cgroup.procs; exec {command}"],
        cwd=ddp.cwd,
        env=ddp.environ({}),
        capture_output=True,
        text=True,
        timeout=limit(120),
    )
    outcome = Outcome(done.returncode, done.stdout, done.stderr, (ddp.cwd / "ddp-run-logs/latest").resolve())
    assert_replay_agrees(outcome)
    return outcome


def test_the_kernel_killed_it(ddp: Launcher, cgroup: Path) -> None:
    outcome = in_cgroup(ddp, cgroup, "", "--nproc-per-node", 2, ddp.script(EATS))
    assert outcome.code == 137
    assert outcome.folder is not None
    assert outcome.verdict["cause"] == "host-oom", outcome.stderr
    assert outcome.verdict["confidence"] == "certain"
    assert outcome.verdict["first_failure"]["rank"] == 1
    evidence = gather(ddp.cwd / "ddp-run-logs/latest", list(journal.read(outcome.folder / "events.jsonl")), 0)
    trend = evidence.deaths[0].memory
    assert trend is not None
    assert (trend.cgroup, trend.limit) == (True, LIMIT)
    assert trend.last.own > trend.first.own + (100 << 20)
    if os.access("/dev/kmsg", os.R_OK):
        assert any("Killed process" in line for line in evidence.kernel.lines)
    if evidence.kernel_pids:
        assert evidence.killed_for_memory(evidence.deaths[0].pid) is not None


@pytest.mark.slow_system
def test_the_kernel_killed_it_in_a_pid_namespace(ddp: Launcher, cgroup: Path) -> None:
    if subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace of our own")
    outcome = in_cgroup(ddp, cgroup, "unshare -pf --mount-proc", "--nproc-per-node", 2, ddp.script(EATS))
    assert (outcome.verdict["cause"], outcome.verdict["confidence"]) == ("host-oom", "certain"), outcome.stderr
    # the kernel's line has the number that the process has outside
    assert not any(event["own_pids"] for event in outcome.named("KernelLogged"))
    assert not any("Killed process" in quote["text"] for quote in outcome.verdict["evidence"])


def test_the_kernel_killed_a_worker(ddp: Launcher, cgroup: Path) -> None:
    eats = """
import torch
from torch.utils.data import DataLoader, Dataset

class Eats(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        held = []
        while True: held.append(bytearray(16 << 20))

if __name__ == "__main__":
    for batch in DataLoader(Eats(), num_workers=1): pass
"""
    outcome = in_cgroup(ddp, cgroup, "", "--nproc-per-node", 1, ddp.script(eats))
    assert outcome.verdict["cause"] == "dataloader-worker-died", outcome.stderr
    assert "out-of-memory killer" in outcome.verdict["title"]


@pytest.mark.slow_system
def test_somebody_killed_it(ddp: Launcher) -> None:
    """In the gate: test_sigkill_by_hand_shows_its_memory_and_is_not_called_oom."""
    killed = (
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    )
    outcome = ddp("--nproc-per-node", 2, ddp.script(killed))
    assert outcome.verdict["cause"] == "unknown"
    assert outcome.verdict["confidence"] == "unknown"
    assert outcome.code == 137
