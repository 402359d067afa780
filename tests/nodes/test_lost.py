"""A node or its network is lost: the others name it within 15 s, say what is known of how, and nothing runs on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Container
from contextlib import suppress

import pytest

from tests.waiting import limit, wait_until

from .cluster import INTERFACE, Cluster, Node
from .conftest import TRAIN, Job, NodeOutcome

pytestmark = pytest.mark.slow_system

StartJob = Callable[..., Job]


def training(start_job: StartJob, cluster: Cluster) -> Job:
    job = start_job(cluster, TRAIN, "--step-s", 0.2, "--steps", 1000)
    for node in cluster.nodes:
        job[node.rank].wait_for_text("step 1 ")
    return job


def said(job: Job, *nodes: int) -> None:
    for rank in nodes:
        o = job.wait_for(rank)
        print(f"\n== node {rank} code={o.code} seconds={o.seconds:.1f} {o.verdict['cause']} {o.verdict['title']!r} advice={o.verdict.get('advice')}", file=sys.stderr)
        print(o.stderr, file=sys.stderr)


@pytest.mark.parametrize("node", [0, 1])
def test_one_way(cluster: Cluster, start_job: StartJob, node: int) -> None:
    job = training(start_job, cluster)
    job.mark()
    cluster.cut_one_way(node)
    said(job, 0, 1)


@pytest.mark.parametrize("node", [0, 1])
def test_agent(cluster: Cluster, start_job: StartJob, node: int) -> None:
    job = training(start_job, cluster)
    agent = job[node].events("AgentStarted")[0]["pid"]
    job.mark()
    os.kill(agent, signal.SIGKILL)
    said(job, 0, 1)


@pytest.mark.parametrize("node", [0, 1])
def test_frozen(cluster: Cluster, start_job: StartJob, node: int) -> None:
    job = training(start_job, cluster)
    job.mark()
    os.kill(job[node].process.pid, signal.SIGSTOP)
    said(job, 1 - node)
    os.kill(job[node].process.pid, signal.SIGCONT)
    said(job, node)


@pytest.mark.parametrize("node", [0, 1])
def test_power(cluster: Cluster, start_job: StartJob, node: int) -> None:
    job = training(start_job, cluster)
    job.mark()
    cluster.cut(node)
    for pid in cluster.node(node).pids():
        os.kill(pid, signal.SIGKILL)
    said(job, 1 - node)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("how", ["down", "del"])
def test_interface(cluster: Cluster, start_job: StartJob, node: int, how: str) -> None:
    job = training(start_job, cluster)
    job.mark()
    words = ("set", INTERFACE, "down") if how == "down" else ("del", INTERFACE)
    cluster.node(node).run("ip", "link", *words)
    said(job, 0, 1)
