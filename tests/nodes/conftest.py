"""Jobs on several nodes: `ddp-run` on each node of a cluster at once, as a user or a scheduler starts them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Launcher, Outcome, Running, assert_replay_agrees, ddp, pytest_runtest_makereport
from tests.waiting import limit, wait_until

from .cluster import Cluster, missing

__all__ = ["ddp", "pytest_runtest_makereport"]

PROGRAMS = Path(__file__).parent / "programs"
TRAIN = PROGRAMS / "train.py"
WIRES = (TRAIN, "--no-torch")
PORT = 29500
"""Of the master. Each cluster has ports of its own."""


@dataclass
class NodeOutcome(Outcome):
    """How the run of one node ended; `seconds`: from the marked moment to its end, where one was marked.

    `marked_at`: that moment, on time.monotonic().
    """

    seconds: float | None
    marked_at: float | None


class Job:
    """A job with a `ddp-run` on each node; `job[i]` is that of node i. It runs in the folder `node_i` of the test's."""

    def __init__(
        self,
        ddp: Launcher,
        cluster: Cluster,
        words: tuple[object, ...],
        nproc: int = 1,
        options: tuple[object, ...] = (),
        env: Mapping[str, str] | None = None,
        later: Container[int] = (),
        meeting: tuple[object, ...] | None = None,
        rendezvous: str = "static",
        at: str | None = None,
    ) -> None:
        """`rendezvous`: static or c10d, `at` node 0's host name, or this address of it; `meeting`: other options."""
        self.cluster, self._meeting, self._rendezvous, self._at = (
            cluster,
            meeting,
            rendezvous,
            at or cluster.node(0).host,
        )
        self._ddp, self._words, self._nproc, self._options = ddp, words, nproc, options
        self._mark_file = ddp.cwd / f"mark{len(ddp.started)}"
        self._env = {"MARK_FILE": str(self._mark_file), "DDP_RUN_SECRET": "of the tests", **(env or {})}
        self._running: dict[int, Running] = {}
        self._ended: dict[int, float] = {}
        for node in cluster.nodes:
            if node.rank not in later:
                self.start(node.rank)

    def __getitem__(self, rank: int) -> Running:
        return self._running[rank]

    def start(
        self,
        rank: int,
        env: Mapping[str, str] | None = None,
        options: tuple[object, ...] = (),
        clock_ahead_s: int = 0,
    ) -> Running:
        """A node that was to start later; `env`, `options` and the clock are its alone."""
        node = self.cluster.node(rank)
        meeting = self._meeting
        if meeting is None:
            at = f"[{self._at}]:{PORT}" if ":" in self._at else f"{self._at}:{PORT}"
            c10d = ("--rdzv-backend", "c10d", "--rdzv-endpoint", at)
            static = ("--node-rank", rank, "--master-addr", self._at, "--master-port", PORT)
            meeting = ("--nnodes", len(self.cluster.nodes), *(c10d if self._rendezvous == "c10d" else static))
        words = [*meeting, "--nproc-per-node", self._nproc, *self._options, *options, *self._words]
        taken = (self._ddp.cwd / f"node_{rank}").exists()
        folder = f"node_{rank}_{len(self._ddp.started)}" if taken else f"node_{rank}"
        running = self._ddp.start(
            *words, env={**self._env, **(env or {})}, cwd=folder, within=node.within_clock(clock_ahead_s)
        )
        self._running[rank] = running
        threading.Thread(target=self._watch, args=(rank, running.process.pid), daemon=True).start()
        return running

    def mark(self) -> None:
        """Now is the moment that `seconds` count from. train.py marks its own fault."""
        self._mark_file.write_text(repr(time.monotonic()))

    def wait(self, within_s: float = 120.0) -> list[NodeOutcome]:
        """Until the runs of all nodes have ended and left nothing; how each ended, by node."""
        deadline = time.monotonic() + limit(within_s)
        return [self._outcome(rank, deadline) for rank in sorted(self._running)]

    def wait_for(self, rank: int, within_s: float = 120.0) -> NodeOutcome:
        """Until the run of this node has ended and left nothing."""
        return self._outcome(rank, time.monotonic() + limit(within_s))

    def _outcome(self, rank: int, deadline: float) -> NodeOutcome:
        running = self._running[rank]
        ended = running.wait(max(deadline - time.monotonic(), 0.0))
        running.assert_nothing_left()
        if ended.folder is not None and (ended.folder / "verdict.json").exists():
            assert_replay_agrees(ended)
        at = wait_until(lambda: self._ended.get(rank), f"the moment at which node {rank} ended", 30)
        marked = float(self._mark_file.read_text()) if self._mark_file.exists() else None
        seconds = at - marked if marked is not None else None
        return NodeOutcome(ended.code, ended.stdout, ended.stderr, ended.folder, seconds, marked)

    def _watch(self, rank: int, pid: int) -> None:
        with suppress(ChildProcessError):  # somebody else has waited for it
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._ended[rank] = time.monotonic()


@pytest.fixture(scope="session", autouse=True)
def nodes_can_be_made() -> None:
    """All of this folder is skipped with the reason where they cannot."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
def clusters(nodes_can_be_made: None) -> Iterator[Callable[..., Cluster]]:
    """`clusters(3)`: three nodes, until the test ends; further words as of `Cluster`."""
    with ExitStack() as stack:
        yield lambda nodes, **further: stack.enter_context(Cluster(nodes, **further))


@pytest.fixture
def cluster(clusters: Callable[[int], Cluster]) -> Cluster:
    """Two nodes."""
    return clusters(2)


@pytest.fixture(params=["static", pytest.param("c10d", marks=pytest.mark.slow_system)])
def rendezvous(request: pytest.FixtureRequest) -> str:
    """How the nodes meet: all promises hold under both."""
    return str(request.param)


@pytest.fixture
def start_job(clusters: object, ddp: Launcher, rendezvous: str) -> Callable[..., Job]:
    """`start_job(cluster, TRAIN, "--steps", 3, nproc=2)`: the job on every node at once; further words as of `Job`."""

    def start(cluster: Cluster, *words: object, **further: Any) -> Job:
        return Job(ddp, cluster, words, rendezvous=rendezvous, **further)

    return start


def unnumbered(rendezvous: str, node: int) -> tuple[int | None, str]:
    """A node's number and name while torch has not numbered the nodes of an attempt, as it does with c10d."""
    return (node, f"node {node} (node{node})") if rendezvous == "static" else (None, f"node{node}")
