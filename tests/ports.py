"""Ports for programs that must be told one: from outside the range that the kernel hands out to everybody else."""

from __future__ import annotations

import os
import socket
from itertools import count

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_numbers = count(20_000 + 1_000 * (_WORKER % 10) + os.getpid() % 900)


def unused_port() -> int:
    """One that nobody listens on, that no other process of this suite is given, and that the kernel gives nobody."""
    for port in _numbers:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                probe.listen()
            except OSError:
                continue
        return port
    raise AssertionError("there is no end of numbers")
