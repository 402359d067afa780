"""A node that has the secret and is broken: whatever it sends, in whatever order, the other nodes stay of one mind.

It takes part as node 2 of three. The others are real sides on real sockets. Nothing it says may raise in them, grow
without a limit, or make node 0 and node 1 differ in verdict or decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.process.agreeing import BAD, KEY, Run, again, serve, serve_for
from tests.process.test_stall_of_all_nodes import shown

from ddp_run.evidence.model import Quote
from ddp_run.judge.of_nodes import Ends
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.observe.lateness import Arrivals
from ddp_run.plan.net import free_port
from ddp_run.record.events import MonotonicNs, Rank, StragglerSeen
from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes import hub as hub_side
from ddp_run.supervise.nodes.link import Link, dial
from ddp_run.supervise.nodes.messages import (
    Agreed,
    Came,
    End,
    EndedWell,
    Failing,
    Join,
    Joined,
    Leaving,
    Looked,
    Message,
    Numbered,
    Paused,
    Ping,
    Pong,
    RankTaken,
    Report,
    Slow,
    Stalled,
    Start,
    encode,
)
from ddp_run.supervise.nodes.place import Place

pytestmark = pytest.mark.slow_system

STOPPED = Verdict("failed", 75, title="stopped with the job")
FIRST = FirstFailure(Rank(2), exit_code=7, at=MonotonicNs(5))
OWN = replace(BAD, first_failure=FIRST, notes=("a note",), evidence=(Quote("stderr.log", 1, "ValueError"),))
SHOWN = Arrivals((Rank(2),), 0.4, ("gloo:0",), (1,), (Rank(2),), (5,), (5,))
SAMPLES: tuple[Message, ...] = (
    Join(2, 3, "c", "/runs/c"),
    Join(1, 3, "d", "/runs/d"),
    Joined("c", 2),
    RankTaken("c"),
    Numbered(2, 3),
    Leaving("stopped by SIGTERM"),
    Start(1, Decision(True, "again", port=4711)),
    Ping(3),
    Pong(1, 2, 3),
    Failing(0, "rank 2 failed"),
    EndedWell(0),
    End(0, 1, "b", "ended by c"),
    Paused(True),
    Report(0, OWN, ("last line",), Ends((Rank(2),), (MonotonicNs(5),), MonotonicNs(9))),
    Report(1, STOPPED),
    Agreed(0, BAD, Decision(True, "again", port=4711), "c", "/runs/c"),
    Looked(0, shown(2)),
    Looked(0, None),
    Stalled(0, None),
    Came(0, 1, SHOWN),
    Slow(0, StragglerSeen(MonotonicNs(5), Rank(2), 9, 9, 0.2, 0.4, node="node 2 (c)")),
)
WRONG: tuple[object, ...] = (
    None, True, -1, 0, 1, 2**63 - 1, 2**63, 0.5, 1e308, "\x1b[31m", "", "\ud800", "\ud800/x", "x" * 5000, [], {},
    [[]], [None], {"a": 1},
)  # fmt: skip


def places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """All places in a message, as paths of keys."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def damaged(message: object, path: tuple[object, ...], value: object) -> object:
    """The message with this at that place."""
    if not path:
        return value
    copy: Any = dict(message) if isinstance(message, dict) else list(message)  # type: ignore[call-overload]
    copy[path[0]] = damaged(copy[path[0]], path[1:], value)
    return copy


PLACES = [[*places(json.loads(json.dumps(encode(sample))))] for sample in SAMPLES]
"""Of each sample."""
SAID = st.one_of(
    st.sampled_from(range(len(SAMPLES))).map(lambda number: ("say", number, (), None)),
    st.sampled_from(range(len(SAMPLES))).flatmap(
        lambda number: st.tuples(
            st.just("say"), st.just(number), st.sampled_from(PLACES[number]), st.sampled_from(range(len(WRONG)))
        )
    ),
    st.sampled_from([("raw", 0, (), None), ("again", 0, (), None), ("cut", 0, (), None), ("wait", 0, (), None)]),
)


def say(
    kind: type[Message], path: tuple[object, ...], value: object
) -> tuple[str, int, tuple[object, ...], int | None]:
    """The first sample of the kind, with this at that place."""
    number = next(number for number, sample in enumerate(SAMPLES) if type(sample) is kind)
    return "say", number, path, WRONG.index(value) if path else None


JOINS = say(Join, (), None)


class Broken:
    """Node 2: it says what it is told to, sealed as it must be."""

    def __init__(self, loop: Loop, place: Place) -> None:
        self._loop, self._place = loop, place
        self._link: Link | None = None
        self._last = b""

    def do(self, what: str, number: int, path: tuple[object, ...], wrong: int | None) -> None:
        if self._link is None or not self._link.is_open:
            self.close()
            self._link = dial(self._loop, self._place.address, self._place.port, KEY, lambda _link, _heard: None)
            link = self._link
            serve(self._loop, lambda: link is None or link.is_open or link._closed)
        if self._link is None or self._link._seals is None or self._link._closed:
            return
        match what:
            case "say":
                message: object = json.loads(json.dumps(encode(SAMPLES[number])))
                if wrong is not None:
                    message = damaged(message, path, WRONG[wrong])
                self._last = self._link._seals[0].close(message)  # type: ignore[arg-type]
                self._link._write(self._last)
            case "again":
                self._link._write(self._last)
            case "raw":
                self._link._write(b"no message of ours\n")
            case "cut":
                self.close()
            case _:
                serve_for(self._loop, 0.02)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


@contextmanager
def three_nodes(folder: Path) -> Iterator[tuple[Loop, Run, Run, Broken]]:
    port = free_port("127.0.0.1")
    place = Place(0, 3, "a", str(folder), "127.0.0.1", port, KEY, grace_s=0.2, agent_restarts=False)
    with Loop([]) as loop:
        hub, one = Run(loop, place), Run(loop, replace(place, node_rank=1, host="b", folder=str(folder / "b")))
        broken = Broken(loop, place)
        try:
            serve(loop, lambda: one.has_joined)
            yield loop, hub, one, broken
        finally:
            for each in (broken, one, hub):
                each.close()


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@example([JOINS, say(Report, ("last_lines", 0), "\ud800")])
@example([JOINS, say(Report, ("verdict", "title"), "\ud800")])
@example([JOINS, say(Report, ("verdict", "first_failure", "at"), 2**63 - 1)])
@example([JOINS, say(Report, ("verdict", "first_failure", "at"), -1)])
@example([JOINS, say(Report, ("verdict", "evidence", 0, "source"), "\ud800/x")])
@example([JOINS, say(Join, ("folder",), "\ud800"), say(Report, (), OWN)])
@given(st.lists(SAID, min_size=60, max_size=120))
def test_whatever_a_broken_node_says_the_others_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, int, tuple[object, ...], int | None]]
) -> None:
    monkeypatch.setattr(hub_side, "VERDICTS_S", 0.1)
    with three_nodes(tmp_path) as (loop, hub, one, broken):
        for each in said:
            broken.do(*each)
            for wakeup in loop.wait(0):
                assert not isinstance(wakeup, int)
                wakeup()
        assert len(hub.hub._links) + len(hub.hub._listener._strangers) <= 3 + 64
        assert set(hub.hub._nodes) <= {1, 2}
        assert hub.hub._nodes[1].join.host == "b"
        one.side._tell(Failing(0, "rank 1 failed"))
        one.member._send(Report(one.side._attempt, BAD))
        agreed, decision = hub.side.agree(STOPPED, hub.side._attempt, again)
        json.dumps(asdict(agreed))
        serve(loop, lambda: one.member._agreed is not None, 3)
        told = one.member._agreed
        assert told is not None
        assert (told.verdict.cause, told.verdict.exit_code, told.verdict.title) == (
            agreed.cause,
            agreed.exit_code,
            agreed.title,
        )
        assert told.decision == decision
