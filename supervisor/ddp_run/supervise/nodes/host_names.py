"""The hosts of nodes that are not here, as the scheduler knows them: asked only where one of them must be named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import final

from ddp_run.supervise.loop import Loop
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, spawn
from ddp_run.values.words import named_nodes

_ANSWER_S = 5.0
_MOST_NAMES = 8


@final
class HostNames:
    """`command` prints them, one a line, by node rank; without one, or an answer in time, nodes have numbers only."""

    def __init__(self, command: Sequence[str], nodes: int, loop: Loop, helpers: HelperProcesses) -> None:
        self._command, self._nodes, self._loop, self._helpers = tuple(command), nodes, loop, helpers
        self._names: list[str] = []
        self._asked = False
        self._stop_asking: Callable[[], None] | None = None

    def ask(self) -> None:
        """Have the command started, once; its answer comes with the loop."""
        if self._asked or not self._command:
            return
        self._asked = True
        try:
            process = spawn(self._command, outlives_us=False)
        except OSError:
            return
        self._helpers.add(process)
        self._stop_asking = partial(self._end, process)
        self._loop.watch(process.fd, partial(self._read, process))
        self._loop.set_timer(_ANSWER_S, self._stop_asking, lasting=True)

    def of(self, node_rank: int) -> str:
        """The node's host; empty where it is not known."""
        return self._names[node_rank] if self._names else ""

    def named(self, nodes: Collection[int]) -> str:
        """`node 2 (gpu07)`, `nodes 1,4-5 (gpu06, gpu09, gpu10)`; `node 2` where it is not known."""
        names = [self._names[rank] for rank in sorted(nodes)] if self._names else []
        shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        return f"{named_nodes(nodes)} ({shown})" if shown else named_nodes(nodes)

    def close(self) -> None:
        """Nobody will ask."""
        if self._stop_asking is not None:
            self._stop_asking()

    def _read(self, process: HelperProcess) -> None:
        said, over = process.read()
        if not over:
            return
        names = said.decode(errors="replace").split()
        self._names = names if len(names) == self._nodes else []
        self._end(process)

    def _end(self, process: HelperProcess) -> None:
        if self._stop_asking is None:
            return
        self._loop.cancel_timer(self._stop_asking)
        self._stop_asking = None
        self._loop.unwatch(process.fd)
        process.end()
