"""Why a node can't reach another one, in words: from what its ports answered. Pure."""

from __future__ import annotations

import errno
from enum import StrEnum
from ipaddress import ip_address

SECRET = "DDP_RUN_SECRET"  # noqa: S105  # the name of a variable
"""The user's secret, the same on all nodes."""


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
