"""What answers at the endpoint of a c10d rendezvous while nodes meet: torch's store, another program, or nothing.

torch waits a minute or more for a program that isn't its store, and says nothing. Its client greets a store with a
number and a ping, which the store returns: torch/csrc/distributed/c10d/TCPStore.cpp, from 2.5 on.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct
from functools import partial
from typing import final

from ddp_run.plan import net
from ddp_run.record.events import EndpointTaken, Event, PeerFailed, RankStarted
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.agreement import Ears
from ddp_run.supervise.nodes.link import connecting
from ddp_run.supervise.nodes.reach import Reach, of_errno
from ddp_run.values.addresses import is_local
from ddp_run.values.lines import neutral

FIRST_S = 4.0
"""Before the first look: meanwhile the agent loads torch, and opens the store if this is its host."""
_AGAIN_S, _ANSWER_S = 4.0, 2.0
_RESOLVE_S = 2.0
_GREETING = struct.pack("<BIB", 0, 0x3C85F7CE, 13)
"""Of torch's client: a number that a store knows, then a ping; four bytes that the store returns follow."""
_PROVOKES = b"\r\n\r\n\n"
"""Ends a request of programs that read lines: these answer with an error then. To a store it is a second ping."""
_SHOWN = 60


@final
class Endpoint:
    """Asks until a store answers, or until ranks have started. Another program there ends the job."""

    def __init__(self, host: str, port: int, ears: Ears) -> None:
        self._host, self._port, self._ears = host, port, ears
        self._address: str | None = None
        self._socket: socket.socket | None = None
        self._nonce = self._heard = b""
        self._said: str | None = None
        ears.loop.set_timer(FIRST_S, self._ask, lasting=True)

    def hear(self, event: Event) -> None:
        """A sink: when ranks start, the nodes have met."""
        if isinstance(event, RankStarted):
            self.close()

    def close(self) -> None:
        """Stop asking."""
        self._hang_up()
        self._ears.loop.cancel_timer(self._ask)

    # ------------------------------------------------------------------------------------ one look

    def _ask(self) -> None:
        loop = self._ears.loop
        loop.set_timer(_ANSWER_S + _AGAIN_S, self._ask, lasting=True)
        try:
            self._address = (
                self._address or net.resolve(self._host, self._port, _RESOLVE_S, once=True, loopback_allowed=True).ip
            )
            self._socket, code = connecting(self._address, self._port)
        except (OSError, net.Unresolvable):
            return
        if code not in (0, errno.EINPROGRESS):
            self._not_reached(of_errno(code))
            return
        loop.watch(self._socket.fileno(), self._greet, write=True)
        loop.set_timer(_ANSWER_S, partial(self._not_reached, Reach.SILENT), key=self, lasting=True)

    def _greet(self) -> None:
        if self._socket is None:
            return
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._not_reached(of_errno(code))
            return
        self._nonce, self._heard = secrets.token_bytes(4), b""
        self._ears.loop.watch(self._socket.fileno(), self._answered)
        self._send(_GREETING + self._nonce)
        self._ears.loop.set_timer(_ANSWER_S / 2, self._provoke, key=self, lasting=True)

    def _provoke(self) -> None:
        self._send(_PROVOKES)
        self._ears.loop.set_timer(_ANSWER_S / 2, self._no_answer, key=self, lasting=True)

    def _send(self, data: bytes) -> None:
        try:
            if self._socket is not None:
                self._socket.send(data)
        except OSError:
            self._hang_up()

    def _answered(self) -> None:
        try:
            got = self._socket.recv(256) if self._socket is not None else b""
        except BlockingIOError:
            return
        except OSError:
            got = b""
        self._heard += got
        if self._heard.startswith(self._nonce):
            self.close()  # a store: torch waits there for other nodes
        elif not self._nonce.startswith(self._heard):
            self._end_job(self._heard)
        elif not got:
            self._no_answer("hangs up: it isn't torch's store, or it is a proxy that has none behind it yet")

    # ------------------------------------------------------------------------------------ what follows

    def _hang_up(self) -> None:
        self._ears.loop.cancel_timer(self)
        if self._socket is not None:
            self._ears.loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _not_reached(self, why: Reach) -> None:
        self._hang_up()
        where = f"{self._host}:{self._port}"
        if why is Reach.REFUSED:
            if self._address is None or not is_local(self._address):  # here the agent is about to listen
                self._say(f"nothing listens at {where} yet: ddp-run is not started there, or its host is another one")
        elif why is Reach.SILENT and self._nonce:
            pass  # it has taken connections before; a busy one does not take all
        elif why is Reach.SILENT:
            self._say(f"no answer from {where}: that host is down, or a firewall drops the packets")
        elif why is not Reach.STRANGER:
            self._say(f"{where}: {why}")

    def _no_answer(self, how: str = "takes connections, but doesn't answer as torch's store does") -> None:
        self._hang_up()
        self._say(f"{self._host}:{self._port} {how}")

    def _say(self, what: str) -> None:
        if what != self._said:
            self._ears.say(f"waiting for the rendezvous: {what}")
            self._said = what

    def _end_job(self, heard: bytes) -> None:
        self.close()
        line = neutral(heard.decode("utf-8", "replace").strip().partition("\n")[0])[:_SHOWN]
        taken = EndpointTaken(now(), f"{self._host}:{self._port}", line)
        self._ears.emit(taken)
        self._ears.end_ranks(0, PeerFailed(now(), None, self._host, taken.said))
