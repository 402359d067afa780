"""One connection between two nodes: lines of JSON with an HMAC, over TCP, without ever waiting.

The server speaks first, with a random text; the client answers with another one, and from then on every line is sealed
by a key made of both and the job's own. Whoever does not have that key, a web server on the port, or a line that is too
long ends the connection.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import final

from ddp_run.supervise.loop import Loop
from ddp_run.supervise.nodes.messages import Message, decode, encode
from ddp_run.values.sealed import LONGEST_LINE, Seal, session_key

_FLUSH_S = 0.05
_LONGEST_GREETING = 1024
_TCP_INFO_BYTES, _LAST_ACK = 104, 56
"""Of `struct tcp_info` (linux/tcp.h): how much of it all kernels have, and where tcpi_last_ack_recv is, in ms."""
_TO_SERVER, _TO_CLIENT = "to server", "to client"


@final
class Link:
    """A connected socket. `on_open`: both have greeted; `on_message`: what comes; `on_end`: why it ended, once."""

    def __init__(
        self,
        loop: Loop,
        connected: socket.socket,
        job_key: bytes,
        *,
        is_server: bool,
        on_open: Callable[[Link], None],
        on_message: Callable[[Link, Message], None],
        on_end: Callable[[Link, str], None],
    ) -> None:
        self._loop, self._socket, self._job_key, self._is_server = loop, connected, job_key, is_server
        self._on_open, self._on_message, self._on_end = on_open, on_message, on_end
        self._incoming, self._outgoing = b"", b""
        self._seals: tuple[Seal, Seal] | None = None
        """For what goes out and for what comes in; null until both have greeted."""
        self._mine = secrets.token_hex(16)
        self._closed = False
        self.heard_at = time.monotonic()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(connected.fileno(), self._read)
        if is_server:
            self._write(json.dumps({"ddp-run": 1, "challenge": self._mine}).encode() + b"\n")

    @property
    def is_open(self) -> bool:
        """Whether both have greeted and it has not ended."""
        return self._seals is not None and not self._closed

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    @property
    def has_greeted(self) -> bool:
        """Whether the other side is a ddp-run, to all appearances: it has greeted as one."""
        return self._seals is not None

    @property
    def peer(self) -> str | None:
        """The other host's address; null once the connection is closed."""
        try:
            return str(self._socket.getpeername()[0])
        except OSError:
            return None

    def acknowledged_within(self, seconds: float) -> bool:
        """Whether the other host has acknowledged bytes since then, as it does while its ddp-run stands still."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return int(struct.unpack_from("I", info, _LAST_ACK)[0]) < seconds * 1000
        except (OSError, struct.error):  # it is closed
            return False

    def send(self, message: Message) -> None:
        """Send it, where the connection is open; what does not go at once goes later."""
        if self._seals is not None and not self._closed:
            self._write(self._seals[0].close(encode(message)))

    def close(self) -> None:
        """End it, with what could be sent at once; nobody is told."""
        if self._closed:
            return
        self._closed = True
        self._loop.cancel_timer(self._flush)
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

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
            self._end(_reason(error))
            return
        self._outgoing = self._outgoing[sent:]
        if self._outgoing:
            self._loop.set_timer(_FLUSH_S, self._flush, lasting=True)

    def _read(self) -> None:
        try:
            self._take_in()
        except Exception as error:  # whatever another node sends is no reason for this one's job to end
            self._end(f"{type(error).__name__}: {error}")

    def _take_in(self) -> None:
        over: str | None = None
        while over is None:
            try:
                got = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError as error:
                over = _reason(error)
                break
            if not got:
                over = "closed the connection"
            self._incoming += got
            if len(self._incoming) > 2 * LONGEST_LINE:
                break
        self._take_lines()
        if over is not None and not self._closed:
            self._end(over)

    def _take_lines(self) -> None:
        while not self._closed and b"\n" in self._incoming:
            line, _end, self._incoming = self._incoming.partition(b"\n")
            self.heard_at = time.monotonic()
            try:
                if self._seals is None:
                    self._greeted(line)
                    continue
                message = decode(self._seals[1].open(line))
            except ValueError as error:
                self._end(f"sent what is no message of this job: {error}")
                return
            if message is not None:
                self._on_message(self, message)
        if len(self._incoming) > (LONGEST_LINE if self._seals is not None else _LONGEST_GREETING):
            self._end("sent a line that is too long")

    def _greeted(self, line: bytes) -> None:
        given = json.loads(line[:_LONGEST_GREETING])
        theirs = given.get("nonce" if self._is_server else "challenge") if isinstance(given, dict) else None
        if not isinstance(theirs, str) or not 16 <= len(theirs) <= 128:
            raise ValueError("no greeting of ddp-run")
        challenge, nonce = (self._mine, theirs) if self._is_server else (theirs, self._mine)
        key = session_key(self._job_key, challenge, nonce)
        to_server, to_client = Seal(key, _TO_SERVER), Seal(key, _TO_CLIENT)
        if not self._is_server:
            self._write(json.dumps({"nonce": self._mine}).encode() + b"\n")
        self._seals = (to_client, to_server) if self._is_server else (to_server, to_client)
        self._on_open(self)

    def _end(self, why: str) -> None:
        self.close()
        self._on_end(self, why)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
