"""What the nodes of a job say to each other, in the order of a job, and how long they wait for it. Pure.

Typed values, JSON on the wire. The hub is node 0, or with c10d the node that has the rendezvous' endpoint. `attempt`:
the one that runs, or the next if something ends the job before it begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, get_args

from ddp_run.judge.of_nodes import Ends
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.observe.lateness import Arrivals
from ddp_run.observe.picture import Picture
from ddp_run.observe.progress import Stall
from ddp_run.record.events import StragglerSeen
from ddp_run.values import node_fact, typed_fields
from ddp_run.values.node_fact import Fact
from ddp_run.values.sealed import LONGEST_LINE
from ddp_run.values.typed_fields import frozen

BEAT_S = 1.0
"""Between two pings of node 0; every node answers each."""
REDIAL_S = 1.0
"""Between two tries to reach node 0."""
SILENT_S = 4.0
"""A node that has heard nothing for this long dials again."""
DEAD_S = 2.0
"""If a connection was closed without a word and isn't replaced within this time, its ddp-run has ended."""
LOST_S = 13.0
"""A node that is silent for this long is lost. One more beat may come through a network that is cut one way, so it is
named within 14 s. A network that is cut for 10 s harms nothing: a node that hears nothing dials again once a second.
TCP alone would wait longer and longer. The rest is for the beat before the cut, the dialling after it, and a busy host.
"""


# ---------------------------------------------------------------------------------------- a node joins


@frozen
class Join:
    """From a node, first. `folder`: its run's, on its own disk."""

    node_rank: int | None
    """None: torch numbers the nodes when they have met."""
    nodes: int
    host: str
    folder: str
    attempt: int = 0
    facts: tuple[Fact, ...] = ()
    """What this node is like."""


@frozen
class Joined:
    """The hub's answer to `Join`: its own host, and its number if it has one yet."""

    host: str
    node_rank: int | None = None


@frozen
class RankTaken:
    """The hub's other answer to `Join`: this host has that node rank."""

    host: str


@frozen
class Start:
    """From the hub: take part from this attempt on. `decision`: what led to it; null if it is the first."""

    attempt: int
    decision: Decision | None


# --------------------------------------------------------------------------------------- signs of life


@frozen
class Ping:
    """From the hub, every second: a sign of life, and a question for the time.

    `question`: the number of the last question who is late; null if some nodes aren't here.
    """

    number: int
    question: int | None = None


@frozen
class Pong:
    """The node's answer: its CLOCK_MONOTONIC, in ns; `wall`: its CLOCK_REALTIME."""

    number: int
    at: int
    wall: int


@frozen
class Paused:
    """From either: its job and its ddp-run stop (Ctrl-Z), or go on. In between, its silence means nothing."""

    on: bool


# ------------------------------------------------------------------------------------------- ranks run


@frozen
class Numbered:
    """From either: its ranks start. Torch has given it this number, and has met with so many nodes."""

    node_rank: int
    nodes: int


@frozen
class Looked:
    """From a node: what a closer look at its ranks shows; null: they make progress."""

    attempt: int
    picture: Picture | None


@frozen
class Stalled:
    """From the hub to all: what the pictures of all nodes show; null: nothing any more."""

    attempt: int
    stall: Stall | None


@frozen
class Came:
    """From a node: when its ranks came to their last collectives; the answer to question `number`."""

    attempt: int
    number: int
    arrivals: Arrivals


@frozen
class Slow:
    """From the hub to all: who comes last. The stamp in it is of the hub's clock."""

    attempt: int
    seen: StragglerSeen


# --------------------------------------------------------------------------------------------- the end


@frozen
class Failing:
    """From a node: the attempt fails on it; `said` is a line for people."""

    attempt: int
    said: str


@frozen
class Leaving:
    """From a node: it leaves, and the job goes on without it if torch can (it's elastic, or this is a spare node)."""

    said: str


@frozen
class EndedWell:
    """All ranks have ended well: those of the node that says so, or of all nodes if the hub does."""

    attempt: int


@frozen
class End:
    """From the hub to all: end your ranks, because of what is `said` of that node."""

    attempt: int
    node_rank: int | None
    host: str
    said: str


@frozen
class Report:
    """From a node: its own verdict on its attempt, and the last lines of stderr of the rank that it names."""

    attempt: int
    verdict: Verdict
    last_lines: tuple[str, ...] = ()
    ends: Ends = field(default_factory=Ends)


@frozen
class Agreed:
    """From the hub to all: the job's verdict, what follows, and where the whole verdict is."""

    attempt: int
    verdict: Verdict
    decision: Decision
    host: str
    folder: str
    left_out: bool = False
    """A spare node takes the place of this one, which then waits for the job's end."""


# ------------------------------------------------------------------------------------------- on the wire

Message = (
    Join
    | Joined
    | RankTaken
    | Start
    | Ping
    | Pong
    | Paused
    | Numbered
    | Looked
    | Stalled
    | Came
    | Slow
    | Failing
    | Leaving
    | EndedWell
    | End
    | Report
    | Agreed
)
Word = Paused | Numbered | EndedWell | Failing | Leaving
"""What a node says of its own events."""
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
_LATEST = 1 << 61
"""No clock counts so many nanoseconds."""
_SEAL = 100
"""At most so many bytes of a line are not the message."""
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")


def encode(message: Message) -> dict[str, Any]:
    """The message as JSON."""
    return {"message": type(message).__name__} | asdict(message)


def fits(message: Message) -> bool:
    """Whether it isn't too long for a line."""
    return len(json.dumps(encode(message))) < LONGEST_LINE - _SEAL


def decode(given: Mapping[str, Any]) -> Message | None:
    """The message. None for a kind that this version doesn't know, and for an answer to `Join` without a host name.

    Raises ValueError if another field is wrong.
    """
    kind = _KINDS.get(typed_fields.text(given.get("message")))
    message: Message | None = None if kind is None else typed_fields.read(kind, given)
    match message:
        case Join(host=host, folder=folder) if not _HOST.fullmatch(host) or "\0" in folder:
            raise ValueError("not a host name")
        case Joined(host=host) | RankTaken(host=host) if not _HOST.fullmatch(host):
            return None
        case Join(facts=facts):
            node_fact.check(facts)
        case Pong(at=at, wall=wall):
            _check_stamps(at, wall)
        case Report(verdict=verdict, ends=ends):
            _check(verdict)
            _check_stamps(*ends.finished_at, ends.failed_at)
            if len(ends.finished) != len(ends.finished_at):
                raise ValueError("not as many times as ranks")
        case Came(arrivals=came):
            _check_stamps(*came.at, *came.peers)
            if len({len(came.groups), len(came.numbers), len(came.last), len(came.at), len(came.peers)}) > 1:
                raise ValueError("not as many times as collectives")
        case Agreed(verdict=verdict, decision=decision):
            _check(verdict)
            _check_port(decision)
        case Start(decision=Decision() as decision):
            _check_port(decision)
        case _:
            pass
    return message


def _check_stamps(*stamps: int | None) -> None:
    """The difference of two stamps must fit into a message, too."""
    if any(stamp is not None and abs(stamp) > _LATEST for stamp in stamps):
        raise ValueError("no time")


def _check_port(decision: Decision) -> None:
    if decision.port is not None and not 0 < decision.port <= 65535:
        raise ValueError(f"port {decision.port}")


def _check(verdict: Verdict) -> None:
    first = verdict.first_failure
    _check_stamps(first.at if first is not None else None)
    if verdict.exit_code is not None and not 0 <= verdict.exit_code <= 255:
        raise ValueError(f"exit code {verdict.exit_code}")
