"""Asks NCCL's RAS what it knows about the ranks, over a socket that is polled and never waited for.

RAS listens in the ranks' processes, on localhost:28028 or at NCCL_RAS_ADDR, and speaks lines of text
(src/ras/client.cc, NCCL 2.24 and newer). If some rank does not answer, RAS takes seconds and then says which ones did.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import final

from ddp_run.observe.ras_text import Missing, is_of, missing, read
from ddp_run.record import file_names
from ddp_run.record.events import MonotonicNs, Noted, RankStarted
from ddp_run.values.addresses import is_local
from ddp_run.values.private_files import open_private

PORT = 28028
WAIT_S = 6.0
"""How long to wait for an answer in total."""
_PEERS_S = 2
"""How long RAS should wait for other processes; it may take twice as long."""
_MOST = 1 << 20
_HELLO = b"CLIENT PROTOCOL 2\n"
_ANSWERED = b"SERVER PROTOCOL "
_QUESTION = b"TIMEOUT %d\nVERBOSE STATUS\n" % _PEERS_S


def addresses(environ: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Where ranks with this environment listen; empty if RAS is off or finding out would take a name server."""
    if environ.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return ()
    given = environ.get("NCCL_RAS_ADDR")
    host, colon, port = given.rpartition(":") if given else ("localhost", ":", str(PORT))
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return ()
    host = host.removeprefix("[").removesuffix("]")
    if host == "localhost":
        return (("127.0.0.1", int(port)), ("::1", int(port)))
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return ()
    if ip.is_unspecified:
        ip = ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    return ((str(ip), int(port)),)


class _At(Enum):
    CONNECTING = auto()
    GREETING = auto()
    ASKING = auto()
    OVER = auto()


@final
class RasQuery:
    """One question. Call `over` until it is true; `text` then holds the answer, empty if there is none.

    `why`: why the answer is missing or incomplete; None if it is complete, or if no communicator exists yet.
    """

    def __init__(self, places: tuple[tuple[str, int], ...], *, wait_s: float = WAIT_S) -> None:
        self._places = list(places)
        self._socket: socket.socket | None = None
        self._at = _At.OVER
        self._got = b""
        self._deadline = time.monotonic() + wait_s
        self.why: str | None = None
        self._next()

    @property
    def text(self) -> str:
        """The answer so far, without the handshake."""
        head, _, rest = self._got.partition(b"\n")
        return rest.removeprefix(b"OK\n").decode("utf-8", "replace") if head.startswith(_ANSWERED) else ""

    def over(self) -> bool:
        """Read what has come, and return whether the exchange has ended. Never waits."""
        while self._at is not _At.OVER:
            try:
                if not self._step():
                    break
            except OSError as error:
                if self._at is _At.CONNECTING:
                    self._next()
                else:
                    self._end(f"NCCL RAS connection failed: {error.strerror or error}")
        if self._at is not _At.OVER and time.monotonic() >= self._deadline:
            self._end("NCCL RAS did not respond in time")
        return self._at is _At.OVER

    def close(self) -> None:
        """Stop waiting."""
        self._end(self.why)

    def _step(self) -> bool:
        """Take one step, if possible without waiting; returns whether it was. Raises OSError."""
        if self._socket is None:
            return False
        if self._at is _At.CONNECTING:
            try:
                self._socket.getpeername()
            except OSError:
                failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if failed:
                    raise OSError(failed, os.strerror(failed)) from None
                return False
            self._at = _At.GREETING
            self._socket.send(_HELLO)  # a new connection has room for so few bytes
        try:
            got = self._socket.recv(1 << 16)
        except BlockingIOError:
            return False
        self._got += got
        if not got:
            self._end(None if self._at is _At.ASKING else "the service on the NCCL RAS port closed the connection")
        elif self._at is _At.GREETING and not self._got.startswith(_ANSWERED[: len(self._got)]):
            self._got = b""
            self._end("another service is listening on the NCCL RAS port")
        elif self._at is _At.GREETING and b"\n" in self._got:
            self._at = _At.ASKING
            self._socket.send(_QUESTION)
        elif len(self._got) > _MOST:
            self._end(f"NCCL RAS sent more than {_MOST >> 20} MiB; the rest was dropped")
        return True

    def _next(self) -> None:
        """Connect to the next address, if any. If none accepts, there is no communicator yet, which isn't an error."""
        self._end(None)
        while self._places:
            host, port = self._places.pop(0)
            try:
                self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                self._socket.setblocking(False)
                if self._socket.connect_ex((host, port)) in (0, errno.EINPROGRESS):
                    self._at = _At.CONNECTING
                    return
            except OSError:  # no such address family here
                pass
            self._end(None)

    def _end(self, why: str | None) -> None:
        self.why, self._at = why, _At.OVER
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@dataclass(frozen=True, slots=True)
class RasSays:
    """What RAS adds to a closer look: notes for the journal, the ranks it shows to be missing, and lines to quote."""

    notes: tuple[Noted, ...] = ()
    missing: Missing | None = None
    quotes: tuple[str, ...] = ()


@final
class NcclRas:
    """Asks the RAS of ranks started with `environ`, once per closer look, and keeps its answer in `folder`."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._places = addresses(environ)
        self._folder = folder
        self._question: RasQuery | None = None
        self._noted: set[str] = set()

    def ask(self) -> None:
        """Ask. One rank's RAS knows about all ranks on all nodes."""
        if self._places:
            self._question = RasQuery(self._places)
            self._question.over()  # so that it has greeted by the next turn

    def over(self) -> bool:
        """Whether no question is pending. Reads what has come; never waits."""
        return self._question is None or self._question.over()

    def end(self) -> None:
        """Drop the question."""
        if self._question is not None:
            self._question.close()
            self._question = None

    def says(self, at: MonotonicNs, alive: Sequence[RankStarted], world_size: int) -> RasSays:
        """The answer so far; ends the question. Empty if there is none, or if it is about another job."""
        question = self._question
        if question is None:
            return RasSays()
        self.end()
        notes = self._note(at, question.why)
        if not question.text:
            return RasSays(notes)
        report = read(question.text)
        pids = {event.pid: event.rank for event in alive}
        here = frozenset(node for node in {each.node for each in report.processes} if is_local(node))
        if not is_of(report, pids, here, world_size):
            return RasSays((*notes, *self._note(at, "NCCL RAS answered for another job on this host")))
        notes = (*notes, *self._note(at, self._keep(question.text)))
        quotes = ("NCCL RAS:", *report.quotes) if report.quotes else ()
        # The part that was cut off might contradict the rest.
        return RasSays(notes, missing(report, pids, here, world_size) if question.why is None else None, quotes)

    def _keep(self, text: str) -> str | None:
        """Write the answer to the folder. Returns why that failed, or None."""
        try:
            descriptor = open_private(self._folder / file_names.RAS, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"cannot write ras.txt: {error.strerror}"
        return None

    def _note(self, at: MonotonicNs, text: str | None) -> tuple[Noted, ...]:
        """A note, unless it was given before."""
        if text is None or text in self._noted:
            return ()
        self._noted.add(text)
        return (Noted(at, text),)
