"""`ddp-run doctor` on several nodes at once: what differs, and which node is slow."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import limit

from .cluster import Cluster, Failed, Started
from .conftest import PORT

DDP_RUN = Path(sys.executable).with_name("ddp-run")
pytestmark = pytest.mark.slow_system


def doctors(cluster: Cluster, tmp_path: Path, env: Mapping[int, Mapping[str, str]], *further: str) -> list[Started]:
    kept = {name: value for name, value in os.environ.items() if not re.match(r"(DDP_|PET_|NCCL_|MASTER_)", name)}
    started = []
    for node in cluster.nodes:
        folder = tmp_path / node.host
        folder.mkdir(exist_ok=True)
        words = [DDP_RUN, "doctor", "--json", "--nnodes", len(cluster.nodes), "--node-rank", node.rank]
        words += ["--master-addr", cluster.node(0).host, "--master-port", PORT, "--nproc-per-node", 1, *further]
        own = {"OMP_NUM_THREADS": "1", **env.get(node.rank, {})}
        started.append(node.start(words, folder, {**kept, **own}))
    for each in started:
        each.wait(limit(240))
    return started


def findings(started: Started, check: str) -> list[dict[str, Any]]:
    return [each for each in json.loads(started.out)["findings"] if each["check"] == check]


def test_nodes_that_differ_are_unfit_on_all(cluster: Cluster, tmp_path: Path) -> None:
    found = doctors(cluster, tmp_path, {1: {"NCCL_ALGO": "Tree"}})
    assert [each.returncode for each in found] == [78, 78]
    for each in found:
        (difference,) = findings(each, "node_differences")
        assert (difference["looked_at"], difference["grade"]) == ("NCCL_ALGO", "fail")
        assert difference["value"] == "not set on node 0 (node0), Tree on node 1 (node1)"
    assert findings(found[0], "node_pairs")[0]["data"][0]["nodes"] == [0, 1]
    assert [each["value"] for each in findings(found[1], "ports")] == 2 * ["reachable, nothing listens yet"]


def test_a_node_that_is_unfit_makes_all_unfit(cluster: Cluster, tmp_path: Path) -> None:
    """One has the data, the other has not."""
    (tmp_path / "node0" / "data").mkdir(parents=True)
    (tmp_path / "node0" / "data" / "a.bin").write_bytes(b"x")
    found = doctors(cluster, tmp_path, {}, "--data-path", "data")
    assert [each.returncode for each in found] == [78, 78]
    (told,) = [each for each in findings(found[0], "node_differences") if each["grade"] == "fail"]
    assert (told["looked_at"], told["grade"]) == ("node 1 (node1)", "fail")
    assert told["value"].endswith("node1/data: No such file or directory")
    assert [each["grade"] for each in findings(found[0], "data_paths")] == ["pass"]
    assert [each["value"] for each in findings(found[0], "data_on_ranks")] == ["rank 1 cannot read it"]


@pytest.fixture
def quiet_host() -> None:
    """All nodes share this host's CPUs: what else runs makes a pair slow. A host that stays busy can't measure."""
    deadline = time.monotonic() + limit(120)
    while psutil.cpu_percent(1.0) > 25:
        if time.monotonic() > deadline:
            pytest.skip("other programs keep this host busy")


@pytest.mark.alone
@pytest.mark.usefixtures("quiet_host")
@pytest.mark.parametrize(("nodes", "slow"), [(3, 1), (4, 3)])
def test_the_slow_node_is_named(clusters: Callable[[int], Cluster], tmp_path: Path, nodes: int, slow: int) -> None:
    cluster = clusters(nodes)
    cluster.delay(slow, 10)
    found = doctors(cluster, tmp_path, {})
    assert [each.returncode for each in found] == [0] * nodes
    pairs, *odd = findings(found[0], "node_pairs")
    assert len(pairs["data"]) == nodes * (nodes - 1) // 2
    assert [(each["looked_at"], each["grade"]) for each in odd] == [(f"node {slow}", "warn")], pairs["data"]
    assert "one way" in odd[0]["value"]
    assert findings(found[1], "node_pairs") == []


@pytest.mark.alone
@pytest.mark.usefixtures("quiet_host")
@pytest.mark.parametrize(("one", "other", "rate"), [(1, 3, "200mbit"), (0, 2, "500kbit")])
def test_the_slow_link_is_named(
    clusters: Callable[[int], Cluster], tmp_path: Path, one: int, other: int, rate: str
) -> None:
    """The wires of both nodes are good: with all others they are as fast as these."""
    cluster = clusters(4)
    try:
        cluster.narrow(one, other, rate)
    except Failed as error:
        pytest.skip(f"this kernel cannot slow down a link: {error}")
    found = doctors(cluster, tmp_path, {})
    assert [each.returncode for each in found] == [0, 0, 0, 0], found[0].out
    pairs, *odd = findings(found[0], "node_pairs")
    assert len(pairs["data"]) == 6
    link = f"link of nodes {one} and {other}"
    assert [(each["looked_at"], each["grade"]) for each in odd] == [(link, "warn")], pairs["data"]
    assert f"on node {one} (node{one}); and back, on node {other} (node{other})" in odd[0]["advice"][0]
    assert [findings(each, "node_pairs") for each in found[1:]] == [[], [], []]
