"""When a SIGKILL is called an out-of-memory kill: what the kernel counted against whom it named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.evidence.resources import MemoryTrend, MemoryUse
from ddp_run.judge.rules import dataloader_worker_died, host_oom, native_abort, segfault, shm_exhausted
from ddp_run.record.events import ExceptionInfo, MonotonicNs, Rank, SpaceCounted

OURS = "[1.0] Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB"
ANOTHERS = "[1.0] Out of memory: Killed process 78 (java) total-vm:9kB, anon-rss:8kB"
USE = MemoryUse(MonotonicNs(0), 1 << 30, 0)
DEATH = Death(Rank(2), pid=77, code=-9, memory=MemoryTrend(USE, USE, 4 << 30, None))


def run(
    *lines: str,
    host: int | None = None,
    cgroup: int | None = None,
    pids: bool = True,
    space: tuple[SpaceCounted, ...] = (),
) -> Evidence:
    return Evidence(
        kernel=LogText("kernel", lines, None),
        kernel_pids=pids,
        host_oom_kills=host,
        cgroup_oom_kills=cgroup,
        space=space,
    )


@pytest.mark.parametrize(
    ("seen", "confidence"),
    [
        (run(), None),
        (run(host=0, cgroup=0), None),
        (run(OURS), "certain"),
        (run(OURS, ANOTHERS, host=2, cgroup=1), "certain"),
        # before Linux 5.1: the process that was chosen, then its child, which was killed in its place
        (
            run("[1.0] Out of memory: Kill process 78 (java) score 9 or sacrifice child", "Killed process 77 (x)"),
            "certain",
        ),
        (run("[1.0] Out of memory: Kill process 77 (x) score 9 or sacrifice child", ANOTHERS, host=1), None),
        (run(host=1, cgroup=1), "certain"),
        (run(host=1, cgroup=0), "likely"),
        # the kernel says whom it killed, and it was somebody else
        (run(ANOTHERS, host=1, cgroup=0), None),
        (run(ANOTHERS, host=1, cgroup=1), None),
        # one more than it named here
        (run(ANOTHERS, host=2, cgroup=0), "likely"),
        # numbers of another pid namespace say nothing about ours
        (run(ANOTHERS, host=1, cgroup=1, pids=False), "certain"),
        (run(OURS, host=1, cgroup=0, pids=False), "likely"),
        # it may have named a thread
        (run(ANOTHERS.replace("memory:", "memory (oom_kill_allocating_task):"), host=1), "likely"),
    ],
)
def test_a_sigkill(seen: Evidence, confidence: str | None) -> None:
    finding = host_oom.match(DEATH, seen)
    assert (finding.confidence if finding else None) == confidence
    if finding is not None and confidence == "certain":
        assert any("resident memory 1.0 GiB" in quote.text for quote in finding.evidence)


def test_a_sigkill_that_we_sent() -> None:
    assert host_oom.match(Death(Rank(2), pid=77, code=-9, signals_sent=(9,)), run(OURS, host=1, cgroup=1)) is None


def test_a_broken_pipe_while_the_jobs_cgroup_ran_out_of_memory() -> None:
    death = Death(Rank(2), pid=77, code=1, exception=ExceptionInfo("BrokenPipeError", "[Errno 32] Broken pipe"))
    finding = host_oom.match(death, run(host=1, cgroup=1))
    assert finding is not None
    assert (finding.confidence, "lost the process at the other end of a pipe while" in finding.cause) == (
        "likely",
        True,
    )
    assert host_oom.match(death, run(host=1)) is None  # of another job, maybe
    other = replace(death, exception=ExceptionInfo("ValueError", "Broken pipe"))
    assert host_oom.match(other, run(host=1, cgroup=1)) is None


def test_a_crash_shows_the_kernels_line_and_the_core() -> None:
    line = "[1.0] python[77]: segfault at 0 ip 00007f in libtorch_cpu.so[7f0c29000000+9000]"
    death = Death(Rank(2), pid=77, code=-11, core="/here/core")
    finding = segfault.match(death, run(line))
    assert finding is not None
    assert [quote.text for quote in finding.evidence] == [line]
    assert any("/here/core" in line for line in finding.advice)
    aborted = native_abort.match(Death(Rank(2), pid=77, code=-6, core="/here/core"), run())
    assert aborted is not None
    assert any("/here/core" in line for line in aborted.advice)


def test_a_bus_error_of_the_rank_itself() -> None:
    death, full = Death(Rank(2), pid=77, code=-7), SpaceCounted(MonotonicNs(0), "/dev/shm", 0, 64 << 20, 0, 0)
    finding = shm_exhausted.match(death, run(space=(full,)))
    assert finding is not None
    assert (finding.confidence, finding.evidence[0].text) == ("likely", "/dev/shm: 0 B of 64.0 MiB free")
    assert shm_exhausted.match(death, run(space=(replace(full, free=32 << 20),))) is None
    assert shm_exhausted.match(death, run(space=(replace(full, path="/data"),))) is None
    assert shm_exhausted.match(death, run()) is None
    assert shm_exhausted.match(Death(Rank(2), pid=77, code=-11), run(space=(full,))) is None


def test_a_worker_that_the_kernel_killed_and_one_that_it_did_not() -> None:
    stderr = LogText("stderr.log", ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",))
    death = Death(Rank(2), pid=5, code=1, stderr=stderr)

    def title(seen: Evidence) -> str:
        finding = dataloader_worker_died.match(death, seen)
        assert finding is not None
        return finding.cause

    assert title(run()).endswith("killed by a signal: Killed")
    assert title(run(OURS, host=1)).endswith("killed by a signal: Killed, by the kernel's out-of-memory killer")
    assert title(run(host=1)).endswith("Killed; the kernel's out-of-memory killer was active")
    assert title(run(ANOTHERS, host=1)).endswith("killed by a signal: Killed")
