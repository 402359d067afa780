"""Elastic jobs (`--nnodes 1:3`, c10d): nodes come and go as with torchrun, and each node has its own verdict."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import PORT, PROGRAMS, TRAIN, Job

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
ELASTIC = PROGRAMS / "elastic.py"
MEETING = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"node0:{PORT}", "--rdzv-id", "job", "--max-restarts", 3)
NOT_LONG = ("--rdzv-conf", "last_call_timeout=3,keep_alive_interval=1")


def test_a_node_joins_and_one_is_lost(clusters: Callable[[int], Cluster], start_job: StartJob, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    meeting = ("--nnodes", "1:3", *MEETING, *NOT_LONG)
    job = start_job(clusters(3), ELASTIC, stop, meeting=meeting, later=(2,))
    for node in (0, 1):
        job[node].wait_for_text("world 2")
    job.start(2)
    for node in (0, 1, 2):
        job[node].wait_for_text("world 3")
    for pid in job.cluster.node(2).pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for node in (0, 1):
        job[node].wait_for_text("world 2", count=2)
    stop.touch()
    for node in (0, 1):
        outcome = job.wait_for(node)
        assert outcome.code == 0, outcome.stderr
        assert outcome.verdict["outcome"] == "succeeded"
        assert "done in world 2" in outcome.stdout


def test_each_node_judges_a_failure_for_itself(cluster: Cluster, start_job: StartJob) -> None:
    meeting = ("--nnodes", "1:2", *MEETING[:-1], 0, *NOT_LONG)
    outcomes = start_job(cluster, TRAIN, "--fail-rank", 1, "--step-s", 0.2, "--steps", 50, meeting=meeting).wait()
    follower, failed = outcomes
    assert (failed.code, failed.verdict["cause"], failed.verdict["first_failure"]["rank"]) == (1, "python-exception", 1)
    assert (follower.code, follower.verdict["cause"]) == (75, "peer-died"), follower.stderr
    assert follower.verdict["title"] == f"rank 0 lost its connection to a peer at {cluster.node(1).address}"
    assert "note: this verdict covers one node only: the first failure may be on another node" in follower.stderr
