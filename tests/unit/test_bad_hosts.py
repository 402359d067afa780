"""What is kept of hosts between runs: which verdicts speak against a host, and what is proposed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.waiting import limit

from ddp_run.judge.bad_hosts import failure_of, records
from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.record import host_failures
from ddp_run.record.events import Rank
from ddp_run.record.host_failures import HostFailure
from ddp_run.supervise.run_end import keep_against_host

ME = os.geteuid()
NOW_S = 1_700_000_000.0


def verdict(cause: str, host: str | None = "node3", rank: int | None = 1) -> Verdict:
    first = FirstFailure(None if rank is None else Rank(rank), host=host)
    return Verdict("failed", 1, cause=cause, title=f"rank 1: {cause}", confidence="certain", first_failure=first)


@pytest.mark.parametrize("cause", ["gpu-hardware", "fabric-manager", "host-oom", "nccl-network", "disk-full"])
def test_causes_that_speak_against_a_host(cause: str) -> None:
    kept = failure_of(verdict(cause), "run1", NOW_S)
    assert kept == HostFailure("node3", NOW_S, cause, "certain", "run1", f"rank 1: {cause}")


def test_causes_that_say_nothing_of_a_host() -> None:
    for cause in ("python-exception", "cuda-oom", "unknown", "preempted-sigterm", "hang"):
        assert failure_of(verdict(cause), "run1", NOW_S) is None
    assert failure_of(verdict("gpu-hardware", host=None), "run1", NOW_S) is None
    assert failure_of(Verdict("failed", 75), "run1", NOW_S) is None


def test_a_lost_node_is_named_by_the_others_and_not_by_a_rank_that_outlived_it() -> None:
    assert failure_of(verdict("node-failed", rank=None), "run1", NOW_S) is not None
    assert failure_of(verdict("node-failed"), "run1", NOW_S) is None


def failure(host: str, cause: str, run: str, ago_s: float = 0.0) -> HostFailure:
    return HostFailure(host, NOW_S - ago_s, cause, "certain", run, f"{cause} on {host}")


def test_who_is_to_be_excluded() -> None:
    kept = [
        failure("a", "host-oom", "1"),
        failure("b", "gpu-hardware", "2"),
        failure("c", "disk-full", "3", 60),
        failure("c", "nccl-network", "4"),
        failure("d", "host-oom", "5"),
        failure("d", "host-oom", "5", 10),
        failure("e", "gpu-hardware", "6", 1000),
        failure("f; rm", "gpu-hardware", "7"),
        failure("g", "a-cause-of-another-version", "8"),
        failure("h", "gpu-hardware", "9", -1e12),
    ]
    found = records(kept, NOW_S - 500)
    assert [(each.host, each.runs, each.exclude) for each in found] == [
        ("c", 2, True), ("a", 1, False), ("b", 1, True), ("g", 1, False), ("d", 1, False)
    ]  # fmt: skip
    assert (found[0].last_s, found[0].last_title) == (NOW_S, "nccl-network on c")


def test_where_they_are_kept() -> None:
    assert host_failures.folder({"HOME": "/home/me"}) == Path("/home/me/.local/state/ddp-run/hosts")
    assert host_failures.folder({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/ddp-run/hosts")
    assert host_failures.folder({"HOME": "/h", "XDG_STATE_HOME": "relative"}) == Path("/h/.local/state/ddp-run/hosts")
    assert host_failures.folder({"HOME": "/h", "DDP_RUN_HOSTS_DIR": "/shared"}) == Path("/shared")
    assert host_failures.folder({}) is None


def test_a_file_stays_small_and_whoever_wrote_there_is_read(tmp_path: Path) -> None:
    where = tmp_path / "state" / "hosts"
    for number in range(900):
        host_failures.append(where, failure("node3", "disk-full", str(number)))
    host_failures.append(where, failure("../../etc/x", "disk-full", "1"))
    assert sorted(path.name for path in where.iterdir()) == [f"_.._etc_x.{ME}.jsonl", f"node3.{ME}.jsonl"]
    assert (where / f"node3.{ME}.jsonl").stat().st_size <= 64 << 10
    assert where.stat().st_mode & 0o777 == 0o700
    with open(where / f"node3.{ME}.jsonl", "a") as file:
        file.write('no json\n{"host": 3}\n[]\n' + json.dumps({"host": "n"}) + "\n")
    (where / "link.jsonl").symlink_to("/dev/zero")
    os.mkfifo(where / "pipe.jsonl")
    runs = [each.run_id for each in host_failures.read(where) if each.host == "node3"]
    assert 100 < len(runs) < 900
    assert runs[-1] == "899"
    assert list(host_failures.read(tmp_path / "nothing")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", [0o1777, 0o2775])
def test_a_folder_of_many_users(mode: int) -> None:
    """As a cluster shares it: all add to what is known of a host, and read it, also those with umask 077."""
    with TemporaryDirectory() as made:
        where = Path(made)
        os.chown(where, 0, 4000)
        where.chmod(mode)
        for uid in (4001, 4002):
            _as_user(uid, partial(host_failures.append, where, failure("node3", "disk-full", str(uid))))
        _as_user(4003, lambda: [each.run_id for each in host_failures.read(where)].index("4002"))


def _as_user(uid: int, act: Callable[[], object]) -> None:
    """In a process of that user's, who is in the group 4000."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([4000])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.umask(0o077)
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.timeout(limit(30))
def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_against_host(verdict("gpu-hardware"), "run1", {"DDP_RUN_HOSTS_DIR": str(tmp_path / "file" / "x")})
    keep_against_host(verdict("gpu-hardware"), "run1", {})
    keep_against_host(verdict("gpu-hardware"), "run1", {"DDP_RUN_HOSTS_DIR": str(tmp_path / "hosts")})
    assert [each.host for each in host_failures.read(tmp_path / "hosts")] == ["node3"]
