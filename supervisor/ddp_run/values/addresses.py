"""IP addresses as people write them, and whether one is this host's."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resolved:
    """A name's address. `family` is socket.AF_INET or socket.AF_INET6."""

    ip: str
    family: socket.AddressFamily


def literal_address(name: str) -> Resolved | None:
    """The address in the text, with or without brackets; None if it is a name."""
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None
    return Resolved(name.strip("[]"), socket.AF_INET if address.version == 4 else socket.AF_INET6)


def is_this_host(name: str, ip: str) -> bool:
    """Whether that is this host's own name, or one of its addresses: so torch finds the host of a c10d store, too.

    Source: torch 2.13, elastic/rendezvous/utils.py, `_matches_machine_hostname`.
    """
    return name == socket.gethostname() or is_local(ip)


def is_local(ip: str) -> bool:
    """Whether the address is one of this host's: the kernel lets a socket be bound to it. Sends nothing."""
    literal = literal_address(ip)
    if literal is None:
        return False
    try:
        with socket.socket(literal.family, socket.SOCK_DGRAM) as probe:
            probe.bind((literal.ip, 0))
    except OSError:
        return False
    return True
