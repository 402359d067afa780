"""Clusters as they come: other numbers of ranks, other addresses, more interfaces, other clocks, no name server."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.waiting import limit

from .cluster import INTERFACE, Cluster
from .conftest import TRAIN, WIRES, Job, NodeOutcome
from .test_one_verdict import alike

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
MakeCluster = Callable[..., Cluster]
FAILS = ("--fail-rank", 1, "--step-s", 0.2, "--steps", 50)


def assert_rank_failed(outcomes: list[NodeOutcome], rank: int, node: int) -> None:
    verdict = alike(outcomes)
    first = verdict["first_failure"]
    assert isinstance(first, dict)
    assert (first["rank"], first["node_rank"], first["host"]) == (rank, node, f"node{node}")
    assert verdict["cause"] == "python-exception"
    assert f"rank {rank} raised ValueError" in str(verdict["title"])


def test_nodes_with_different_numbers_of_ranks(cluster: Cluster, start_job: StartJob) -> None:
    job = start_job(cluster, TRAIN, "--fail-rank", 2, "--step-s", 0.2, "--steps", 50, nproc=2, later=(1,))
    job.start(1, options=("--nproc-per-node", 1))
    outcomes = job.wait()
    assert_rank_failed(outcomes, 2, 1)
    assert "step 1 sum 6" in outcomes[0].stdout
    ranks = [sorted({event["rank"] for event in outcome.named("RankStarted")}) for outcome in outcomes]
    assert ranks == [[0, 1], [2]]


def test_nodes_that_have_only_ipv6(clusters: MakeCluster, start_job: StartJob) -> None:
    cluster = clusters(2, ipv6=True)
    outcomes = start_job(cluster, TRAIN, "--steps", 2).wait()
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].stderr
    assert [outcome.stderr for outcome in outcomes] == ["", ""]


def test_a_failure_where_there_is_only_ipv6(clusters: MakeCluster, start_job: StartJob) -> None:
    assert_rank_failed(start_job(clusters(2, ipv6=True), TRAIN, *FAILS).wait(), 1, 1)


def test_a_retry_where_there_is_only_ipv6(clusters: MakeCluster, start_job: StartJob) -> None:
    cluster = clusters(2, ipv6=True)
    words = ("--fail-rank", 1, "--how", "os_exit", "--fail-times", 1, "--steps", 3)
    options = ("--max-retries", 1)
    outcomes = start_job(cluster, TRAIN, *words, options=options, at=cluster.node(0).address).wait()
    used = [[each["port"] for each in outcome.named("AttemptStarted")] for outcome in outcomes]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].stderr
    assert used[0] == used[1]
    assert len({*used[0]}) == 2


def test_the_interface_of_the_route_is_taken(cluster: Cluster, start_job: StartJob) -> None:
    """Beside it each node has a bridge of containers, which its own name leads to, as on many hosts, and one down."""
    for node in cluster.nodes:
        node.run("ip", "link", "add", "docker0", "type", "bridge")
        node.run("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        node.run("ip", "link", "set", "docker0", "up")
        node.run("ip", "link", "add", "idle0", "type", "bridge")
        node.run("ip", "addr", "add", f"{node.network}{node.rank + 100}/24", "dev", "idle0")
        kept = [line for line in node.hosts_file.read_text().splitlines() if node.host not in line]
        node.hosts_file.write_text("\n".join([f"172.17.0.1 {node.host}", *kept, ""]))
    job = start_job(cluster, TRAIN, "--steps", 2, at=cluster.node(0).address, later=(0, 1))
    for node in cluster.nodes:  # by this address torch alone would find its store on no host
        job.start(node.rank, options=("--rdzv-conf", f"is_host={int(node.rank == 0)}"))
    outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].stderr
    for outcome in outcomes:
        assert outcome.folder is not None
        planned = json.loads((outcome.folder / "plan.json").read_text())["environment"]
        assert planned["GLOO_SOCKET_IFNAME"] == {"value": INTERFACE, "origin": "the route to the master"}


@pytest.mark.parametrize("rendezvous", ["c10d"])
def test_the_endpoints_host_knows_its_own_name_as_loopback(cluster: Cluster, start_job: StartJob) -> None:
    """As Debian installs it: 127.0.1.1 there, its address everywhere else. With a static rendezvous that is refused."""
    first = cluster.node(0)
    kept = [line for line in first.hosts_file.read_text().splitlines() if first.host not in line]
    first.hosts_file.write_text("\n".join([f"127.0.1.1 {first.host}", *kept, ""]))
    outcomes = start_job(cluster, *WIRES, *FAILS).wait()
    assert_rank_failed(outcomes, 1, 1)
    assert not any("differ" in outcome.stderr for outcome in outcomes)


@pytest.mark.parametrize("by", ["address", "host"])
def test_no_name_server_answers(cluster: Cluster, start_job: StartJob, by: str) -> None:
    """It drops what it is asked. An address needs none, and /etc/hosts knows the names of the nodes."""
    for node in cluster.nodes:
        (node.etc / "resolv.conf").write_text("nameserver 10.99.0.77\noptions timeout:30\n")
    outcomes = start_job(cluster, TRAIN, *FAILS, at=getattr(cluster.node(0), by)).wait()
    assert_rank_failed(outcomes, 1, 1)
    for outcome in outcomes:
        (began,), ranks = outcome.named("RunStarted"), outcome.named("RankStarted")
        assert (ranks[0]["at"] - began["at"]) / 1e9 < limit(20)


@pytest.mark.parametrize("first", [0, 1])
def test_clocks_of_nodes_may_differ(cluster: Cluster, start_job: StartJob, first: int) -> None:
    """CLOCK_MONOTONIC, which counts from the start of each host, as time namespaces have it.

    CLOCK_REALTIME is one for all namespaces, so a jump of it is not tested: nothing here is timed by it.
    """
    job = start_job(cluster, TRAIN, "--fail-rank", first, "--step-s", 0.2, "--steps", 50, later=(0, 1))
    job.start(0, clock_ahead_s=100_000)
    job.start(1, clock_ahead_s=700)
    assert_rank_failed(job.wait(), first, first)
