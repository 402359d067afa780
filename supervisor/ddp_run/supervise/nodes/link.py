"""One connection between two nodes: lines of JSON with an HMAC, over TCP, without ever waiting.

The server speaks first, with a random text, and the client answers with another one. From then on every line is sealed
by a key made of both and the job's own. A line that is too long, or sealed with another key, ends the connection. So
does any other program on the port.
"""

from __future__ import annotations

import errno
import json
import secrets
import socket
import struct
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import final

from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.messages import Message, decode, encode
from ddp_run.values.addresses import is_local
from ddp_run.values.sealed import LONGEST_LINE, Seal, session_key
from ddp_run.values.typed_fields import frozen

_BACKLOG = 1024
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REST_S = 1.0
_GREETING_S = 10.0
"""How long a connection may stay open without saying which node it is."""
_FLUSH_S = 0.05
_KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 30_000),
)
"""tcp(7): after 15 s of silence, the kernel asks every 5 s; after the third question it gives up. What was sent and not
acknowledged is repeated for 30 s, which may become 50, as the time between two tries doubles."""
_LONGEST_GREETING = 1024
_TCP_INFO_BYTES, _LAST_ACK = 104, 56
"""Of `struct tcp_info` (linux/tcp.h): how much of it all kernels have, and where tcpi_last_ack_recv is, in ms."""
_TO_SERVER, _TO_CLIENT = "to server", "to client"


class Reach(StrEnum):
    """How far a connection to a port has come that is not open."""

    SILENT = "no answer"
    REFUSED = "connection refused"
    NO_ROUTE = "no route to host"
    STRANGER = "a program answers, but does not greet as ddp-run does"
    HUNG_UP = "connection closed"
    FAILED = "cannot connect"


_OF_ERRNO = {
    0: Reach.STRANGER,  # it took the connection, and closed it
    errno.ECONNRESET: Reach.STRANGER,
    errno.ECONNREFUSED: Reach.REFUSED,
    errno.ETIMEDOUT: Reach.SILENT,
    errno.EHOSTUNREACH: Reach.NO_ROUTE,
    errno.ENETUNREACH: Reach.NO_ROUTE,
    errno.EHOSTDOWN: Reach.NO_ROUTE,
}


def of_errno(code: int) -> Reach:
    """What the end of a connection says that was dialled and never greeted; 0: it was closed, or spoke otherwise."""
    return _OF_ERRNO.get(code, Reach.FAILED)


@frozen
class Opened:
    """Both sides have greeted."""


@frozen
class Ended:
    """The connection has failed, or the other side has ended it: the last thing that is heard of it."""


Unlock = Callable[[str | None], bytes | None]
"""Gets the secret out of a server's credential; empty if it needs none, None if it can't."""
Hear = Callable[["Link", Message | Opened | Ended], None]


@final
class Listener:
    """Listens at node 0's own address; at all of them if that address is another machine's (address translation).

    `welcome` makes a link of each connection. `room`: how many may be open that have not said which node they are.
    """

    def __init__(
        self, loop: Loop, address: str, port: int, welcome: Callable[[socket.socket], Link], room: Callable[[], int]
    ) -> None:
        """Raises OSError if the port can't be had."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        bound = address if is_local(address) else ("::" if family == socket.AF_INET6 else "0.0.0.0")  # noqa: S104
        self._loop, self._welcome, self._room = loop, welcome, room
        self._strangers: dict[Link, None] = {}
        """The oldest first."""
        self._socket = socket.create_server((bound, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Listen no longer, and end what strangers have opened."""
        self._loop.cancel_timer(self._listen)
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        for link in self._strangers:
            link.close()

    def is_no_stranger(self, link: Link) -> None:
        """It has said which node it is, or it has ended."""
        self._strangers.pop(link, None)

    def look(self, moment: float) -> None:
        """Once a second: end what has been open for too long without a word."""
        for link in [link for link in self._strangers if moment - link.began_at > _GREETING_S]:
            link.close()
            del self._strangers[link]

    def _listen(self) -> None:
        self._loop.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connected, _address = self._socket.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:  # it stays readable, so the loop would never rest
                self._loop.unwatch(self._socket.fileno())
                self._loop.set_timer(_REST_S, self._listen, lasting=True)
            return
        self._strangers[self._welcome(connected)] = None
        if len(self._strangers) > self._room():  # a node says at once who it is
            oldest = next(iter(self._strangers))
            oldest.close()
            del self._strangers[oldest]


def connecting(address: str, port: int) -> tuple[socket.socket, int]:
    """Begin to connect, without waiting. Returns the socket and an errno: EINPROGRESS, 0 if it is done, or why not.

    Raises OSError if this process can't have another socket.
    """
    begun = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    begun.setblocking(False)
    try:
        return begun, begun.connect_ex((address, port))
    except socket.gaierror:  # of a link-local address: there is no such interface
        return begun, errno.ENODEV


def dial(
    loop: Loop, address: str, port: int, job_key: bytes, hear: Hear, *, unlock: Unlock | None = None
) -> Link | None:
    """Connect to a node that listens. None if this process can't have another socket."""
    try:
        dialling, code = connecting(address, port)
    except OSError:
        return None
    link = Link(loop, dialling, job_key, hear, is_server=False, unlock=unlock)
    if code not in (0, errno.EINPROGRESS):
        loop.set_timer(0.0, partial(link.fail, code), key=link, lasting=True)
    return link


def _watch_host(connected: socket.socket) -> None:
    """Have the kernel ask the other host's, which answers for a ddp-run that is stopped (Ctrl-Z)."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


@final
class Link:
    """A socket that is connected, or being connected. `hear` gets what comes, from `Opened` to `Ended`.

    `credential`: what a server shows so that others can `unlock` the secret that belongs to the key.
    """

    def __init__(
        self,
        loop: Loop,
        connected: socket.socket,
        job_key: bytes,
        hear: Hear,
        *,
        is_server: bool,
        credential: str | None = None,
        unlock: Unlock | None = None,
    ) -> None:
        self._unlock = unlock
        self._loop, self._socket, self._job_key, self._hear, self._is_server = loop, connected, job_key, hear, is_server
        self._incoming, self._outgoing = b"", b""
        self._seals: tuple[Seal, Seal] | None = None
        """For what goes out and for what comes in; None until both have greeted."""
        self._mine = secrets.token_hex(16)
        self._closed = False
        self._failed = 0
        """The errno with which it ended."""
        self.began_at = self.heard_at = time.monotonic()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _watch_host(connected)
        loop.watch(connected.fileno(), self._read)
        if is_server:
            shown = {"munge": credential} if credential is not None else {}
            self._write(json.dumps({"ddp-run": 1, "challenge": self._mine, **shown}).encode() + b"\n")

    @property
    def is_open(self) -> bool:
        """Whether both have greeted and it has not ended."""
        return self._seals is not None and not self._closed

    @property
    def reach(self) -> Reach:
        """How far a connection came that was dialled and isn't open. A server that is ddp-run greets at once."""
        if self._seals is not None:
            return Reach.HUNG_UP
        if self._closed:
            return of_errno(self._failed)
        return Reach.SILENT if self.peer is None else Reach.STRANGER

    @property
    def peer(self) -> str | None:
        """The other host's address; None if it is not connected."""
        try:
            return str(self._socket.getpeername()[0])
        except OSError:
            return None

    def acknowledged_within(self, seconds: float) -> bool:
        """Whether the other host has acknowledged bytes in this time; it does even if its ddp-run stands still."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return int(struct.unpack_from("I", info, _LAST_ACK)[0]) < seconds * 1000
        except (OSError, struct.error):  # it is closed
            return False

    def send(self, message: Message) -> None:
        """Send it if the connection is open; what does not go at once goes later."""
        if self._seals is not None and not self._closed:
            self._write(self._seals[0].close(encode(message)))

    def close(self) -> None:
        """End it; what could not be sent at once is lost. `hear` is not told."""
        if not self._closed:
            self._closed = True
            self._loop.cancel_timer(self)
            self._loop.cancel_timer(self._flush)
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()

    def fail(self, code: int = 0) -> None:
        """It can't go on, for this errno. 0: the other side closed it, or said something that isn't of this job."""
        if not self._closed:
            self._failed = code
            self.close()
            self._hear(self, Ended())

    # ------------------------------------------------------------------------------------ bytes

    def _write(self, line: bytes) -> None:
        self._outgoing += line
        self._flush()

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.fail(error.errno or 0)
            return
        self._outgoing = self._outgoing[sent:]
        if self._outgoing:
            self._loop.set_timer(_FLUSH_S, self._flush, lasting=True)

    def _read(self) -> None:
        try:
            self._take_in()
        except Exception:  # whatever another node sends must not end this node's job
            self.fail()

    def _take_in(self) -> None:
        failed: int | None = None
        while failed is None and len(self._incoming) <= 2 * LONGEST_LINE:
            try:
                got = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError as error:
                failed = error.errno or 0
            else:
                self._incoming += got
                failed = None if got else 0
        self._take_lines()
        if failed is not None:
            self.fail(failed)

    def _take_lines(self) -> None:
        while not self._closed and b"\n" in self._incoming:
            line, _end, self._incoming = self._incoming.partition(b"\n")
            self.heard_at = time.monotonic()
            if self._seals is None:
                self._greeted(line)
            elif (message := decode(self._seals[1].open(line))) is not None:
                self._hear(self, message)
        if len(self._incoming) > (LONGEST_LINE if self._seals is not None else _LONGEST_GREETING):
            raise ValueError("the line is too long")

    def _greeted(self, line: bytes) -> None:
        given = json.loads(line[:_LONGEST_GREETING])
        theirs = given.get("nonce" if self._is_server else "challenge") if isinstance(given, dict) else None
        if not isinstance(theirs, str) or not 16 <= len(theirs) <= 128:
            raise ValueError("not a greeting of ddp-run")
        challenge, nonce = (self._mine, theirs) if self._is_server else (theirs, self._mine)
        secret: bytes | None = b""
        if self._unlock is not None:
            credential = given.get("munge")
            secret = self._unlock(credential if isinstance(credential, str) else None)
        if secret is None:
            self.fail()
            return
        key = session_key(self._job_key + secret, challenge, nonce)
        to_server, to_client = Seal(key, _TO_SERVER), Seal(key, _TO_CLIENT)
        if not self._is_server:
            self._write(json.dumps({"nonce": self._mine}).encode() + b"\n")
        self._seals = (to_client, to_server) if self._is_server else (to_server, to_client)
        self._hear(self, Opened())
