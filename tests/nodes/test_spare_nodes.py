"""Spare nodes (`--spare-nodes K`): one takes the place of a node that is lost or at fault when the job is retried."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .cluster import Cluster
from .conftest import PORT, PROGRAMS, Job, NodeOutcome

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
PROGRAM = PROGRAMS / "until_told.py"
AT = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"node0:{PORT}")
MEETING = ("--nnodes", 2, *AT, "--spare-nodes", 1, "--max-retries", 1)


@pytest.fixture
def rendezvous() -> str:
    """Each test has its own."""
    return "c10d"


class Started:
    """Three nodes, of which the last is the spare one: it starts when the others' ranks run, until they are told."""

    def __init__(self, clusters: Callable[[int], Cluster], start_job: StartJob, folder: Path, *words: object) -> None:
        self._told = folder / "told"
        job = self.job = start_job(clusters(3), PROGRAM, self._told, *words, meeting=MEETING, later=(2,))
        for node in (0, 1):
            job[node].wait_for_text("runs")
        job.start(2)
        wait_until(lambda: "spare node node2 waits" in self.noted(), lambda: job[0].console())

    def noted(self) -> list[str]:
        return [event["text"] for event in self.job[0].events("Noted")]

    def tell(self, how: str = "") -> None:
        self._told.write_text(how)

    def untell(self) -> None:
        self._told.unlink()

    def kill(self, node: int) -> None:
        for pid in self.job.cluster.node(node).pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end_second_attempt(self, *nodes: int) -> list[NodeOutcome]:
        """When these nodes' ranks run in a second attempt, they are told to end well; how each ended."""
        for node in nodes:
            wait_until(partial(self._runs_again, node), self.job[node].console)
        self.tell()
        outcomes = [self.job.wait_for(node) for node in nodes]
        for outcome in outcomes:
            assert (outcome.code, outcome.verdict["outcome"]) == (0, "succeeded"), outcome.stderr
        return outcomes

    def _runs_again(self, node: int) -> bool:
        return any(event["folder"].startswith("attempt_1/") for event in self.job[node].events("RankStarted"))


@pytest.fixture
def started(clusters: Callable[[int], Cluster], start_job: StartJob, tmp_path: Path) -> Callable[..., Started]:
    """`started(HOST)`: further words for the program."""
    return lambda *words: Started(clusters, start_job, tmp_path, *words)


def note(outcome: NodeOutcome) -> str:
    """What the verdict says of the node that was left out."""
    (found,) = [note for note in outcome.verdict["notes"] if note.startswith("from attempt 2 on: ")]
    return str(found)


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_a_lost_node_is_replaced(started: Callable[..., Started], how: str) -> None:
    it = started()
    if how == "killed":
        it.kill(1)
    else:
        it.job.cluster.cut(1)
    outcomes = it.end_second_attempt(0, 2)
    for outcome in outcomes:
        assert "node2 in place of node 1 (node1), which was lost: " in note(outcome)
    assert "(attempt 2 of 2)" in outcomes[0].stderr
    if how == "cut off":  # it has lost node 0, too
        assert it.job.wait_for(1).code == 75


def test_a_node_whose_disk_is_full_is_replaced(started: Callable[..., Started]) -> None:
    it = started("node1")
    it.tell("disk")
    it.job[1].wait_for("AttemptEnded")
    it.untell()
    for outcome in (*it.end_second_attempt(0, 2), it.job.wait_for(1)):
        assert (outcome.code, outcome.verdict["outcome"]) == (0, "succeeded"), outcome.stderr
        assert note(outcome).startswith("from attempt 2 on: node2 in place of node 1 (node1): ")
    assert it.job[0].events("AttemptEnded")[0]["cause"] == "disk-full"
    assert "the job goes on with a spare node in place of this one" in it.job[1].console()


def test_a_failure_that_speaks_against_no_host_is_retried_on_the_same_nodes(started: Callable[..., Started]) -> None:
    it = started("node1")
    it.tell("killed")
    it.end_second_attempt(0, 1)
    spare = it.job.wait_for(2)
    assert (spare.code, spare.verdict["outcome"], spare.verdict["attempts"]) == (0, "succeeded", 0), spare.stderr
    assert not it.job[0].events("NodesReplaced")


def test_without_a_spare_node_the_job_ends(started: Callable[..., Started]) -> None:
    it = started()
    it.job[2].process.send_signal(signal.SIGTERM)
    spare = it.job.wait_for(2)
    assert (spare.code, spare.verdict["outcome"]) == (143, "interrupted"), spare.stderr
    wait_until(lambda: "spare node node2 left: stopped by SIGTERM" in it.job[0].console(), it.job[0].console)
    it.kill(1)
    outcome = it.job.wait_for(0)
    assert (outcome.code, outcome.verdict["cause"]) == (75, "node-failed"), outcome.stderr
    assert outcome.verdict["retry"]["reason"].endswith(", and no spare node is left")


def test_node_0_has_no_spare(started: Callable[..., Started]) -> None:
    it = started()
    it.kill(0)
    for node in (1, 2):
        outcome = it.job.wait_for(node)
        assert (outcome.code, outcome.verdict["cause"]) == (75, "node-failed"), outcome.stderr
        assert "node 0 (node0) was lost" in outcome.stderr
