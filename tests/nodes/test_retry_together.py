"""Another attempt: all nodes make it, on one fresh port, or none does."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence

import pytest

from tests.waiting import limit, wait_until

from .cluster import Cluster
from .conftest import PORT, TRAIN, WIRES, Job, NodeOutcome, unnumbered

StartJob = Callable[..., Job]
FAILS = ("--fail-rank", 1, "--how", "os_exit", "--fail-at-step", 1, "--steps", 3)


def ports(outcome: NodeOutcome) -> list[int]:
    return [each["port"] for each in outcome.named("AttemptStarted")]


def assert_one_end(outcomes: Sequence[NodeOutcome], code: int, attempts: int) -> None:
    """The same code, cause and number of attempts everywhere, each of them on one port."""
    for outcome in outcomes:
        assert outcome.code == code, outcome.stderr
        assert len(ports(outcome)) == attempts, outcome.stderr
        assert ports(outcome) == ports(outcomes[0])
        assert [each["cause"] for each in outcome.named("AttemptEnded")] == [
            each["cause"] for each in outcomes[0].named("AttemptEnded")
        ]
    used = ports(outcomes[0])
    assert used[0] == PORT
    assert len(set(used)) == attempts


def test_a_node_that_is_missing_is_told_and_a_retry_cures_a_job_of_two_nodes(
    cluster: Cluster, start_job: StartJob, rendezvous: str
) -> None:
    job = start_job(cluster, *WIRES, *FAILS, "--fail-times", 1, options=("--max-retries", 2), later=(1,))
    missing = "node 1" if rendezvous == "static" else "1 more node"
    line = re.compile(rf"waiting for {missing} of 2 for [45] s; other nodes here: none")
    wait_until(lambda: line.search(job[0].console()), lambda: f"who is missing: {job[0].console()}")
    job.start(1)
    outcomes = job.wait()
    assert_one_end(outcomes, 0, attempts=2)
    for rank, outcome in enumerate(outcomes):
        assert f"rank {rank} done" in outcome.stdout
        assert "retrying" in outcome.stderr, outcome.stderr


@pytest.mark.slow_system
def test_a_job_of_three_nodes_that_is_not_cured_ends_with_its_code(
    clusters: Callable[[int], Cluster], start_job: StartJob
) -> None:
    outcomes = start_job(clusters(3), TRAIN, *FAILS, options=("--max-retries", 1)).wait()
    assert_one_end(outcomes, 7, attempts=2)
    for outcome in outcomes:
        assert outcome.verdict["first_failure"]["node_rank"] == 1


@pytest.mark.slow_system
def test_what_a_retry_cannot_cure_is_made_on_no_node(cluster: Cluster, start_job: StartJob) -> None:
    words = ("--fail-rank", 1, "--how", "raise", "--steps", 3)
    outcomes = start_job(cluster, TRAIN, *words, options=("--max-retries", 2)).wait()
    assert [len(ports(outcome)) for outcome in outcomes] == [1, 1]
    assert len({outcome.code for outcome in outcomes}) == 1


@pytest.mark.slow_system
@pytest.mark.parametrize("node", [0, 1])
def test_a_stop_between_attempts_stops_all(cluster: Cluster, start_job: StartJob, node: int, rendezvous: str) -> None:
    job = start_job(cluster, *WIRES, *FAILS, options=("--max-retries", 2))
    wait_until(lambda: "retrying in" in job[node].console(), "the wait before the second retry")
    os.kill(job[node].process.pid, signal.SIGTERM)
    outcomes = job.wait()
    for outcome in outcomes:
        assert (outcome.code, outcome.verdict["outcome"]) == (143, "interrupted"), outcome.stderr
    assert f"on {unnumbered(rendezvous, node)[1]}" in outcomes[0].verdict["title"]


@pytest.mark.parametrize("node", [pytest.param(0, marks=pytest.mark.slow_system), 1])
def test_a_node_that_cannot_come_back_ends_the_job_with_75_and_its_name(
    cluster: Cluster, start_job: StartJob, node: int, rendezvous: str
) -> None:
    job = start_job(cluster, *WIRES, *FAILS, options=("--max-retries", 2))
    wait_until(lambda: "retrying in" in job[node].console(), "the wait before the second retry")
    job.mark()
    os.kill(job[node].process.pid, signal.SIGKILL)
    left = job.wait_for(1 - node)
    assert (left.code, left.verdict["cause"]) == (75, "node-failed"), left.stderr
    assert left.verdict["first_failure"]["node_rank"] == unnumbered(rendezvous, node)[0]
    assert left.verdict["first_failure"]["host"] == f"node{node}"
    assert left.seconds is not None
    assert left.seconds < limit(8)


@pytest.mark.slow_system
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_cannot_start_the_next_attempt_leaves(
    cluster: Cluster, start_job: StartJob, node: int, rendezvous: str
) -> None:
    """A file has the name of the attempt's folder. The node ends as its last attempt did, the others without it."""
    job = start_job(cluster, *WIRES, *FAILS, options=("--max-retries", 2))
    folder = wait_until(lambda: job[node].folder, "the run's folder")
    (folder / "attempt_1").touch()
    left = job.wait_for(1 - node)
    assert (left.code, left.verdict["cause"]) == (75, "node-failed"), left.stderr
    assert left.verdict["first_failure"]["node_rank"] == unnumbered(rendezvous, node)[0]
    assert left.verdict["first_failure"]["host"] == f"node{node}"
    outcome = job.wait_for(node)
    assert outcome.code == 7, outcome.stderr
    assert "attempt 2 could not be started" in outcome.stderr
