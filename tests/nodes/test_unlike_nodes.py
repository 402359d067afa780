"""Nodes that differ are compared before the job starts: a warning on node 0, or no job with --preflight strict."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cluster import Cluster
from .conftest import TRAIN, Job

StartJob = Callable[..., Job]


def test_a_difference_is_said_once_on_node_0(cluster: Cluster, start_job: StartJob) -> None:
    job = start_job(cluster, TRAIN, "--steps", 2, env={"NCCL_ALGO": "Ring"}, later=(1,))
    job.start(1, env={"NCCL_ALGO": "Tree"})
    outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0]
    said = "nodes differ in NCCL_ALGO: Ring on node 0 (node0), Tree on node 1 (node1); a job of such nodes often fails"
    assert [outcome.stderr.count(said) for outcome in outcomes] == [1, 0]
    assert outcomes[1].stderr == ""
    (table,) = [each["text"] for each in outcomes[0].named("Noted") if each["text"].startswith("nodes compared: ")]
    assert "interface to node 0: eth0 on nodes 0-1" in table


@pytest.mark.slow_system
def test_nothing_is_compared_without_the_checks(cluster: Cluster, start_job: StartJob) -> None:
    job = start_job(cluster, TRAIN, "--steps", 2, options=("--preflight", "off"), later=(1,))
    job.start(1, env={"NCCL_ALGO": "Tree"})
    for outcome in job.wait():
        assert (outcome.code, outcome.stderr) == (0, "")
        assert not any(each["text"].startswith("nodes compared") for each in outcome.named("Noted"))


@pytest.mark.parametrize("strict_on", [0, pytest.param(1, marks=pytest.mark.slow_system)])
def test_unlike_nodes_end_with_78_where_that_is_asked_for(
    cluster: Cluster, start_job: StartJob, strict_on: int
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
    title = "nodes differ in NCCL_ALGO: Ring on node 0 (node0), Tree on node 1 (node1) (--preflight strict)"
    for outcome in outcomes:
        assert (outcome.code, outcome.verdict["outcome"], outcome.verdict["title"]) == (78, "refused", title)
        assert outcome.verdict["attempts"] == 1
        assert f"error: {title}" in outcome.stderr
        assert "sum" not in outcome.stdout
