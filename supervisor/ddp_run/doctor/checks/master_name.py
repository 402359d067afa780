"""The name of node 0, and this host's own: what they resolve to."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.plan import net
from ddp_run.values.addresses import is_local
from ddp_run.values.finding import Finding, failed, warned

_OWN_NAME_S = 2.0


def _look(around: Surroundings) -> Iterator[Finding]:
    yield _own_name(around)
    options = around.options
    if options.master is None or not options.is_static:
        return
    name = f"master {options.master[0]}"
    try:
        found = around.master()
    except net.NoAddressYet as error:
        yield warned(name, "no address yet", f"{error.reason}; a launch goes on asking", *error.helps)
        return
    except net.Unresolvable as error:
        yield failed(name, "no usable address", error.reason, *error.helps)
        return
    if found is not None:
        yield judged(name, found.ip, node_rank=options.node_rank, local=is_local(found.ip))


def _own_name(around: Surroundings) -> Finding:
    """gloo takes the interface that the host's own name leads to, unless GLOO_SOCKET_IFNAME names one."""
    name = socket.gethostname()
    try:
        found = around.address_of(name, 0, _OWN_NAME_S)
    except net.Unresolvable as error:
        helps = f"echo '127.0.0.1 {name}' | sudo tee -a /etc/hosts   # or export GLOO_SOCKET_IFNAME=INTERFACE"
        return warned("own name", name, f"{error.reason}; gloo looks it up", helps)
    return Finding("own name", f"{name} -> {found.ip}")


def judged(name: str, ip: str, *, node_rank: int, local: bool) -> Finding:
    """Whether node 0, and no other node, is the host with the master's address."""
    if node_rank == 0 and not local:
        helps = "--master-addr: an address of node 0 (hostname -I), or another --node-rank here"
        return warned(name, ip, "not an address of this machine, which is node 0", helps)
    return Finding(name, ip, against="this machine" if local else "")


CHECK = Check(
    "master_name",
    Group.NETWORK,
    "What the master's name and this host's own resolve to; fails if the master's has no address that other nodes could"
    " use.",
    _look,
    place=1,
)
