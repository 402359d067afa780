"""The nodes that the tests of this folder run on: they are like hosts, their wires can be cut, and nothing stays."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import limit, wait_until

from .cluster import NAME, Cluster, Failed, Node, namespaces
from .conftest import TRAIN, Job

RECEIVE = (
    "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 9999)); print('ready', flush=True)"
)
RECEIVE += "\nwhile True: print(s.recv(99).decode(), flush=True)"
SEND = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9999))"
ROUND_TRIP = (
    "import socket, sys, time; began = time.monotonic(); socket.socket().connect_ex((sys.argv[1], 9))\n"
    "print(time.monotonic() - began)"
)


def own() -> list[str]:
    """The namespaces of this process' clusters."""
    return [name for name in namespaces() if (named := NAME.match(name)) and int(named[1]) == os.getpid()]


def send(node: Node, to: Node, text: str) -> None:
    node.run(sys.executable, "-SEc", SEND, to.host, text)


@pytest.mark.slow_system
def test_two_nodes_sum_over_their_ranks(cluster: Cluster, start_job: Callable[..., Job]) -> None:
    job = start_job(cluster, TRAIN, "--steps", 2)
    for rank, outcome in enumerate(job.wait()):
        assert outcome.code == 0, outcome.stderr
        assert f"[rank{rank}]: step 1 sum 3" in outcome.stdout
        assert f"[rank{rank}]: rank {rank} done" in outcome.stdout
        assert outcome.verdict["outcome"] == "succeeded"
        assert outcome.named("RunStarted")[0]["host"] == f"node{rank}"
        assert outcome.seconds is None
        assert outcome.stderr == ""


@pytest.mark.slow_system
def test_three_nodes_sum_over_their_ranks(clusters: Callable[[int], Cluster], start_job: Callable[..., Job]) -> None:
    for outcome in start_job(clusters(3), TRAIN, "--steps", 2).wait():
        assert outcome.code == 0, outcome.stderr
        assert "step 1 sum 6" in outcome.stdout


@pytest.mark.slow_system
def test_the_moment_of_a_fault_is_known(cluster: Cluster, start_job: Callable[..., Job]) -> None:
    first, second = start_job(cluster, TRAIN, "--fail-rank", 1, "--how", "raise").wait()
    assert first.code == second.code != 0
    assert second.seconds is not None
    assert 0 < second.seconds < limit(60)


@pytest.mark.slow_system
def test_a_node_that_computes_takes_no_part_in_the_sum(cluster: Cluster, start_job: Callable[..., Job]) -> None:
    first, second = start_job(cluster, TRAIN, "--compute-node", 0, "--steps", 2).wait()
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert "step 1 computed" in first.stdout
    assert "step 1 sum 2" in second.stdout


def test_a_cut_stops_what_passes_and_a_heal_lets_it_pass_again(cluster: Cluster) -> None:
    first, second = cluster.nodes
    assert first.reaches(second)
    assert second.reaches(first)
    cluster.cut(1)
    assert not first.reaches(second)
    assert not second.reaches(first)
    cluster.heal(1)
    assert first.reaches(second, limit(5))
    assert second.reaches(first, limit(5))


def test_a_cut_of_one_way_leaves_the_other(cluster: Cluster, tmp_path: Path) -> None:
    first, second = cluster.nodes
    heard = [node.start([sys.executable, "-SEc", RECEIVE], tmp_path) for node in cluster.nodes]
    wait_until(lambda: all(started.out for started in heard), "receivers")
    cluster.cut_one_way(1)
    send(first, second, "to second")
    send(second, first, "lost")
    wait_until(lambda: "to second" in heard[1].out, lambda: f"a packet: {heard[1].out}{heard[1].err}")
    cluster.heal(1)
    send(second, first, "to first")
    wait_until(lambda: "to first" in heard[0].out, lambda: f"a packet: {heard[0].out}{heard[0].err}")
    assert "lost" not in heard[0].out


def test_a_delay_is_one_of_both_ways(cluster: Cluster) -> None:
    first, second = cluster.nodes
    cluster.delay(1, 200)
    assert float(first.run(sys.executable, "-SEc", ROUND_TRIP, second.host)) >= 0.4
    cluster.delay(1, 0, loss=1.0)
    assert not first.reaches(second)
    cluster.heal(1)
    assert first.reaches(second, limit(5))


def test_a_node_has_its_own_host_name_and_keeps_the_machines_cgroups(cluster: Cluster) -> None:
    node = cluster.node(1)
    program = "import json, os, socket; print(json.dumps([socket.gethostname(), socket.gethostbyname('node1')"
    program += ", os.listdir('/sys/fs/cgroup')]))"
    host, address, cgroups = json.loads(node.run(sys.executable, "-c", program))
    assert (host, address) == ("node1", node.address)
    assert sorted(cgroups) == sorted(os.listdir("/sys/fs/cgroup"))


def test_clusters_side_by_side_do_not_meet(clusters: Callable[[int], Cluster]) -> None:
    one, other = clusters(2), clusters(2)
    one.cut(1)
    assert not one.node(0).reaches(one.node(1))
    assert other.node(0).reaches(other.node(1))


def test_nothing_stays_of_a_cluster_whose_test_failed(tmp_path: Path) -> None:
    before = own()
    with pytest.raises(ZeroDivisionError), Cluster(2) as cluster:
        cluster.delay(0, 1)
        started = cluster.node(1).start(["sh", "-c", "sleep 600 & sleep 600"], tmp_path)
        pids = wait_until(lambda: found if len(found := cluster.node(1).pids()) > 2 else None, "three processes")
        assert len(set(own()) - set(before)) == 3
        assert any(node.hosts_file.exists() for node in cluster.nodes)
        raise ZeroDivisionError
    assert started.wait(limit(30)) != 0
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in pids), f"the end of {pids}")
    assert own() == before
    assert not any(node.etc.exists() for node in cluster.nodes)


def test_a_command_that_fails_says_why(cluster: Cluster) -> None:
    with pytest.raises(Failed, match="does-not-exist"):
        cluster.node(0).run("cat", "does-not-exist")
