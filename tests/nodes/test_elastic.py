"""Elastic jobs (`--nnodes 1:3`, c10d): nodes come and go as with torchrun, and each node has its own verdict."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .cluster import Cluster
from .conftest import PORT, PROGRAMS, TRAIN, Job

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
ELASTIC = PROGRAMS / "elastic.py"
MEETING = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"node0:{PORT}", "--rdzv-id", "job", "--max-restarts", 3)
NOT_LONG = ("--rdzv-conf", "last_call_timeout=3,keep_alive_interval=1")


@pytest.fixture
def rendezvous() -> str:
    """Each test has its own."""
    return "c10d"


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


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        (True, f"waiting for the rendezvous: nothing listens at node0:{PORT} yet: ddp-run is not started there"),
        (False, f"waiting for the rendezvous: no answer from node0:{PORT}: that host is down, or a firewall drops"),
    ],
    ids=["not-started", "cut-off"],
)
def test_a_node_says_what_it_waits_for(cluster: Cluster, start_job: StartJob, reached: bool, said: str) -> None:
    if not reached:
        cluster.cut(0)
    job = start_job(cluster, TRAIN, meeting=("--nnodes", "1:2", *MEETING[:-2]), later=(0, 1))
    running = job.start(1)
    wait_until(lambda: said in running.console(), lambda: f"{said!r}; console: {running.console()}", 60)
    running.process.send_signal(signal.SIGINT)
    outcome = job.wait_for(1)
    assert outcome.verdict["outcome"] == "interrupted"
    assert outcome.stderr.count("waiting for the rendezvous") == 1


def test_all_nodes_refuse_an_endpoint_that_another_program_has(
    cluster: Cluster, start_job: StartJob, tmp_path: Path
) -> None:
    serve = f"from http.server import *; ThreadingHTTPServer(('', {PORT}), SimpleHTTPRequestHandler).serve_forever()"
    server = cluster.node(0).start([sys.executable, "-c", serve], cwd=tmp_path)
    try:
        outcomes = start_job(cluster, TRAIN, meeting=("--nnodes", "2", *MEETING[:-2])).wait()
    finally:
        server.kill()
    for outcome in outcomes:
        assert (outcome.code, outcome.verdict["cause"]) == (2, "port-in-use"), outcome.stderr
        assert f"the program at node0:{PORT} is not torch's rendezvous" in outcome.stderr
