"""What memory.py reads, from files as kernels and containers have them; and which looks are worth a line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_run.observe.memory import Sampler, own_cgroup
from ddp_run.record.events import MonotonicNs, Rank

V1_NONE = 9223372036854771712


def proc(root: Path, cgroup: str, mountinfo: str) -> Path:
    folder = root / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "cgroup").write_text(cgroup)
    (folder / "self" / "mountinfo").write_text(mountinfo)
    return folder


def group(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")
    return folder


def test_v2_on_a_host(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    line = f"30 24 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    events = "low 0\nhigh 0\nmax 87\noom 3\noom_kill 2\noom_group_kill 0"
    job = mount / "system.slice" / "slurmstepd.scope" / "job_7"
    group(job / "step_0", events=events, max="max", current=5 << 20)
    group(job, events=events, max=100 << 20, current=90 << 20)
    group(mount / "system.slice" / "slurmstepd.scope", max=1 << 40, current=1 << 30)
    found = own_cgroup(proc(tmp_path, "0::/system.slice/slurmstepd.scope/job_7/step_0\n", line))
    assert found is not None
    assert found.oom_kills() == 2
    assert found.tightest() == (90 << 20, 100 << 20)


def test_v2_in_a_container_with_a_cgroup_namespace(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    line = f"712 700 0:29 / {mount} ro,nosuid - cgroup2 cgroup rw\n"
    group(mount, events="oom 1\noom_kill 1\n", max=64 << 20, current=60 << 20)
    found = own_cgroup(proc(tmp_path, "0::/\n", line))
    assert found is not None
    assert (found.oom_kills(), found.tightest()) == (1, (60 << 20, 64 << 20))


def test_v1_beside_an_empty_v2(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup" / "memory"
    lines = (
        f"35 31 0:32 / {mount} rw,relatime - cgroup cgroup rw,memory\n"
        f"36 31 0:33 / {tmp_path}/cgroup/devices rw - cgroup cgroup rw,devices\n"
        f"41 31 0:38 / {tmp_path}/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    group(mount / "job", oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4", limit_in_bytes=V1_NONE)
    found = own_cgroup(proc(tmp_path, "9:name=systemd:/\n4:memory:/job\n0::/\n", lines))
    assert found is not None
    assert (found.oom_kills(), found.tightest()) == (4, None)
    group(mount / "job", limit_in_bytes=50 << 20, usage_in_bytes=20 << 20)
    assert found.tightest() == (20 << 20, 50 << 20)


def test_v1_in_a_container_that_has_its_own_part_mounted(tmp_path: Path) -> None:
    mount = tmp_path / "cg roup"
    line = f"35 31 0:32 /docker/abc {str(mount).replace(' ', chr(92) + '040')} ro - cgroup cgroup rw,memory\n"
    group(mount, oom_control="oom_kill 0", limit_in_bytes=10, usage_in_bytes=9)
    found = own_cgroup(proc(tmp_path, "4:memory:/docker/abc\n", line))
    assert found is not None
    assert (found.oom_kills(), found.tightest()) == (0, (9, 10))


@pytest.mark.parametrize(("path", "root"), [("/docker/abc", "/docker/other"), ("/../host", "/"), ("/ab", "/a")])
def test_a_cgroup_that_is_not_mounted_here(tmp_path: Path, path: str, root: str) -> None:
    line = f"35 31 0:32 {root} {tmp_path} ro - cgroup2 cgroup2 rw\n"
    assert own_cgroup(proc(tmp_path, f"0::{path}\n", line)) is None


def test_mount_points_are_bytes(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9\xc2\x85\x0c"
    mount = Path(os.fsdecode(odd))
    group(mount, events="oom_kill 1\n", max=64 << 20, current=60 << 20)
    folder = proc(tmp_path, "0::/\n", "")
    lines = b"712 700 0:29 / " + odd + b" ro - cgroup2 cgroup rw\n24 23 0:22 / /dev/shm rw - tmpfs tmpfs rw\n"
    (folder / "self" / "mountinfo").write_bytes(lines)
    found = own_cgroup(folder)
    assert found is not None
    assert (found.oom_kills(), found.tightest()) == (1, (60 << 20, 64 << 20))
    sample = Sampler(folder).look(MonotonicNs(1), {})
    assert sample is not None
    assert sample.shm_total is not None


def test_without_proc(tmp_path: Path) -> None:
    assert own_cgroup(tmp_path) is None
    sampler = Sampler(tmp_path)
    sample = sampler.look(MonotonicNs(1), {Rank(0): 1})
    assert sample is not None
    assert (sample.ranks, sample.available, sample.cgroup_limit, sample.shm_free) == ((), None, None, None)


def rank_of(folder: Path, pid: int, pages: int) -> None:
    (folder / str(pid)).mkdir(exist_ok=True)
    (folder / f"{pid}/statm").write_text(f"{pages * 2} {pages} 10 1 0 50 0\n")


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_only_what_changed_is_given_out_and_the_last_look_at_a_death(tmp_path: Path, child: int) -> None:
    folder = proc(tmp_path, "", "")
    (folder / "meminfo").write_text("MemTotal:  4096 kB\nMemFree: 1 kB\nMemAvailable:  2048 kB\n")
    page = os.sysconf("SC_PAGESIZE")
    large = (1 << 30) // page
    parent = os.getpid()
    pids = {Rank(0): child, Rank(1): parent}
    rank_of(folder, child, large)
    rank_of(folder, parent, large)
    sampler = Sampler(folder)
    first = sampler.look(MonotonicNs(0), pids)
    assert first is not None
    assert (first.ranks, first.own, first.children) == ((0, 1), (1 << 30, 1 << 30), (0, 1 << 30))
    assert (first.available, first.total) == (2 << 20, 4 << 20)

    rank_of(folder, parent, large + large // 20)
    assert sampler.look(MonotonicNs(5), pids) is None
    rank_of(folder, parent, large + large // 5)
    grown = sampler.look(MonotonicNs(10), pids)
    assert grown is not None
    rank_of(folder, parent, large + large // 4)
    assert sampler.look(MonotonicNs(15), pids) is None

    (folder / f"{parent}/statm").write_text("0 0 0 0 0 0 0\n")
    held, now = sampler.at_death(MonotonicNs(16), pids)
    assert (held.at, held.own[1]) == (15, (large + large // 4) * page)
    assert (now.at, now.ranks) == (16, (0,))
    assert len(sampler.at_death(MonotonicNs(17), pids)) == 1
    assert sampler.look(MonotonicNs(61_000_000_000), pids) is not None
