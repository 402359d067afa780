"""The master's ports: free on node 0, and not silent for the other nodes."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.plan import net
from ddp_run.values.addresses import Resolved, is_local
from ddp_run.values.finding import Finding, failed, warned

_LIMIT_S = 1.0
_HELPS_SILENT = "ip route get {ip}; nc -vz {ip} {port}   # on node 0: sudo nft list ruleset; cloud: security groups"


def _look(around: Surroundings) -> Iterator[Finding]:
    options = around.options
    if options.master is None or not options.is_static:
        return
    try:
        found = around.master()
    except net.Unresolvable:
        return  # told by master_name
    port = options.master[1]
    if found is None or port is None:
        return
    ports = [port] if options.max_nodes == 1 else [port, options.control_port or port + 1]
    if options.node_rank != 0:
        for each, code in _dialled(found, ports).items():
            yield answered(found.ip, each, code)
    elif is_local(found.ip):
        for each in ports:
            yield free(each, net.port_is_free(each, found.ip), net.port_holder(each))


def free(port: int, is_free: bool, holder: net.Holder | None) -> Finding:
    """On node 0, where a launch will listen."""
    if is_free:
        return Finding(f"port {port}", "free")
    who = f"pid {holder.pid} ({holder.name})" if holder is not None and holder.pid is not None else "another process"
    helps = f"--master-port: another one   # ss -ltnp 'sport = :{port}'"
    return failed(f"port {port}", "taken", f"{who} listens there, and the rendezvous cannot", helps)


def _dialled(to: Resolved, ports: Sequence[int]) -> dict[int, int]:
    """By port, the error number of connect(2), 0 where somebody answers; all at the same time."""
    codes = dict.fromkeys(ports, errno.ETIMEDOUT)
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for port in ports:
            probe = stack.enter_context(socket.socket(to.family, socket.SOCK_STREAM))
            probe.setblocking(False)
            code = probe.connect_ex((to.ip, port))
            if code == errno.EINPROGRESS:
                selector.register(probe, selectors.EVENT_WRITE, port)
            else:
                codes[port] = code
        until = time.monotonic() + _LIMIT_S
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _events in selector.select(left):
                codes[key.data] = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]
                selector.unregister(key.fileobj)
    return codes


def answered(ip: str, port: int, code: int) -> Finding:
    """What node 0 said to another node. Refused is an answer: nobody listens there before the start."""
    name, helps = f"{ip}:{port}", _HELPS_SILENT.format(ip=ip, port=port)
    if code == 0:
        return Finding(name, "somebody listens")
    if code == errno.ECONNREFUSED:
        return Finding(name, "reachable, nobody listens yet")
    if code == errno.ETIMEDOUT:
        return warned(name, f"no answer in {_LIMIT_S:.0f} s", "that host is down, or a firewall drops packets", helps)
    return warned(name, os.strerror(code), "node 0 cannot be reached", helps)


CHECK = Check(
    "ports",
    Group.NETWORK,
    "On node 0, whether the master's port and ddp-run's own (one above) are free; on other nodes, whether node 0"
    " answers there. Fails if one is taken; warns of silence, which a firewall causes.",
    _look,
)
