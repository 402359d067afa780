"""Nodes that differ are compared before the job starts: a warning on node 0, or no job with --preflight strict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import TRAIN, Job, unnumbered

StartJob = Callable[..., Job]


@pytest.mark.slow_system
def test_a_difference_is_said_once_on_node_0(cluster: Cluster, start_job: StartJob, rendezvous: str) -> None:
    job = start_job(cluster, TRAIN, "--steps", 2, env={"NCCL_ALGO": "Ring"}, later=(1,))
    job.start(1, env={"NCCL_ALGO": "Tree"})
    outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0]
    first, second = (unnumbered(rendezvous, node)[1] for node in (0, 1))
    both = "nodes 0-1" if rendezvous == "static" else "node0, node1"
    said = f"nodes differ in NCCL_ALGO: Ring on {first}, Tree on {second}; jobs on such nodes often fail"
    assert [outcome.stderr.count(said) for outcome in outcomes] == [1, 0]
    assert outcomes[1].stderr == ""
    (compared,) = outcomes[0].named("NodesCompared")
    assert [said.partition(":")[0] for said in compared["breaking"]] == ["NCCL_ALGO"]
    assert f"interface to node 0: eth0 on {both}" in compared["alike"]
    assert f"wall clock minus node 0's: 0.0 s on {both}" in compared["alike"]
    assert outcomes[0].folder is not None
    facts = outcomes[0].folder / "nodes" / "facts.txt"
    assert f"full comparison: {facts}" in outcomes[0].stderr
    assert ["!", "NCCL_ALGO", "Ring", "Tree"] in [line.split() for line in facts.read_text().splitlines()]


@pytest.mark.slow_system
def test_nothing_is_compared_without_the_checks(cluster: Cluster, start_job: StartJob) -> None:
    job = start_job(cluster, TRAIN, "--steps", 2, options=("--preflight", "off"), later=(1,))
    job.start(1, env={"NCCL_ALGO": "Tree"})
    for outcome in job.wait():
        assert (outcome.code, outcome.stderr) == (0, "")
        assert not outcome.named("NodesCompared")


@pytest.mark.parametrize("strict_on", [0, pytest.param(1, marks=pytest.mark.slow_system)])
def test_unlike_nodes_end_with_78_where_that_is_asked_for(
    cluster: Cluster, start_job: StartJob, strict_on: int, rendezvous: str
) -> None:
    """Node 0 decides; what another node alone asks for does not count."""
    strict = [{"DDP_RUN_PREFLIGHT": "strict"} if node == strict_on else {} for node in (0, 1)]
    job = start_job(cluster, TRAIN, "--steps", 2, later=(0, 1), options=("--max-retries", 1))
    for node, algorithm in enumerate(("Ring", "Tree")):
        job.start(node, env={"NCCL_ALGO": algorithm, **strict[node]})
    outcomes = job.wait()
    if strict_on == 1:
        assert [outcome.code for outcome in outcomes] == [0, 0]
        return
    first, second = (unnumbered(rendezvous, node)[1] for node in (0, 1))
    title = f"nodes differ in NCCL_ALGO: Ring on {first}, Tree on {second} (--preflight strict)"
    for outcome in outcomes:
        assert (outcome.code, outcome.verdict["outcome"], outcome.verdict["title"]) == (78, "refused", title)
        assert (outcome.verdict["cause"], outcome.verdict["attempts"]) == ("unlike-nodes", 1)
        assert outcome.stderr.count("nodes differ in") == 1
        assert f"error[DDP105]: {title}" in outcome.stderr
        assert " outcome=refused cause=unlike-nodes code=DDP105 " in outcome.stderr
        assert "sum" not in outcome.stdout


@pytest.mark.slow_system
def test_a_known_difference_is_named_beside_a_failure_that_it_may_explain(
    cluster: Cluster, start_job: StartJob, tmp_path: Path
) -> None:
    """Each node has another script: that of node 1 raises."""
    for node, text in enumerate(("import time; time.sleep(60)", "raise ValueError('old script')")):
        folder = tmp_path / f"scripts_{node}"
        folder.mkdir()
        (folder / "train.py").write_text(text)
    job = start_job(cluster, tmp_path / "scripts_0" / "train.py", later=(1,))
    other = start_job(cluster, tmp_path / "scripts_1" / "train.py", later=(0,))
    first, second = job.wait_for(0), other.wait_for(1)
    assert (first.code, second.code) == (1, 1)
    assert first.verdict["cause"] == second.verdict["cause"] == "python-exception"
    assert first.stderr.count("= note: a possible reason: nodes differ in script (SHA-256): ") == 1


@pytest.mark.slow_system
def test_an_interface_that_is_down_is_refused(cluster: Cluster, start_job: StartJob) -> None:
    """Before anything starts, where --backend says that the ranks use it; a warning else."""
    cluster.node(0).run("ip", "link", "add", "spare0", "type", "veth", "peer", "name", "spare1")
    options = ("--backend", "gloo", "--nproc-per-node", 1)
    job = start_job(cluster, TRAIN, "--steps", 2, later=(0, 1), options=options)
    job.start(0, env={"GLOO_SOCKET_IFNAME": "spare0"})
    outcome = job.wait_for(0)
    assert (outcome.code, outcome.folder) == (2, None)
    assert "error[DDP204]: GLOO_SOCKET_IFNAME=spare0: spare0 is down" in outcome.stderr
