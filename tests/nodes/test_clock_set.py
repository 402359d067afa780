"""The wall clock of a node is set while the job runs: told, and nothing else happens.

The clock of this host is not for a test to set, and a network namespace has none of its own (libfaketime makes sleeps
fail). So the functions with which Python reads the wall clock are replaced, in the ddp-run of one node alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .cluster import Cluster
from .conftest import TRAIN, Job

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
AN_HOUR_S = 3600
SET_BY = """
import os, sys, time

if sys.argv[0].endswith("ddp-run"):
    here, there = time.time, time.time_ns

    def ahead_s():
        with open(os.environ["CLOCK"]) as file:
            return int(file.read())

    time.time = lambda: here() + ahead_s()
    time.time_ns = lambda: there() + ahead_s() * 10**9
"""


@pytest.mark.parametrize("node", [0, 1])
def test_a_clock_that_is_set_is_told_and_the_order_of_failures_stays(
    cluster: Cluster, start_job: StartJob, tmp_path: Path, node: int
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(SET_BY)
    words = ("--step-s", 0.2, "--steps", 1000, "--fail-rank", 1, "--fail-at-step", 60)
    job = start_job(cluster, TRAIN, *words, later=(0, 1))
    for rank in (0, 1):
        job.start(rank, env={"PYTHONPATH": str(tmp_path), "CLOCK": str(clock)} if rank == node else None)
    for rank in (0, 1):
        job[rank].wait_for_text("step 1 ")
    clock.write_text(str(AN_HOUR_S))
    said = f"the clock of this host was set forward by {AN_HOUR_S} s"
    wait_until(lambda: said in job[node].console(), "the line")
    outcomes = job.wait()
    assert said not in outcomes[1 - node].stderr
    for outcome in outcomes:
        assert outcome.verdict["first_failure"]["rank"] == 1
        assert outcome.verdict["cause"] == "python-exception"
