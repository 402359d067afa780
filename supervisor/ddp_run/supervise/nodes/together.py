"""What shows only when all nodes are seen together: why all stand still, who is late, how nodes differ.

One node alone may only see ranks that wait. So every node shows the hub its ranks, and the hub tells all what they
show; both views are `OtherNodes` of the observer. What nodes are like comes with their first message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

from ddp_run.judge import unlike_nodes
from ddp_run.observe.lateness import Arrivals, LateWatch
from ddp_run.observe.picture import Picture, explain_all
from ddp_run.observe.progress import Stall
from ddp_run.record.events import SAMPLE_S, Noted
from ddp_run.record.file_names import EVENTS
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.messages import BEAT_S, Came, Looked, Message, Ping, Slow, Stalled
from ddp_run.supervise.nodes.place import Ears, Place
from ddp_run.supervise.nodes.roster import OtherNode, Roster
from ddp_run.tell import node_table
from ddp_run.tell.verdict_file import keep_facts

_ASKED_EVERY = round(SAMPLE_S / BEAT_S)
"""So many beats lie between two questions who is late."""
_CLOCKS_S = 2.0
"""When all nodes are here: how long they have for the answers that tell their clocks."""


@final
class MemberView:
    """On every other node."""

    def __init__(self, ears: Ears, attempt: Callable[[], int], show: Callable[[Message], bool]) -> None:
        """`attempt`: the node's. `show` sends something to the hub, at once or not at all. Returns whether it did."""
        self._ears, self._attempt, self._show = ears, attempt, show
        self.stall_of_all: Stall | None = None
        self.question: int | None = None

    def begin(self) -> None:
        """Another attempt begins."""
        self.stall_of_all = None

    def hear(self, message: Ping | Stalled | Slow) -> None:
        """What the hub says."""
        match message:
            case Ping(question=question):
                self.question = question
            case Stalled(attempt, stall) if attempt == self._attempt():
                self.stall_of_all = stall
            case Slow(attempt, seen) if attempt == self._attempt():
                self._ears.emit(replace(seen, at=now()))
            case _:
                pass

    def share(self, picture: Picture | None) -> bool:
        """Show the hub this node's ranks, or take that back. Whether there may be an answer."""
        if picture is None:
            self.stall_of_all = None
        return self._show(Looked(self._attempt(), None if picture is None else picture.for_others()))

    def answer(self, arrivals: Arrivals) -> None:
        """Answer the hub's question who is late."""
        self._show(Came(self._attempt(), self.question or 0, arrivals))


@final
class HubView:
    """On the hub, which puts together what the nodes show. They are known by their keys there; its own is 0."""

    def __init__(
        self,
        ears: Ears,
        roster: Roster,
        attempt: Callable[[], int],
        tell: Callable[[Message], None],
        name: Callable[[], str],
    ) -> None:
        """`attempt`: node 0's. `tell` sends something to all other nodes; `name`: what node 0 is called."""
        self._ears, self._roster, self._attempt, self._tell, self._name = ears, roster, attempt, tell, name
        self._beats = self._number = 0
        """Of the last question."""
        self.begin()

    def begin(self) -> None:
        """Another attempt begins."""
        self.stall_of_all: Stall | None = None
        self._pictures: dict[int, tuple[Picture, float]] = {}
        """The last one of each node, until its ranks make progress again; and when it came (time.monotonic())."""
        self._stall_key: object = None
        self._is_new = False
        """One has come since they were put together."""
        self._late = LateWatch()
        self._came: dict[int, tuple[str, Arrivals, int]] = {}
        """The node's name, its answer to the last question, and its wall clock minus ours (ns)."""

    def hear(self, node: OtherNode, message: Looked | Came) -> None:
        """What another node shows."""
        if message.attempt != self._attempt():
            return
        match message:
            case Looked(picture=picture):
                self._take(node.key, picture)
            case Came(number=number, arrivals=arrivals):
                ahead_ns = node.clock.wall_offset_ns
                if number == self._number and ahead_ns is not None:
                    self._compare(node.key, (node.name, arrivals, ahead_ns))

    def is_gone(self, node: OtherNode) -> None:
        """A node is lost, or has left."""
        self._take(node.key, None)

    def look(self) -> None:
        """Once a second: put pictures together, and ask who is late if it's time to."""
        self._beats += 1
        if self._beats % _ASKED_EVERY == 0:
            self._number += 1
            self._came = {}
        if self._is_new:
            self._is_new = False
            self._put_together()

    def share(self, picture: Picture | None) -> bool:
        """Take this node's picture, or take it back. Whether there may be an answer."""
        if picture is None:
            self.stall_of_all = None
        self._take(0, picture)
        return self._roster.is_complete

    @property
    def question(self) -> int | None:
        """The number of the last question who is late, which goes to all with a ping. None while nodes are missing."""
        return self._number if self._roster.is_complete else None

    def answer(self, arrivals: Arrivals) -> None:
        """Take this node's answer."""
        self._compare(0, (self._name(), arrivals, 0))

    def _take(self, key: int, picture: Picture | None) -> None:
        self._is_new = True
        if picture is None:
            self._pictures.pop(key, None)
        else:
            self._pictures[key] = picture, time.monotonic()

    def _put_together(self) -> None:
        moment, before, stall = time.monotonic(), self._stall_key, None
        try:
            aged = [(picture, moment - at) for picture, at in self._pictures.values()]
            stall = explain_all(aged, now()) if len(aged) == self._roster.round_size else None
        except Exception as error:  # whatever another node sends
            self._ears.emit(Noted(now(), f"the nodes' stacks can't be compared: {type(error).__name__}: {error}"))
        self._stall_key = None if stall is None else stall.key
        if self._stall_key != before:
            self.stall_of_all = stall
            self._tell(Stalled(self._attempt(), stall))

    def _compare(self, key: int, came: tuple[str, Arrivals, int]) -> None:
        """One more answer; after the last one, see who is late."""
        self._came[key] = came
        if len(self._came) != self._roster.round_size:
            return
        entered = {key: arrivals.entered(ahead_ns) for key, (_name, arrivals, ahead_ns) in self._came.items()}
        late = self._late.compare(entered, max(arrivals.step_s for _name, arrivals, _ahead in self._came.values()))
        if late is not None:
            name, arrivals, _ahead = self._came[late.who]
            seen = arrivals.seen(now(), late, name)
            self._ears.emit(seen)
            self._tell(Slow(self._attempt(), seen))


@final
class Comparison:
    """On the hub, which compares what all nodes are like once they are here, and says whether that must end the job."""

    def __init__(self, place: Place, ears: Ears, roster: Roster) -> None:
        self._place, self._ears, self._roster = place, ears, roster
        self._is_over = place.facts == ()
        """It was made, or isn't wanted."""
        self._complete_at: float | None = None
        """On time.monotonic(): since when all are here."""

    def make_when_known(self) -> str | None:
        """All nodes that the job begins with have joined: compare them, if their clocks are known.

        Returns why the job must not run, or None.
        """
        if not self._is_due:
            return None
        if self._complete_at is None:  # from now on only the clocks are waited for
            self._complete_at = time.monotonic()
        measured = all(node.clock.facts for node in self._roster.nodes.values())
        if not measured and time.monotonic() - self._complete_at <= _CLOCKS_S:
            return None
        return self._made(strict=self._place.strict)

    def make_at_the_end(self) -> None:
        """The attempt is over: compare them now if it failed too soon for that. It's too late to refuse it."""
        if self._is_due:
            self._made(strict=False)

    @property
    def _is_due(self) -> bool:
        return not self._is_over and self._roster.round_size > 0 and self._roster.is_complete

    def _made(self, *, strict: bool) -> str | None:
        self._is_over = True
        try:
            return self._make(strict)
        except Exception as error:
            self._ears.emit(Noted(now(), f"the nodes were not compared: {type(error).__name__}: {error}"))
            return None

    def _make(self, strict: bool) -> str | None:
        place, others = self._place, self._roster.nodes
        facts = {0: (*place.facts, *unlike_nodes.clock(0, 0))}
        facts |= {rank: (*node.join.facts, *node.clock.facts) for rank, node in others.items()}
        hosts = {0: place.host} | {rank: node.join.host for rank, node in others.items()}
        name = unlike_nodes.by_number if place.node_rank is not None else unlike_nodes.by_host
        names = partial(name, hosts=hosts)
        for node in others.values():
            node.join = replace(node.join, facts=())
        rows = unlike_nodes.compare(facts)
        found = unlike_nodes.compared(now(), rows, names, strict=strict)
        kept = keep_facts(Path(place.folder), node_table.render(rows, names))
        self._ears.emit(found)
        if found.refused:
            return f"nodes differ in {found.breaking[0]} (--preflight strict)"
        for line in unlike_nodes.warnings(rows, names, str(kept or Path(place.folder, EVENTS))):
            self._ears.say(line)
        return None
