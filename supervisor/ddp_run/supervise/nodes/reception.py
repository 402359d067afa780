"""Node 0's door: takes connections, and closes those that do not say in time which node they are."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import final

from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.agreement import Place
from ddp_run.supervise.nodes.link import Link
from ddp_run.supervise.nodes.messages import Message
from ddp_run.values.addresses import is_local

_BACKLOG = 1024
_GREETING_S = 10.0
"""How long a connection may stay that does not say which node it is."""


@final
class Reception:
    """Listens. `on_message`, `on_end`: of every connection from here."""

    def __init__(
        self, place: Place, loop: Loop, on_message: Callable[[Link, Message], None], on_end: Callable[[Link, str], None]
    ) -> None:
        """Raises OSError where the port cannot be had."""
        self._place, self._loop, self._on_message, self._on_end = place, loop, on_message, on_end
        self._unknown: dict[Link, float] = {}
        """Who has not said yet which node it is, and since when, on time.monotonic()."""
        self._listener = _listener(place.address, place.port)
        loop.watch(self._listener.fileno(), self._accept)

    def let_in(self, link: Link) -> None:
        """It has said which node it is, or it has ended."""
        self._unknown.pop(link, None)

    def look(self, moment: float) -> None:
        """Close what has been silent for too long."""
        for link in [link for link, since in self._unknown.items() if moment - since > _GREETING_S]:
            link.close()
            del self._unknown[link]

    def close(self) -> None:
        """Nobody else comes in."""
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        for link in self._unknown:
            link.close()

    def _accept(self) -> None:
        try:
            connected, _address = self._listener.accept()
        except OSError:
            return
        link = Link(
            self._loop,
            connected,
            self._place.job_key,
            is_server=True,
            on_open=lambda _link: None,
            on_message=self._on_message,
            on_end=self._on_end,
        )
        self._unknown[link] = time.monotonic()


def _listener(address: str, port: int) -> socket.socket:
    """At node 0's own address; at all, where that is another machine's (address translation)."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = address if is_local(address) else ("::" if family == socket.AF_INET6 else "0.0.0.0")  # noqa: S104
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bound, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
