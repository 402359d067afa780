"""A node or its network is lost: the others name it within 15 s, say what is known of how, and nothing runs on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.waiting import limit, wait_until

from .cluster import INTERFACE, Cluster, Node
from .conftest import TRAIN, Job, NodeOutcome

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]
NAMED_WITHIN_S = 15.0
HOST_IS_SILENT = "its host does not answer either: it is down, or the network to it is cut"
NO_ROUTE = "this host has no route to it: the network of this host is down"
STANDS_STILL = "its host answers, so its ddp-run stands still: stopped, or starved of CPU"


def training(start_job: StartJob, cluster: Cluster) -> Job:
    """A job without an end of its own, whose ranks have begun."""
    job = start_job(cluster, TRAIN, "--step-s", 0.2, "--steps", 1000)
    for node in cluster.nodes:
        job[node.rank].wait_for_text("step 1 ")
    job.mark()
    return job


def assert_names(outcome: NodeOutcome, lost: int, how: str) -> None:
    """75, and the lost node with what is known of it, in time."""
    assert (outcome.code, outcome.verdict["cause"]) == (75, "node-failed"), outcome.stderr
    assert outcome.verdict["first_failure"]["node_rank"] == lost
    assert how in outcome.verdict["title"], outcome.stderr
    assert named_after(outcome) < limit(NAMED_WITHIN_S)


def named_after(outcome: NodeOutcome) -> float:
    """Seconds from the fault to the moment at which this node knew of it; printed with the time of its exit."""
    assert outcome.marked_at is not None
    assert outcome.seconds is not None
    told = outcome.named("PeerFailed")  # none if this node's own agent fails at the same time: c10d's looks as well
    seconds = float(told[0]["at"] / 1e9 - outcome.marked_at) if told else outcome.seconds
    print(f"named after {seconds:.1f} s, exit after {outcome.seconds:.1f} s: {outcome.verdict['title']}")
    return seconds


@pytest.mark.parametrize("node", [0, 1])
def test_what_a_node_sends_is_lost(cluster: Cluster, start_job: StartJob, node: int) -> None:
    """A cut of one way: what is sent to the node still arrives."""
    job = training(start_job, cluster)
    cluster.cut_one_way(node)
    for rank, outcome in enumerate(job.wait()):
        assert_names(outcome, 1 - rank, HOST_IS_SILENT)


@pytest.mark.parametrize("how", ["down", "delete"])
@pytest.mark.parametrize("node", [0, 1])
def test_the_interface_of_a_node_goes(cluster: Cluster, start_job: StartJob, node: int, how: str) -> None:
    job = training(start_job, cluster)
    words = ("set", INTERFACE, "down") if how == "down" else ("delete", INTERFACE)
    cluster.node(node).run("ip", "link", *words)
    outcomes = job.wait()
    assert_names(outcomes[node], 1 - node, NO_ROUTE)
    assert_names(outcomes[1 - node], node, HOST_IS_SILENT)


@pytest.mark.parametrize("node", [0, 1])
def test_the_power_of_a_node_fails(cluster: Cluster, start_job: StartJob, node: int) -> None:
    """All its processes are gone at once, and no connection is closed."""
    job = training(start_job, cluster)
    cluster.cut(node)
    wait_until(lambda: ended_all(cluster.node(node)), "the end of all processes")
    assert_names(job.wait_for(1 - node), node, HOST_IS_SILENT)


def ended_all(node: Node) -> bool:
    pids = node.pids()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not pids


@pytest.mark.parametrize("node", [0, 1])
def test_ddp_run_of_a_node_stands_still(cluster: Cluster, start_job: StartJob, node: int) -> None:
    """The other node goes without it. When it goes on, it says the same of itself, and ends."""
    job = training(start_job, cluster)
    job[node].signal(signal.SIGSTOP)
    assert_names(job.wait_for(1 - node), node, STANDS_STILL)
    job[node].signal(signal.SIGCONT)
    outcome = job.wait_for(node)
    assert (outcome.code, outcome.verdict["cause"]) == (75, "node-failed"), outcome.stderr
    assert outcome.verdict["first_failure"]["node_rank"] == node
    assert f"node {node} (node{node}) stood still for 1" in outcome.verdict["title"]


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_stopped_answers_for_being_there_until_its_host_is_gone(
    cluster: Cluster, start_job: StartJob, node: int
) -> None:
    """Ctrl-Z on one node: the others wait, as long as its host answers."""
    job = training(start_job, cluster)
    job[node].signal(signal.SIGTSTP)
    job[node].wait_for("SignalSent")
    time.sleep(2 * NAMED_WITHIN_S)  # as long as it is stopped, nothing is lost
    assert job[1 - node].process.poll() is None
    assert not job[1 - node].events("PeerFailed")
    cluster.cut(node)
    job.mark()
    left = job.wait_for(1 - node)
    assert (left.code, left.verdict["cause"]) == (75, "node-failed"), left.stderr
    assert left.verdict["first_failure"]["node_rank"] == node
    assert named_after(left) < limit(60)
    job[node].signal(signal.SIGCONT)
    assert job.wait_for(node).code == 75


@pytest.mark.parametrize("node", [0, 1])
def test_a_ddp_run_that_stands_still_for_a_moment_harms_nothing(
    cluster: Cluster, start_job: StartJob, node: int
) -> None:
    job = start_job(cluster, TRAIN, "--step-s", 0.2, "--steps", 75)
    job[node].wait_for_text("step 1 ")
    job[node].signal(signal.SIGSTOP)
    time.sleep(9)  # how long it stands still is what is tested
    job[node].signal(signal.SIGCONT)
    assert [outcome.code for outcome in job.wait()] == [0, 0]


@pytest.mark.parametrize("node", [0, 1])
def test_the_agent_of_a_node_is_killed(cluster: Cluster, start_job: StartJob, node: int) -> None:
    job = training(start_job, cluster)
    os.kill(job[node].events("AgentStarted")[0]["pid"], signal.SIGKILL)
    for outcome in job.wait():
        assert outcome.code == 75, outcome.stderr
        assert outcome.verdict["first_failure"]["node_rank"] == node
        title = f"torch's agent was killed by SIGKILL; no rank failed on its own, on node {node} (node{node})"
        assert outcome.verdict["title"] == title
        assert outcome.seconds is not None
        assert outcome.seconds < limit(NAMED_WITHIN_S)


@pytest.mark.parametrize("node", [0, 1])
def test_a_cut_of_9_s_harms_nothing(cluster: Cluster, start_job: StartJob, node: int) -> None:
    """9 s in which nothing passes, while all ranks talk to each other: gloo waits, as long as nobody resets it."""
    job = start_job(cluster, TRAIN, "--step-s", 0.2, "--steps", 100)
    job[node].wait_for_text("step 1 ")
    cluster.cut(node)
    time.sleep(9)  # the length of the cut is what is tested
    cluster.heal(node)
    outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].stderr
    assert [outcome.stderr for outcome in outcomes] == ["", ""]
