"""Node 0 puts together what the nodes show of a stall, each of which may only see ranks that wait for others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from ddp_run.observe.picture import Picture, explain_all
from ddp_run.observe.progress import Stall
from ddp_run.record.events import Noted
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.agreement import Ears


@final
class Pictures:
    """The last picture of each node, until its ranks make progress again."""

    def __init__(self, ears: Ears, tell: Callable[[Stall | None], None]) -> None:
        """`tell` gets what the pictures of all nodes show, if that is new; None: nothing any more."""
        self._ears, self._tell = ears, tell
        self._stall: Stall | None = None
        self._taken: dict[int, tuple[Picture, float]] = {}
        """By the node's key in the hub, and when it came (time.monotonic())."""
        self._is_new = False

    def take(self, key: int, picture: Picture | None) -> None:
        """A node's next one; None: it has none any more."""
        self._is_new = True
        if picture is None:
            self._taken.pop(key, None)
        else:
            self._taken[key] = picture, time.monotonic()

    def forget(self) -> None:
        """Another attempt begins."""
        self._taken.clear()
        self._stall, self._is_new = None, False

    def look(self, nodes: int) -> None:
        """Once a second: see what they show, if all `nodes` of the job have given one."""
        if not self._is_new:
            return
        self._is_new, before = False, self._stall
        moment = time.monotonic()
        try:
            aged = [(picture, moment - at) for picture, at in self._taken.values()]
            self._stall = explain_all(aged, now()) if len(aged) == nodes else None
        except Exception as error:  # whatever another node sends
            self._ears.emit(Noted(now(), f"the nodes' stacks can't be compared: {type(error).__name__}: {error}"))
            self._stall = None
        if _key(self._stall) != _key(before):
            self._tell(self._stall)


def _key(stall: Stall | None) -> object:
    return None if stall is None else stall.key
