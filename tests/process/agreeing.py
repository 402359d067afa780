"""What tests of the agreement between nodes share: a run as its nodes see it, on a real loop and real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import limit

from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.plan.net import free_port
from ddp_run.record.events import (
    Event,
    LocalRank,
    MonotonicNs,
    PeerFailed,
    Rank,
    RankFailed,
    RankStarted,
)
from ddp_run.record.journal import now
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.agreement import Side
from ddp_run.supervise.nodes.hub import Hub
from ddp_run.supervise.nodes.join import meet
from ddp_run.supervise.nodes.member import Member
from ddp_run.supervise.nodes.place import Ears, Place, job_key

KEY = job_key({"DDP_RUN_SECRET": "hush"}, "job")


BAD = Verdict("failed", 7, "python-exception", "DDP600", "rank 1 raised ValueError", "certain")


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop([]) as made:
        yield made


def serve(loop: Loop, until: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit(within_s)
    while not until():
        assert time.monotonic() < deadline, "it took too long"
        for wakeup in loop.wait(0.1):
            assert not isinstance(wakeup, int)
            wakeup()


def serve_for(loop: Loop, seconds: float) -> None:
    for wakeup in loop.wait(seconds):
        assert not isinstance(wakeup, int)
        wakeup()


class Run:
    """What a run is to an agreement."""

    def __init__(self, loop: Loop, place: Place) -> None:
        self.events: list[Event] = []
        self.told: list[tuple[int, Event]] = []
        self.said: list[str] = []
        ears = Ears(
            loop=loop,
            emit=self.events.append,
            events=self.events,
            say=self.said.append,
            end_ranks=lambda attempt, event: self.told.append((attempt, event)),
            serve=lambda s: serve_for(loop, s),
            stops=lambda: 0,
        )
        self._side, self._rival = meet(place, ears)

    @property
    def side(self) -> Side:
        assert self._side is not None
        return self._side

    def close(self) -> None:
        for each in (self._side, self._rival):
            if each is not None:
                each.close()

    @property
    def hub(self) -> Hub:
        assert isinstance(self._side, Hub)
        return self._side

    @property
    def member(self) -> Member:
        assert isinstance(self._side, Member)
        return self._side

    @property
    def has_joined(self) -> bool:
        return self.member._heard_at is not None

    @property
    def was_told(self) -> list[str]:
        return [event.said for _attempt, event in self.told if isinstance(event, PeerFailed)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    port = free_port("127.0.0.1")
    return Place(0, 3, "a", str(tmp_path), "127.0.0.1", port, KEY, grace_s=1.0, agent_restarts=False)


@pytest.fixture
def runs(loop: Loop, place: Place) -> Iterator[list[Run]]:
    made = [Run(loop, replace(place, node_rank=rank, host=name)) for rank, name in enumerate("abc")]
    hub = made[0].hub
    serve(loop, lambda: len(hub._nodes) == 2)
    yield made
    for run in made:
        run.close()


def started(rank: int) -> RankStarted:
    return RankStarted(now(), Rank(rank), LocalRank(0), 0, 4242, 2, 1, f"attempt_0/rank_{rank}", True)


def failed(rank: int) -> RankFailed:
    return RankFailed(MonotonicNs(time.monotonic_ns()), Rank(rank), 0, 1, None)


def refused(_verdict: Verdict) -> Decision:
    raise AssertionError("only node 0 decides")


def again(_verdict: Verdict) -> Decision:
    return Decision(True, "another attempt", port=29501)
