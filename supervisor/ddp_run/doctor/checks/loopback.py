"""Connections within this host, over which ranks and their agent talk."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.values.finding import Finding, failed

_LIMIT_S = 1.0


def _look(_around: Surroundings) -> Iterator[Finding]:
    try:
        with ExitStack() as stack:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.enter_context(socket.create_connection(server.getsockname(), timeout=_LIMIT_S))
    except OSError as error:
        helps = "ip -br address show lo; sudo ip link set lo up; sudo nft list ruleset"
        yield failed("loopback", str(error.strerror or error), "the ranks of a host meet at 127.0.0.1", helps)
        return
    yield Finding("loopback", "connects")


CHECK = Check(
    "loopback",
    Group.NETWORK,
    "Whether a connection to 127.0.0.1 works; fails if not, and no ranks are started on one node.",
    _look,
    ranks_need_it=True,
)
