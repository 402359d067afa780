"""Asks NCCL's RAS what it knows about the ranks, in a separate process that may wait for the answer.

RAS listens in the ranks' processes, on localhost:28028 or at NCCL_RAS_ADDR, and speaks lines of text
(src/ras/client.cc, NCCL 2.24 and newer). If some rank does not answer, RAS takes seconds and then says which ones did.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ddp_run.observe.ras_text import Missing, is_of, missing, read
from ddp_run.record import file_names
from ddp_run.record.events import MonotonicNs, Noted, RankStarted
from ddp_run.values.addresses import is_local
from ddp_run.values.helper_process import HelperProcess, HelperProcesses, fork
from ddp_run.values.private_files import open_private

PORT = 28028
WAIT_S = 6.0
"""How long to wait for an answer in total."""
_PEERS_S = 2
"""How long RAS should wait for other processes; it may take twice as long."""
_MOST, _PIECE = 1 << 20, 1 << 16
_LONGEST_GREETING = 200
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


def ask(places: Sequence[tuple[str, int]], *, within_s: float = WAIT_S) -> HelperProcess:
    """Ask the first of these addresses that accepts, in a separate process. Raises OSError."""
    return fork(lambda fd: _ask(places, fd), within_s)


def answer(process: HelperProcess) -> tuple[str, str | None]:
    """The answer so far, empty if there is none, and why it's missing or incomplete.

    The reason is None if the answer is complete, or if nobody listens: then no communicator exists yet.
    """
    said, over = process.read()
    text, _, why = said.partition(b"\0")
    return text.decode("utf-8", "replace"), (why.decode() or None) if over else "NCCL RAS did not respond in time"


def _ask(places: Sequence[tuple[str, int]], fd: int) -> None:
    """Write the answer to `fd` as it comes, and then, after a NUL, why it ended early."""
    why = ""
    for host, port in places:
        try:
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            connection.connect((host, port))
        except OSError:  # nobody listens, or no such address family here
            continue
        try:
            why = _converse(connection, fd)
        except OSError as error:
            why = f"NCCL RAS connection failed: {error.strerror or error}"
        break
    os.write(fd, b"\0" + why.encode())


def _converse(connection: socket.socket, fd: int) -> str:
    """Ask, and copy the answer. Returns why it isn't complete, or an empty string. Raises OSError."""
    connection.sendall(_HELLO)
    lines = connection.makefile("rb", buffering=0)
    greeting = lines.readline(_LONGEST_GREETING)
    if not _ANSWERED.startswith(greeting[: len(_ANSWERED)]):
        return "another service is listening on the NCCL RAS port"
    if not greeting.endswith(b"\n"):
        return "the service on the NCCL RAS port closed the connection"
    connection.sendall(_QUESTION)
    room = _MOST
    got = lines.readline(3).removeprefix(b"OK\n") or lines.read(_PIECE)
    while got and room > 0:
        os.write(fd, got)
        room -= len(got)
        got = lines.read(_PIECE)
    if not got:
        return ""
    return f"NCCL RAS sent more than {_MOST >> 20} MiB; the rest was dropped"


@dataclass(frozen=True, slots=True)
class RasSays:
    """What RAS adds to a closer look: notes for the journal, the ranks it shows to be missing, and lines to quote."""

    notes: tuple[Noted, ...] = ()
    missing: Missing | None = None
    quotes: tuple[str, ...] = ()


@final
class NcclRas:
    """Asks the RAS of ranks started with `environ`, once per closer look, and keeps its answer in `folder`."""

    def __init__(self, environ: Mapping[str, str], folder: Path, helpers: HelperProcesses) -> None:
        self._places = addresses(environ)
        self._folder = folder
        self._helpers = helpers
        self._question: HelperProcess | None = None
        self._noted: set[str] = set()

    def ask(self) -> None:
        """Ask. One rank's RAS knows about all ranks on all nodes."""
        if self._places:
            try:
                self._question = ask(self._places)
            except OSError:
                return
            self._helpers.add(self._question)

    def over(self) -> bool:
        """Whether no answer is awaited. Reads what has come; never waits."""
        return self._question is None or self._question.read()[1] or self._question.late

    def end(self) -> None:
        """Drop the question."""
        if self._question is not None:
            self._question.end()
            self._question = None

    def says(self, at: MonotonicNs, alive: Sequence[RankStarted], world_size: int) -> RasSays:
        """The answer so far; ends the question. Empty if there is none, or if it is about another job."""
        if self._question is None:
            return RasSays()
        text, why = answer(self._question)
        self.end()
        reasons, found = [why], None
        quotes: tuple[str, ...] = ()
        report = read(text)
        pids = {event.pid: event.rank for event in alive}
        here = frozenset(node for node in {each.node for each in report.processes} if is_local(node))
        if text and is_of(report, pids, here, world_size):
            reasons.append(self._keep(text))
            quotes = ("NCCL RAS:", *report.quotes) if report.quotes else ()
            if why is None:  # the part that was cut off might contradict the rest
                found = missing(report, pids, here, world_size)
        elif text:
            reasons.append("NCCL RAS answered for another job on this host")
        fresh = [reason for reason in reasons if reason is not None and reason not in self._noted]
        self._noted.update(fresh)
        return RasSays(tuple(Noted(at, reason) for reason in fresh), found, quotes)

    def _keep(self, text: str) -> str | None:
        """Write the answer to the folder. Returns why that failed, or None."""
        try:
            descriptor = open_private(self._folder / file_names.RAS, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"cannot write ras.txt: {error.strerror}"
        return None
