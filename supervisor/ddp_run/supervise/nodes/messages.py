"""What the nodes of a job say to each other: typed values, JSON on the way. Pure.

`attempt` is the attempt that is told of: the one that runs, or the next one where something ends the job before that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, get_args

from ddp_run.judge.of_nodes import Ends
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.values import node_fact, typed_fields
from ddp_run.values.node_fact import Fact
from ddp_run.values.typed_fields import frozen


@frozen
class Join:
    """First of a node's messages. `folder`: its run's, on its own disk."""

    node_rank: int
    nodes: int
    host: str
    folder: str
    attempt: int = 0
    facts: tuple[Fact, ...] = ()
    """What this node is like."""


@frozen
class Joined:
    """Node 0's answer to `Join`: its own host. An older ddp-run does not send it."""

    host: str = ""


@frozen
class RankTaken:
    """Node 0's other answer to `Join`: this host has that node rank. An older ddp-run only hangs up."""

    host: str


@frozen
class Ping:
    """From node 0, every few seconds: a sign of life, and a question for the time."""

    number: int


@frozen
class Pong:
    """The answer: CLOCK_MONOTONIC of the node, in ns; `wall`: its CLOCK_REALTIME."""

    number: int
    at: int
    wall: int | None = None


@frozen
class Failing:
    """The attempt fails on this node; `said` is a line for people."""

    attempt: int
    said: str


@frozen
class EndedWell:
    """All ranks have: from a node its own, from node 0 those of all nodes."""

    attempt: int


@frozen
class End:
    """From node 0 to all: end your ranks, for what is `said` of that node."""

    attempt: int
    node_rank: int
    host: str
    said: str


@frozen
class Paused:
    """This node's job and its ddp-run are stopped (Ctrl-Z), or go on: its silence means nothing meanwhile."""

    on: bool


@frozen
class Report:
    """A node's own verdict on its attempt, and the last lines of the stderr of the rank that it names."""

    attempt: int
    verdict: Verdict
    last_lines: tuple[str, ...] = ()
    ends: Ends = field(default_factory=Ends)


@frozen
class Agreed:
    """From node 0 to all: the job's verdict, what follows, and where the whole of it is."""

    attempt: int
    verdict: Verdict
    decision: Decision
    host: str
    folder: str


_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")

Message = Join | Joined | RankTaken | Ping | Pong | Failing | EndedWell | End | Paused | Report | Agreed
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> dict[str, Any]:
    """As JSON has it."""
    return {"message": type(message).__name__} | asdict(message)


def decode(given: Mapping[str, Any]) -> Message | None:
    """The message; null for a kind that this version does not know, and where node 0 has a host name that is none.

    Raises ValueError where a field is not right.
    """
    kind = _KINDS.get(typed_fields.text(given.get("message")))
    message: Message | None = None if kind is None else typed_fields.read(kind, given)
    match message:
        case Join(host=host, folder=folder) if not _HOST.fullmatch(host) or "\0" in folder:
            raise ValueError("no name of a host")
        case Joined(host=host) | RankTaken(host=host) if not _HOST.fullmatch(host):
            return None
        case Join(facts=facts):
            node_fact.check(facts)
        case Report(verdict=verdict, ends=ends):
            _check(verdict)
            if len(ends.finished) != len(ends.finished_at):
                raise ValueError("ranks and times are not of one length")
        case Agreed(verdict=verdict, decision=decision):
            _check(verdict)
            if decision.port is not None and not 0 < decision.port <= 65535:
                raise ValueError(f"port {decision.port}")
        case _:
            pass
    return message


def _check(verdict: Verdict) -> None:
    if verdict.exit_code is not None and not 0 <= verdict.exit_code <= 255:
        raise ValueError(f"exit code {verdict.exit_code}")
