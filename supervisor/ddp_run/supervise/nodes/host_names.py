"""The hosts of missing nodes, as the scheduler knows them: asked only when one of them must be named."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

from ddp_run.supervise.loop import Loop
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, spawn
from ddp_run.values.words import named_nodes

_ANSWER_S = 5.0
_MOST_NAMES = 8


@final
class HostNames:
    """`command` prints them, one a line, by node rank. Without one, or an answer in time, nodes have numbers only."""

    def __init__(self, command: Sequence[str], nodes: int, loop: Loop, helpers: HelperProcesses) -> None:
        self._command, self._nodes, self._loop, self._helpers = tuple(command), nodes, loop, helpers
        self._names: list[str] = []
        self._process: HelperProcess | None = None

    def ask(self) -> None:
        """Start the command, once; its answer comes with the loop."""
        command, self._command = self._command, ()
        if not command:
            return
        try:
            self._process = spawn(command, outlives_us=False)
        except OSError:
            return
        self._helpers.add(self._process)
        self._loop.watch(self._process.fd, self._read)
        self._loop.set_timer(_ANSWER_S, self.close, lasting=True)

    def of(self, node_rank: int) -> str:
        """The node's host; empty if it is not known."""
        return self._names[node_rank] if self._names else ""

    def named(self, nodes: Collection[int]) -> str:
        """`node 2 (gpu07)`, `nodes 1,4-5 (gpu06, gpu09, gpu10)`; `node 2` if hosts are not known."""
        names = [self._names[rank] for rank in sorted(nodes)] if self._names else []
        shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        return f"{named_nodes(nodes)} ({shown})" if shown else named_nodes(nodes)

    def close(self) -> None:
        """Wait no longer for the answer."""
        process, self._process = self._process, None
        if process is not None:
            self._loop.cancel_timer(self.close)
            self._loop.unwatch(process.fd)
            process.end()

    def _read(self) -> None:
        if self._process is None:
            return
        said, over = self._process.read()
        if over:
            names = said.decode(errors="replace").split()
            self._names = names if len(names) == self._nodes else []
            self.close()
