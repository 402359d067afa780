"""A hang is one picture of all nodes: who is missing is named on each, wherever it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cluster import Cluster
from .conftest import PROGRAMS, Job

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
STUCK = PROGRAMS / "stuck.py"


@pytest.mark.parametrize("rank", [0, 2])
def test_the_rank_that_the_others_wait_for_is_named_on_all_nodes(
    clusters: Callable[[int], Cluster], start_job: StartJob, rank: int
) -> None:
    outcomes = start_job(clusters(3), STUCK, rank, options=("--hang-timeout", 25)).wait()
    waiting = {0: "1-2", 2: "0-1"}[rank]
    said = f"rank {rank} waits for a lock or a thread at stuck.py:15 in wait_for_ever; ranks {waiting} wait for it in"
    for outcome in outcomes:
        assert outcome.code == 124, outcome.stderr
        assert outcome.stderr.count(f"no progress: {said}") == 1, outcome.stderr
        assert "for other nodes" not in outcome.stderr
        verdict = outcome.verdict
        first = verdict["first_failure"]
        assert (first["rank"], first["node_rank"], first["host"]) == (rank, rank, f"node{rank}")
        assert (verdict["outcome"], verdict["confidence"]) == ("hung", "certain")
        assert said in verdict["title"]
