"""Elastic jobs (`--nnodes 1:3`, c10d): nodes come and go as with torchrun, and those that stay have one verdict."""

from __future__ import annotations

import os
import signal
import sys
import time
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
    for node in (0, 1):
        assert (
            "ddp-run: warning: the job has 3 nodes now, 2 before; torch's agent restarted all ranks"
            in job[node].console()
        )
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
        assert "torch's agent restarted all ranks on 2 nodes, 3 before" in outcome.stderr
    assert "(node2) was lost: its ddp-run was killed or its host went down" in job[0].console()


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_failure_that_no_restart_cures_has_one_verdict(cluster: Cluster, start_job: StartJob, restarts: int) -> None:
    meeting = ("--nnodes", "1:2", *MEETING[:-1], restarts, *NOT_LONG)
    outcomes = start_job(cluster, TRAIN, "--fail-rank", 1, "--step-s", 0.2, "--steps", 50, meeting=meeting).wait()
    for outcome in outcomes:
        assert (outcome.code, outcome.verdict["cause"]) == (1, "python-exception"), outcome.stderr
        first = outcome.verdict["first_failure"]
        assert (first["rank"], first["node_rank"]) == (1, 1)
    assert len({outcome.verdict["title"] for outcome in outcomes}) == 1
    assert len({outcome.verdict["first_failure"]["host"] for outcome in outcomes}) == 1


def test_a_node_that_is_told_to_stop_leaves(
    clusters: Callable[[int], Cluster], start_job: StartJob, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    job = start_job(clusters(3), ELASTIC, stop, meeting=("--nnodes", "2:3", *MEETING, *NOT_LONG))
    for node in (0, 1, 2):
        job[node].wait_for_text("world 3")
    job[2].process.send_signal(signal.SIGTERM)
    left = job.wait_for(2)
    assert (left.code, left.verdict["outcome"]) == (143, "interrupted"), left.stderr
    for node in (0, 1):
        job[node].wait_for_text("world 2")
    stop.touch()
    for node in (0, 1):
        outcome = job.wait_for(node)
        assert (outcome.code, outcome.verdict["outcome"]) == (0, "succeeded"), outcome.stderr
    assert "(node2) left: stopped by SIGTERM" in job[0].console()


def test_without_a_restart_all_are_told_which_node_left(cluster: Cluster, start_job: StartJob, tmp_path: Path) -> None:
    job = start_job(cluster, ELASTIC, tmp_path / "stop", meeting=("--nnodes", "1:2", *MEETING[:-1], 0, *NOT_LONG))
    for node in (0, 1):
        job[node].wait_for_text("world 2")
    job[1].process.send_signal(signal.SIGTERM)
    left, stayed = job.wait_for(1), job.wait_for(0)
    assert (left.code, left.verdict["outcome"]) == (143, "interrupted"), left.stderr
    assert (stayed.code, stayed.verdict["cause"]) == (75, "node-failed"), stayed.stderr
    assert stayed.verdict["first_failure"]["host"] == "node1"
    assert stayed.verdict["title"].endswith("(node1) left: stopped by SIGTERM")


def test_a_node_that_waits_to_be_taken_in_ends_with_the_job(
    clusters: Callable[[int], Cluster], start_job: StartJob, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    meeting = ("--nnodes", "1:2", *MEETING, *NOT_LONG)
    job = start_job(clusters(3), ELASTIC, stop, meeting=meeting, later=(2,))
    for node in (0, 1):
        job[node].wait_for_text("world 2")
    job.start(2)
    time.sleep(8)
    stop.touch()
    for outcome in job.wait():
        assert (outcome.code, outcome.verdict["outcome"]) == (0, "succeeded"), outcome.stderr


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        (True, f"connection refused on port {PORT + 1}: ddp-run is not started there"),
        (False, f"no answer on ports {PORT} and {PORT + 1}: that host is down, or a firewall drops the packets"),
    ],
    ids=["not-started", "cut-off"],
)
def test_a_node_says_what_it_waits_for(cluster: Cluster, start_job: StartJob, reached: bool, said: str) -> None:
    if not reached:
        cluster.cut(0)
    job = start_job(cluster, TRAIN, meeting=("--nnodes", "1:2", *MEETING[:-2]), later=(0, 1))
    running = job.start(1)
    waits = "waiting for the endpoint's host at "
    shown = f"{said!r}; console: "
    wait_until(
        lambda: waits in (said_so := running.console()) and said in said_so, lambda: shown + running.console(), 60
    )
    running.process.send_signal(signal.SIGINT)
    outcome = job.wait_for(1)
    assert outcome.verdict["outcome"] == "interrupted"
    assert outcome.stderr.count(f": warning: {waits}") == 1


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
