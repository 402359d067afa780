"""A TCP connection that is being made, in the loop and without ever waiting."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import final

from ddp_run.supervise.loop import Loop


@final
class Dial:
    """`on_end` gets the connected socket and 0, or null and the errno, once; nothing where nobody answers."""

    def __init__(
        self, loop: Loop, address: str, port: int, on_end: Callable[[socket.socket | None, int], None]
    ) -> None:
        self._loop, self._on_end = loop, on_end
        self._socket: socket.socket | None = None
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            dialling = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            self._fail(error.errno or 0)
            return
        try:
            dialling.connect((address, port))
        except BlockingIOError:
            pass
        except OSError as error:
            dialling.close()
            self._fail(error.errno or 0)
            return
        self._socket = dialling
        loop.watch(dialling.fileno(), self._answered, write=True)

    def close(self) -> None:
        """Forget it; `on_end` is not called any more."""
        self._loop.cancel_timer(self)
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _fail(self, code: int) -> None:
        """Told from the loop, like any other end."""
        self._loop.set_timer(0.0, partial(self._on_end, None, code), key=self, lasting=True)

    def _answered(self) -> None:
        dialled, self._socket = self._socket, None
        if dialled is None:
            return
        self._loop.unwatch(dialled.fileno())
        code = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            dialled.close()
            self._on_end(None, code)
        else:
            self._on_end(dialled, 0)
