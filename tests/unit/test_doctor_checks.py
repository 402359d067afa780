"""How the doctor's checks judge values; and that each check of the folder is one."""

from __future__ import annotations

import errno
import pkgutil
import resource
import select
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import limit, wait_until

from ddp_run.doctor import checks
from ddp_run.doctor.check import Group, Level, Surroundings, all_checks, asked, check
from ddp_run.doctor.checks import data, disk, host, memory, network, ranks
from ddp_run.doctor.checks import nodes as of_nodes
from ddp_run.doctor.checks.network import Interface
from ddp_run.doctor.findings import Finding, Grade
from ddp_run.doctor.reports import Launched, Reports, read_lines
from ddp_run.judge import bad_hosts
from ddp_run.observe import file_systems
from ddp_run.plan import net
from ddp_run.plan.checks import interfaces as named_interfaces
from ddp_run.plan.installed_torch import torch_rows
from ddp_run.plan.net import Holder
from ddp_run.record.events import MonotonicNs, NodesCompared, SpaceCounted
from ddp_run.record.host_failures import HostFailure
from ddp_run.settings.parse import parse

NEVER = resource.RLIM_INFINITY
GIB = 1 << 30
DATA = Path("/data")


def around(**further: Any) -> Surroundings:
    options = parse(("--nproc-per-node=2", "x.py"), {}, torch_rows=torch_rows())
    return Surroundings(options=options, environ={}, ranks=2, log_dir=Path("logs"), **further)


def test_every_file_has_checks() -> None:
    found = all_checks()
    files = {each.look.__module__.rpartition(".")[2] for each in found}
    assert files == {each.name for each in pkgutil.iter_modules(checks.__path__)}
    assert len({each.name for each in found}) == len(found)
    assert all(each.about.endswith(".") and "|" not in each.about for each in found)
    assert not [each.name for each in found if each.of_ranks and each.level is Level.QUICK]


def test_checks_of_ranks_come_last() -> None:
    order = [each.of_ranks for each in all_checks()]
    assert order == sorted(order)


def test_a_check_that_fails_itself_says_nothing_about_the_host() -> None:
    @check(Group.HOST, "something")
    def broken(_around: Surroundings) -> list[Finding]:
        raise ValueError("odd text")

    (found,) = asked(broken, around())
    assert (found.looked_at, found.grade, found.against) == (
        "broken",
        Grade.SKIPPED,
        "the check itself failed: ValueError: odd text",
    )


@pytest.mark.parametrize(
    ("found", "grade"),
    [
        (host.kernel("6.8.0-45-generic"), Grade.PASS),
        (host.kernel("4.18.0-553.el8_10.x86_64"), Grade.WARN),
        (host.clock_state(0, 12_000), Grade.PASS),
        (host.clock_state(5, 16_000_000), Grade.WARN),
        (host.clock_state(-1, 0), Grade.SKIPPED),
        (host.cpu_count(64, 64, None, 8), Grade.PASS),
        (host.cpu_count(64, 4, None, 8), Grade.WARN),
        (host.cpu_count(64, 64, 8.0, 4), Grade.WARN),  # programs see 64 and start as many workers
        (host.omp_threads(64, 8, None), Grade.PASS),
        (host.omp_threads(64, 8, "8"), Grade.PASS),
        (host.omp_threads(64, 8, "16"), Grade.WARN),
        (host.omp_threads(2, 4, "1"), Grade.PASS),
        (host.omp_threads(64, 8, "8,2"), Grade.PASS),
        (host.omp_threads(64, 8, "16,2"), Grade.WARN),
        (host.omp_threads(64, 8, ""), Grade.WARN),
        (host.omp_threads(64, 8, "auto"), Grade.WARN),
        (memory.memory_left("memory", 100 * GIB, 128 * GIB, 8), Grade.PASS),
        (memory.memory_left("memory", 10 * GIB, 128 * GIB, 8), Grade.WARN),
        (memory.memory_left("memory", GIB, 128 * GIB, 8), Grade.FAIL),
        (memory.shm_size(8 * GIB, 8 * GIB, True), Grade.PASS),
        (memory.shm_size(64 << 20, 64 << 20, True), Grade.WARN),
        (memory.shm_size(GIB // 10, 8 * GIB, True), Grade.WARN),
        (memory.shm_size(8 * GIB, 8 * GIB, False), Grade.FAIL),
        (memory.open_files(1024, 524288), Grade.WARN),
        (memory.open_files(64, 64), Grade.FAIL),
        (memory.open_files(65536, 65536), Grade.PASS),
        (memory.open_files(NEVER, NEVER), Grade.PASS),
        (memory.tasks("p", NEVER, 0, 8, ""), Grade.PASS),
        (memory.tasks("p", 1024, 100, 8, ""), Grade.WARN),
        (memory.tasks("p", 256, 100, 8, ""), Grade.FAIL),
        (memory.address_space(32 * GIB), Grade.WARN),
        (memory.address_space(NEVER), Grade.PASS),
        (memory.locked_memory(65536, has_rdma=True), Grade.WARN),
        (memory.locked_memory(65536, has_rdma=False), Grade.PASS),
        (memory.locked_memory(NEVER, has_rdma=True), Grade.PASS),
        (network.master_address("m", "10.0.0.1", node_rank=0, local=True), Grade.PASS),
        (network.master_address("m", "10.0.0.1", node_rank=0, local=False), Grade.WARN),
        (network.master_address("m", "10.0.0.1", node_rank=1, local=False), Grade.PASS),
        (network.interface_found(Interface("eth0", "10.0.0.2", 100_000, 9000)), Grade.PASS),
        (network.interface_found(Interface("eth0", "10.0.0.2", None, 1500)), Grade.PASS),
        (network.interface_found(Interface("eth0", "10.0.0.2", 100, 1500)), Grade.WARN),
        (network.interface_found(Interface("docker0", "172.17.0.1", None, 1500)), Grade.WARN),
        (network.interface_found(Interface("eth0", "10.0.0.2", 10_000, 576)), Grade.WARN),
        (network.own_port(29500, True, None), Grade.PASS),
        (network.own_port(29500, False, Holder(7, "python")), Grade.FAIL),
        (network.port_answer("10.0.0.1", 29500, 0), Grade.PASS),
        (network.port_answer("10.0.0.1", 29500, errno.ECONNREFUSED), Grade.PASS),
        (network.port_answer("10.0.0.1", 29500, errno.ETIMEDOUT), Grade.WARN),
        (network.port_answer("10.0.0.1", 29500, errno.EHOSTUNREACH), Grade.WARN),
        (network.rdma_port("mlx5_0", "1", "4: ACTIVE", "400 Gb/sec (4X NDR)"), Grade.PASS),
        (network.rdma_port("mlx5_1", "1", "1: DOWN", "10 Gb/sec (4X SDR)"), Grade.WARN),
        (data.opened(DATA, ""), Grade.PASS),
        (data.opened(DATA, "empty"), Grade.WARN),
        (data.opened(DATA, "Permission denied"), Grade.FAIL),
        (data.opened(DATA, None), Grade.FAIL),
    ],
)
def test_grades(found: Finding, grade: Grade) -> None:
    assert found.grade is grade
    if grade in (Grade.WARN, Grade.FAIL):
        assert found.against
        assert found.advice or found.looked_at == "kernel"


def test_limits_of_a_control_group() -> None:
    assert [host.cpu_limit(text) for text in ("200000 100000", "max 100000", "-1 100000", "", "5")] == [2.0] + 4 * [
        None
    ]
    assert host.workers(2, 2) == 0
    assert host.workers(64, 8) == 7


def counted(free: int, inodes: int) -> SpaceCounted:
    return SpaceCounted(MonotonicNs(0), "/data", free, 100 * GIB, inodes, 1_000_000)


@pytest.mark.parametrize(
    ("counted", "grade"),
    [
        (counted(50 * GIB, 500_000), Grade.PASS),
        (counted(GIB // 2, 500_000), Grade.WARN),
        (counted(1 << 20, 500_000), Grade.FAIL),
        (counted(50 * GIB, 5_000), Grade.WARN),
        (counted(50 * GIB, 3), Grade.FAIL),
        (SpaceCounted(MonotonicNs(0), "/data", 50 * GIB, 100 * GIB, 0, 0), Grade.PASS),  # btrfs counts none
        (SpaceCounted(MonotonicNs(0), "/data", 0, 0, 0, 0), Grade.PASS),  # buckets that are mounted tell no size
    ],
)
def test_disk(counted: SpaceCounted, grade: Grade) -> None:
    assert disk.room(disk.Place("logs", DATA, "", ""), counted).grade is grade


def test_who_has_answered_while_another_was_waited_for_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = file_systems.ask_for_space(["/"])
    select.select([probe.fd], [], [], limit(60))
    wait_until(lambda: probe.late, "the end of its time")
    found, has_answered = disk.answer(probe)
    assert (found is not None, has_answered) == (True, True)
    monkeypatch.setattr(file_systems, "WAIT_S", limit(60))
    missing = disk.answer(file_systems.ask_for_space(["/no/such/folder"]))
    assert missing == (None, True)


@pytest.mark.parametrize(("instead", "grade"), [("", Grade.FAIL), ("a launch writes to /tmp", Grade.WARN)])
def test_a_folder_that_takes_nothing(instead: str, grade: Grade) -> None:
    found = disk.unusable(disk.Place("logs", DATA, instead, "--log-dir DIR"), "not writable")
    assert (found.value, found.grade) == ("not writable", grade)


# --------------------------------------------------------------------------------------- what ranks report


def rows(*bus: float) -> list[dict[str, Any]]:
    each = {"seconds": 0.001, "algbw": 1.0, "rounds": 3, "rank": 0, "wrong": False}
    return [{"bytes": 1024 << 2 * place, "busbw": value, **each} for place, value in enumerate(bus)]


def test_bandwidth_is_judged_against_the_link_only() -> None:
    assert ranks.bandwidth(rows(0.01, 0.5), "gloo", None).grade is Grade.PASS
    slow = ranks.bandwidth(rows(0.01, 0.5), "gloo", 100_000)
    assert (slow.grade, slow.against) == (Grade.WARN, "the link's 12.50 GB/s")
    assert slow.value == "0.50 GB/s bus bandwidth at 4 KiB (gloo)"
    assert ranks.bandwidth(rows(0.01, 9.0), "nccl", 100_000).grade is Grade.PASS
    assert [row["busbw"] for row in slow.data] == [0.01, 0.5]


def test_wrong_collectives_name_ranks() -> None:
    def judged(*told: dict[str, Any]) -> Finding:
        reports = Reports(by_rank={0: [{"report": "collectives", "ranks": told}]})
        (found,) = asked(ranks.collectives, around(reports=reports))
        return found

    right = {"wrong": [], "barrier_s": 0.001}
    found = judged(right, {"wrong": ["all_reduce"], "barrier_s": 0.002})
    assert (found.grade, found.value) == (Grade.FAIL, "wrong: all_reduce")
    assert "rank 1" in found.against
    assert judged(right, right).grade is Grade.PASS


def sample(text: str) -> dict[str, Any]:
    return {"hash": text, "files": 2, "bytes": 100}


def test_ranks_that_read_something_else_are_named() -> None:
    assert data.compared("/data", [sample("a"), sample("a")]).grade is Grade.PASS
    odd = data.compared("/data", [sample("a"), sample("a"), sample("b"), sample("a")])
    assert (odd.grade, odd.value) == (Grade.WARN, "rank 2 reads different data from the others")
    missing = data.compared("/data", [sample("a"), {"error": "No such file or directory: /data"}])
    assert (missing.grade, missing.value) == (Grade.FAIL, "rank 1 cannot read it")


def test_two_halves_that_differ_have_no_odd_one() -> None:
    found = data.compared("/data", [sample("a"), sample("b")])
    assert (found.grade, found.value) == (Grade.WARN, "differs: a on rank 0, b on rank 1")


def node(number: int, failed: tuple[str, ...] = (), **facts: str) -> dict[str, Any]:
    return {"node": number, "rank": 2 * number, "host": f"n{number}", "failed": list(failed), "facts": [*facts.items()]}


def test_nodes_that_differ() -> None:
    compared = NodesCompared(
        MonotonicNs(0), ("torch: 2.13.0 on node 0, 2.12.1 on node 1",), ("MTU: a",), ("x: y",), False
    )
    found = list(of_nodes.differences(compared))
    assert [(each.looked_at, each.grade) for each in found] == [("torch", Grade.FAIL), ("MTU", Grade.WARN)]
    assert found[0].value == "2.13.0 on node 0, 2.12.1 on node 1"
    (alike,) = of_nodes.differences(NodesCompared(MonotonicNs(0), (), (), ("x: y", "z: z"), False))
    assert (alike.grade, alike.value) == (Grade.PASS, "2 facts are the same")


def test_other_nodes_tell_of_what_breaks_jobs_only() -> None:
    """As node 0 does, so that all end with the same code."""
    nodes = [node(0, torch="2.13.0", OMP_NUM_THREADS="1"), node(1, torch="2.12.1", OMP_NUM_THREADS="2")]
    (found,) = of_nodes.breaking(nodes)
    assert (found.looked_at, found.grade) == ("torch", Grade.FAIL)
    assert found.value == "2.13.0 on node 0 (n0), 2.12.1 on node 1 (n1)"
    assert list(of_nodes.breaking([node(0, torch="2.13.0"), node(1, torch="2.13.0")])) == []


def test_interfaces_that_variables_name() -> None:
    here = (
        net.Interface("eth0", ("10.0.0.2",), True, True, False),
        net.Interface("lo", ("127.0.0.1",), True, True, True),
    )

    def grade(variable: str, value: str, several: bool = True, used: bool = True) -> Grade:
        wrong = named_interfaces.judged(variable, value, here, None)
        return network.named_interface(variable, value, wrong, several=several, used=used).grade

    assert grade("GLOO_SOCKET_IFNAME", "eth0") is Grade.PASS
    assert grade("GLOO_SOCKET_IFNAME", "eth1") is Grade.FAIL
    assert grade("NCCL_SOCKET_IFNAME", "eth1", used=False) is Grade.WARN
    assert grade("GLOO_SOCKET_IFNAME", "lo") is Grade.WARN
    assert grade("GLOO_SOCKET_IFNAME", "lo", several=False) is Grade.PASS


def test_a_host_that_made_runs_fail() -> None:
    failures = [
        HostFailure("gpu-07", 1e9 + number, "gpu-hardware", "certain", f"run{number}", "Xid 79") for number in (0, 1)
    ]
    records = bad_hosts.records(failures, 0.0)
    found = host.history(records, "gpu-07")
    assert found.grade is Grade.WARN
    assert found.value.startswith("2 failed because of this host, last on 2001-09-0")
    assert found.advice == ("ddp-run hosts", "sbatch --exclude=gpu-07 …")
    assert host.history(records, "gpu-08").grade is Grade.PASS


def test_what_failed_on_another_node() -> None:
    nodes = [node(0, ("disk for logs: not writable",)), node(1)]
    assert list(of_nodes.others(nodes, own_rank=0)) == []
    (found,) = of_nodes.others(nodes, own_rank=2)
    assert (found.looked_at, found.value, found.grade) == ("node 0 (n0)", "disk for logs: not writable", Grade.FAIL)


def test_devices_of_ranks() -> None:
    cpu, gpu = {"rank": 0, "name": "cpu", "gpus": 0}, {"rank": 0, "name": "H100", "gpus": 8, "nccl": "2.27.3"}
    assert list(ranks.device(cpu, has_driver=False, ranks=2)) == []
    assert [each.grade for each in ranks.device(cpu, has_driver=True, ranks=2)] == [Grade.FAIL]
    shared = {**cpu, "gpus": 1}
    assert [each.grade for each in ranks.device(shared, has_driver=True, ranks=2)] == [Grade.WARN]
    assert [each.grade for each in ranks.device({**gpu, "right": True}, has_driver=True, ranks=8)] == [Grade.PASS]
    assert [each.grade for each in ranks.device({**gpu, "right": False}, has_driver=True, ranks=8)] == [Grade.FAIL]


LINES = '{"report": "doing", "what": "import torch"}\n{"report": "torch", "seconds": 1.5, "version": "2.13.0"}\n'


def test_reports_of_ranks() -> None:
    """A last line that is not whole, and what is no report, are left out."""
    further = '{"report": "doing", "what": "init_process_group"}\n'
    first, second = read_lines(LINES + further + '{"report": "gro', 0), read_lines("odd\n[]\n" + LINES, 1)
    reports = Reports(Launched(1, 3.0, None, ""), {0: first, 1: second})
    assert [report["rank"] for report in reports.of("torch")] == [0, 1]
    assert reports.one("group") is None
    assert reports.last_step() == "import torch"
    assert Reports(Launched(1, 3.0, None, ""), {}).last_step() is None


def test_a_failed_launch_is_its_verdict() -> None:
    def judged(launched: Launched, lines: str = "") -> Finding:
        reports = Reports(launched, {0: read_lines(lines, 0)})
        (found,) = asked(ranks.launch, around(reports=reports))
        return found

    verdict = {"title": "rank 1 ran out", "code": "DDP402", "advice": ["do"], "evidence": [{"text": "OutOfMemory"}]}
    found = judged(Launched(1, 3.0, verdict, "/logs/1"), LINES)
    assert (found.grade, found.value, found.against) == (Grade.FAIL, "[DDP402] rank 1 ran out", "during: import torch")
    assert found.advice == ("do", "ddp-run explain /logs/1")
    assert found.detail == ("OutOfMemory",)
    assert judged(Launched(2, 0.1, None, "", refused="error[DDP201]: port 1 is taken")).value == (
        "[DDP201] port 1 is taken"
    )
