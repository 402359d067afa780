"""Nodes that are told by variables alone which they are: the same words everywhere, as in the pods of one job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.conftest import Launcher

from .cluster import Cluster, Node
from .conftest import TRAIN

pytestmark = pytest.mark.slow_system


def of_an_indexed_job(node: Node) -> dict[str, str]:
    return {"NNODES": "2", "MASTER_ADDR": "node0", "JOB_COMPLETION_INDEX": str(node.rank)}


def of_a_kubeflow_job(node: Node) -> dict[str, str]:
    pet = {"PET_NNODES": "2", "PET_NODE_RANK": str(node.rank), "PET_NPROC_PER_NODE": "1"}
    master = {"PET_MASTER_ADDR": "node0", "PET_MASTER_PORT": "23456", "MASTER_ADDR": "node0", "MASTER_PORT": "23456"}
    return {**pet, **master, "WORLD_SIZE": "2", "RANK": str(node.rank)}


@pytest.mark.parametrize("variables", [of_an_indexed_job, of_a_kubeflow_job])
@pytest.mark.parametrize(("words", "code"), [((), 0), (("--fail-rank", 1, "--how", "os_exit"), 7)], ids=["ok", "fails"])
def test_pods_need_no_options(
    ddp: Launcher, cluster: Cluster, variables: Callable[[Node], dict[str, str]], words: tuple[object], code: int
) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    both = [
        ddp.start(TRAIN, *words, env=variables(node) | pod, cwd=node.host, within=node.within) for node in cluster.nodes
    ]
    ended = [running.wait() for running in both]
    assert [outcome.code for outcome in ended] == [code, code], [outcome.stderr for outcome in ended]
    for running, outcome in zip(both, ended, strict=True):
        running.assert_nothing_left()
        assert "step 0 sum 3" in outcome.stdout
        assert "this pod has RANK" not in outcome.stderr
