"""A backend that cannot be had on one node, or on all: all nodes take the same other one, as node 0 decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cluster import Cluster
from .conftest import PROGRAMS, Job

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
BACKEND = PROGRAMS / "backend.py"
FALL_BACK = ("--fallback-backend", "gloo")


@pytest.mark.parametrize(("only", "retries"), [(None, 0), (None, 1), (0, 1), (1, 0)])
def test_all_nodes_fall_back_together(cluster: Cluster, start_job: StartJob, only: int | None, retries: int) -> None:
    words = () if only is None else (only,)
    options = (*FALL_BACK, "--max-retries", retries)
    outcomes = start_job(cluster, BACKEND, *words, options=options).wait()
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == 0, outcome.stderr
        assert f"[rank{rank}]: gloo 2.0" in outcome.stdout
        assert "all ranks fall back to backend gloo" in outcome.stderr
        (_first, second) = outcome.named("AttemptStarted")
        assert second["port"] == outcomes[0].named("AttemptStarted")[1]["port"]


def test_what_node_0_was_told_counts(cluster: Cluster, start_job: StartJob) -> None:
    """Another node without the option falls back with the others; one that has it alone does not."""
    job = start_job(cluster, BACKEND, later=(0, 1))
    job.start(0, options=FALL_BACK)
    job.start(1)
    assert [outcome.code for outcome in job.wait()] == [0, 0]
    job = start_job(cluster, BACKEND, later=(0, 1))
    job.start(0)
    job.start(1, options=FALL_BACK)
    outcomes = job.wait()
    assert outcomes[0].code == outcomes[1].code != 0
    assert [len(outcome.named("AttemptStarted")) for outcome in outcomes] == [1, 1]
