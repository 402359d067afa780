"""A network that is slow and loses packets: a job runs as well as it can, and a failure is one all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cluster import Cluster
from .conftest import TRAIN, Job
from .test_unlike_shapes import assert_rank_failed

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
SLOW_MS, LOSS = 30, 0.05


@pytest.fixture
def slow_cluster(cluster: Cluster) -> Cluster:
    cluster.delay(1, SLOW_MS, LOSS)
    return cluster


def test_a_job_runs_to_its_end(slow_cluster: Cluster, start_job: StartJob) -> None:
    outcomes = start_job(slow_cluster, TRAIN, "--steps", 30).wait()
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].stderr
    assert [outcome.stderr for outcome in outcomes] == ["", ""]
    assert all("step 29 sum 3" in outcome.stdout for outcome in outcomes)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_is_named_on_all_nodes(slow_cluster: Cluster, start_job: StartJob, rank: int) -> None:
    outcomes = start_job(slow_cluster, TRAIN, "--fail-rank", rank, "--steps", 50).wait()
    assert_rank_failed(outcomes, rank, rank)


def test_a_retry_is_made_by_all(slow_cluster: Cluster, start_job: StartJob) -> None:
    words = ("--fail-rank", 1, "--how", "os_exit", "--fail-times", 1, "--steps", 3)
    outcomes = start_job(slow_cluster, TRAIN, *words, options=("--max-retries", 1)).wait()
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].stderr
    assert [len(outcome.named("AttemptStarted")) for outcome in outcomes] == [2, 2]
