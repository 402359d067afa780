"""Node 0 compares all nodes once they are here: how they differ, and whether that must end the job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

from ddp_run.judge import unlike_nodes
from ddp_run.record.events import Noted
from ddp_run.record.file_names import EVENTS
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.other_node import OtherNode
from ddp_run.supervise.nodes.place import Ears, Place
from ddp_run.supervise.nodes.roster import Roster
from ddp_run.tell import node_table
from ddp_run.tell.verdict_file import keep_facts

_CLOCKS_S = 2.0
"""When all nodes are here: how long they have for the answers that tell their clocks."""


@final
class Comparison:
    """Of this node and `others`, by node rank or in the order in which they came, which grows."""

    def __init__(self, place: Place, ears: Ears, others: Mapping[int, OtherNode], roster: Roster) -> None:
        self._place, self._ears, self._others, self._roster = place, ears, others, roster
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
        measured = all(node.clock for node in self._others.values())
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
        place = self._place
        facts = {0: (*place.facts, *unlike_nodes.clock(0, 0))}
        facts |= {rank: (*node.join.facts, *node.clock) for rank, node in self._others.items()}
        hosts = {0: place.host} | {rank: node.join.host for rank, node in self._others.items()}
        name = unlike_nodes.by_number if place.node_rank is not None else unlike_nodes.by_host
        names = partial(name, hosts=hosts)
        for node in self._others.values():
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
