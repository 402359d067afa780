"""Who answers where another node should be, and why nobody does.

In words, for a node that is silent or not reached. `Rival` asks at the master's address, `Endpoint` at the endpoint of
a c10d rendezvous.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct
from abc import ABC, abstractmethod
from functools import partial
from ipaddress import ip_address
from typing import final

from ddp_run.plan import net
from ddp_run.record.events import EndpointTaken, Event, NodeRankTaken, PeerFailed, RankStarted
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.link import Ended, Link, Opened, Reach, connecting, dial, of_errno
from ddp_run.supervise.nodes.messages import REDIAL_S, Join, Message, RankTaken
from ddp_run.supervise.nodes.place import SECRET, Ears, Place
from ddp_run.values.addresses import is_local
from ddp_run.values.lines import neutral

FIRST_S = 4.0
"""Before an endpoint is asked: meanwhile the agent loads torch, and opens the store if this is its host."""
_AGAIN_S, _ANSWER_S = 4.0, 2.0
"""Between an endpoint's answer and the next question to it; how long it has for an answer."""
_RESOLVE_S = 2.0
_GREETING = struct.pack("<BIB", 0, 0x3C85F7CE, 13)
"""Of torch's client: a number that a store knows, then a ping; four bytes that the store returns follow."""
_PROVOKES = b"\r\n\r\n\n"
"""Ends a request of programs that read lines: these answer with an error then. To a store it is a second ping."""
_SHOWN = 60
"""Characters of a foreign answer."""


# -------------------------------------------------------------------------------------- in words


def in_words(control: Reach, master: Reach, *, whose: str, control_port: int, master_port: int) -> str:
    """Why this node has not reached the hub. `control`: the port where nodes agree; `master`: torch's rendezvous;
    `whose`: they are this node's."""
    match control, master:
        case Reach.HUNG_UP, _:
            others = f"--nnodes, port, --rdzv-id or {SECRET} differs there, or another ddp-run has this node's place"
            return f"it closed the connection: {others}"
        case Reach.STRANGER, _:
            return f"the program on port {control_port} is not ddp-run: that host may not be {whose}"
        case Reach.REFUSED, Reach.STRANGER:
            master_answers = f"but a program answers on the master's port {master_port}"
            return f"connection refused on port {control_port}, {master_answers}: that host may not be {whose}"
        case Reach.REFUSED, _:
            return f"connection refused on port {control_port}: ddp-run is not started there, or it isn't {whose}"
        case Reach.SILENT, Reach.STRANGER | Reach.REFUSED:
            filtered = f"a firewall may drop packets to port {control_port}; --control-port chooses another"
            return f"no answer, while port {master_port} answers: {filtered}"
        case Reach.SILENT, _:
            ports = f"{min(control_port, master_port)} and {max(control_port, master_port)}"
            return f"no answer on ports {ports}: that host is down, or a firewall drops the packets"
        case _:
            return f"{control} (port {control_port})"


def command(control: Reach, *, address: str, control_port: int) -> str:
    """What to try, to be pasted."""
    if control in (Reach.SILENT, Reach.NO_ROUTE, Reach.FAILED):
        return f"ip route get {address}; nc -vz {address} {control_port}"
    return f"ssh {address} 'hostname; ss -ltnp'"


def if_this_host(address: str) -> str:
    """What to add if the hub's address is a loopback one, which every host has; else empty."""
    if not ip_address(address.partition("%")[0]).is_loopback:
        return ""
    return f"; {address} is this host: nodes on other hosts need another address of it"


def silence(for_s: float, *, answers: bool, has_route: bool) -> str:
    """What may be wrong with a silent node. `answers`: its host does; `has_route`: this host has a route to it."""
    if answers:
        why = "its host answers, so its ddp-run stands still: stopped, or starved of CPU"
    elif has_route:
        why = "its host does not answer either: it is down, or the network to it is cut"
    else:
        why = "this host has no route to it: the network of this host is down"
    return f"no sign of life for {for_s:g} s; {why}"


# ------------------------------------------------------------------------------------- questions to an address


class Question(ABC):
    """Asked again and again, until there is an answer or until ranks have started: then the nodes have met."""

    def __init__(self, ears: Ears) -> None:
        self._ears = ears

    def hear(self, event: Event) -> None:
        """A sink."""
        if isinstance(event, RankStarted):
            self.close()

    def close(self) -> None:
        """Stop asking."""
        self._hang_up()
        self._ears.loop.cancel_timer(self._ask)

    @abstractmethod
    def _ask(self) -> None:
        """Ask once, and set the timer for the next time."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Close the connection, if there is one."""


@final
class Rival(Question):
    """Is there another node 0 at the master's address? Asked by a node 0 without that address, or without its port.

    Behind address translation a host rightly doesn't have it, and any program may hold a port. So node 0 asks the
    program that answers there. Only a ddp-run of the same job counts, if it says that it is node 0.
    """

    def __init__(self, place: Place, ears: Ears) -> None:
        super().__init__(ears)
        self._place = place
        self._link: Link | None = None
        self._ask()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _ask(self) -> None:
        self.close()
        place = self._place
        where = (place.address, place.port, place.job_key)
        self._link = dial(self._ears.loop, *where, self._on_message, unlock=place.munge.open)
        self._ears.loop.set_timer(REDIAL_S, self._ask, lasting=True)

    def _on_message(self, link: Link, message: Message | Opened | Ended) -> None:
        place = self._place
        match message:
            case Opened():
                link.send(Join(place.node_rank, place.nodes, place.host, place.folder))
            case Ended():
                pass
            case RankTaken(host):
                self.close()
                end_for_rank(self._ears, place, 0, host)
            case _:  # this node's own answer, through its external address
                self.close()


def end_for_rank(ears: Ears, place: Place, attempt: int, taken_by: str) -> None:
    """End this node's part of a job in which another host has its node rank."""
    clash = NodeRankTaken(now(), place.node_rank or 0, taken_by, place.host)
    ears.emit(clash)
    ears.end_ranks(attempt, PeerFailed(now(), place.node_rank, taken_by, clash.said))


@final
class Endpoint(Question):
    """What answers at the endpoint of a c10d rendezvous: torch's store, another program, or nothing?

    torch waits a minute or more for a program that isn't its store, and says nothing. Its client greets a store with a
    number and a ping, which the store returns: torch/csrc/distributed/c10d/TCPStore.cpp, from 2.5 on. So this asks
    until a store answers. Another program there ends the job.
    """

    def __init__(self, host: str, port: int, ears: Ears) -> None:
        super().__init__(ears)
        self._host, self._port = host, port
        self._address: str | None = None
        self._socket: socket.socket | None = None
        self._nonce = self._heard = b""
        self._said: str | None = None
        ears.loop.set_timer(FIRST_S, self._ask, lasting=True)

    # ------------------------------------------------------------------------------------ one question

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
