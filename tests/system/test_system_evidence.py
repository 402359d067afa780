"""What the system shows after a death, for real: small file systems, kills, core dumps. Most of it needs root."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
from pathlib import Path

import pytest

from ddp_run.evidence.gather import gather
from ddp_run.evidence.model import Death, Evidence
from ddp_run.record import journal
from ddp_run.record.events import AttemptStarted
from tests.waiting import limit

from .conftest import DDP_RUN, LOOKED_AT, Launcher, Outcome, assert_first_failure, assert_replay_agrees, cases


def _can_mount() -> bool:
    words = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


mounts = pytest.mark.skipif(not _can_mount(), reason="may not mount a tmpfs in a mount namespace of its own")


def evidence(outcome: Outcome) -> Evidence:
    assert outcome.folder is not None, outcome.stderr
    events = list(journal.read(outcome.folder / "events.jsonl"))
    last = max(event.attempt for event in events if isinstance(event, AttemptStarted))
    return gather(outcome.folder, events, last)


def death(outcome: Outcome, rank: int) -> Death:
    return next(death for death in evidence(outcome).deaths if death.rank == rank)


def with_mounts(ddp: Launcher, mounted: str, *words: object) -> Outcome:
    """Run ddp-run where `mounted` (a shell command) was done first, seen by nobody else."""
    command = shlex.join([str(DDP_RUN), *map(str, words)])
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mounted} && exec {command}"],
        cwd=ddp.cwd,
        env=ddp.environ({}),
        capture_output=True,
        text=True,
        timeout=limit(120),
    )
    outcome = Outcome(done.returncode, done.stdout, done.stderr, (ddp.cwd / "ddp-run-logs/latest").resolve())
    assert_replay_agrees(outcome)
    return outcome


GROWS = f"""{LOOKED_AT}
import signal
held = []
if os.environ["RANK"] == "1":
    while not looked_at(1, 0): time.sleep(0.05)
    while not looked_at(1, 250 << 20):
        if len(held) < 8: held.append(bytearray(40 << 20))
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def killed(shared_ddp: Launcher) -> Outcome:
    """A job of which one rank was killed by hand when it had been seen to grow."""
    return shared_ddp("--nproc-per-node", 2, shared_ddp.script(GROWS))


def test_sigkill_by_hand_shows_its_memory_and_is_not_called_oom(killed: Outcome) -> None:
    assert_first_failure(killed, 137, 1)
    assert (killed.verdict["cause"], killed.verdict["confidence"]) == ("unknown", "unknown")
    trend = death(killed, 1).memory
    assert trend is not None
    assert trend.last.own > trend.first.own + (100 << 20)
    assert trend.limit is not None
    assert trend.last.own < trend.limit
    assert trend.ended_at is not None
    assert trend.ended_at >= trend.last.at
    shown = [quote["text"] for quote in killed.verdict["evidence"] if quote["source"] == "memory"]
    assert len(shown) == 1
    assert "rank 1: resident memory " in shown[0]
    assert shown[0] in killed.stderr


def test_what_was_free_at_a_death(killed: Outcome) -> None:
    found = evidence(killed)
    assert killed.folder is not None
    space = found.space_of(str(killed.folder))
    system = os.statvfs(killed.folder)
    assert space is not None
    assert space.total == system.f_blocks * system.f_frsize
    assert 0 < space.free <= space.total
    assert not killed.named("CoreDumped")
    assert {event["path"] for event in killed.named("SpaceCounted")} >= {"/dev/shm", str(killed.folder.parents[1])}


CRASHES = """
import ctypes, faulthandler, resource
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
faulthandler.disable()  # with a handler for SIGSEGV, faulthandler's for one, the kernel logs nothing
ctypes.string_at(0)
"""


@pytest.fixture(scope="module")
def crashed(shared_ddp: Launcher) -> Outcome:
    return shared_ddp("--nproc-per-node", 1, shared_ddp.script(CRASHES, "crashes.py"))


def test_a_core_dump_is_found(crashed: Outcome) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "@", "/")):
        pytest.skip(f"core dumps go elsewhere: {pattern}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("no core dumps here")
    assert [event["dumped"] for event in crashed.named("RankExited")] == [True]
    core = death(crashed, 0).core
    assert core is not None
    assert crashed.folder is not None
    assert Path(core).parent == crashed.folder.parents[1]
    assert Path(core).stat().st_size > 0
    assert any(core in line for line in crashed.verdict["advice"])


def test_a_crash_is_shown_with_the_kernels_line(crashed: Outcome) -> None:
    assert crashed.verdict["cause"] == "segfault"
    found = evidence(crashed)
    if not os.access("/dev/kmsg", os.R_OK) or not found.kernel_pids:
        pytest.skip("the kernel's log cannot be read, or logs no such lines")
    line = found.kernel_line(found.deaths[0].pid)
    assert line is not None
    assert "segfault at 0" in line.text
    assert {"source": "kernel", "line": None, "text": line.text} in crashed.verdict["evidence"]


FILLS_SHM = """
import torch
from torch.utils.data import DataLoader, Dataset

class Big(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.ones(4 << 20, dtype=torch.uint8)

if __name__ == "__main__":
    for batch in DataLoader(Big(), batch_size=4, num_workers=2): pass
"""


@mounts
def test_workers_fill_shared_memory(ddp: Launcher) -> None:
    small = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    outcome = with_mounts(ddp, small, "--nproc-per-node", 1, ddp.script(FILLS_SHM))
    assert outcome.code == 1
    space = evidence(outcome).space_of("/dev/shm")
    assert space is not None
    assert space.total == 8 << 20
    assert outcome.verdict["cause"] == "shm-exhausted", outcome.stderr


@mounts
def test_a_rank_has_sigbus_of_full_shared_memory(ddp: Launcher) -> None:
    fills = """
import mmap, os
fd = os.open("/dev/shm/filled", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 64 << 20)
memory = mmap.mmap(fd, 64 << 20)
for at in range(0, 64 << 20, 4096): memory[at] = 1
"""
    small = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    outcome = with_mounts(ddp, small, "--nproc-per-node", 1, ddp.script(fills))
    assert outcome.code == 128 + 7
    space = evidence(outcome).space_of("/dev/shm")
    assert space is not None
    assert space.nearly_full
    assert (outcome.verdict["cause"], outcome.verdict["confidence"]) == ("shm-exhausted", "likely"), outcome.stderr
    assert "/dev/shm: 0 B of 8.0 MiB free" in outcome.stderr


@mounts
def test_the_checkpoint_fills_the_disk(ddp: Launcher) -> None:
    saves = """
import torch
torch.save(torch.ones(4 << 20), "checkpoint.pt")
"""
    (ddp.cwd / "disk").mkdir()
    disk = shlex.quote(str(ddp.cwd / "disk"))
    small = f"mount -t tmpfs -o size=4m tmpfs {disk} && cd {disk}"
    words = ["--log-dir", ddp.cwd / "ddp-run-logs", "--nproc-per-node", 1, ddp.script(saves)]
    outcome = with_mounts(ddp, small, *words)
    assert outcome.code == 1
    space = evidence(outcome).space_of(str(ddp.cwd / "disk"))
    assert space is not None
    assert space.total == 4 << 20
    assert space.nearly_full
    assert outcome.verdict["cause"] == "disk-full", outcome.stderr


@pytest.mark.slow_system
def test_a_worker_is_killed(ddp: Launcher) -> None:
    """In the gate, by the kernel: test_memory.py."""
    killed = """
import os, signal, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        if index == 5: os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)

if __name__ == "__main__":
    for batch in DataLoader(Slow(), batch_size=1, num_workers=1): pass
"""
    outcome = ddp("--nproc-per-node", 1, ddp.script(killed))
    assert outcome.code == 1
    assert outcome.verdict["cause"] == "dataloader-worker-died", outcome.stderr


@mounts
@pytest.mark.parametrize("shared_memory", cases(("full", "roomy"), ("full",)))
def test_a_full_temporary_folder_ends_no_rank(ddp: Launcher, shared_memory: str) -> None:
    full = "mount -t tmpfs -o size=4k tmpfs {0} && head -c 4096 /dev/zero > {0}/taken"
    mounted = f"export TMPDIR=/mnt && {full.format('/mnt')}"  # a short path: the socket has its place there
    if shared_memory == "full":
        mounted += f" && {full.format('/dev/shm')}"
    outcome = with_mounts(
        ddp, mounted, "--nproc-per-node", 2, ddp.script("import os; print('rank', os.environ['RANK'])")
    )
    assert (outcome.code, sorted(outcome.stdout.split())) == (0, ["0", "1", "[rank0]:", "[rank1]:", "rank", "rank"])
    unseen = [event["text"] for event in outcome.named("Noted") if "cannot be monitored" in event["text"]]
    assert len(unseen) == (2 if shared_memory == "full" else 0)
    assert all("No space left" in text for text in unseen)
