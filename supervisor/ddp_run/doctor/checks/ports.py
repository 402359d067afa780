"""The master's ports: free on node 0, and not silent for the other nodes."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.plan import net
from ddp_run.values.addresses import is_local
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
    for each in ports:
        if options.node_rank == 0 and is_local(found.ip):
            yield free(each, net.port_is_free(each, found.ip), net.port_holder(each))
        elif options.node_rank != 0:
            yield answered(found.ip, each, _dial(found.ip, each, found.family))


def free(port: int, is_free: bool, holder: net.Holder | None) -> Finding:
    """On node 0, where a launch will listen."""
    if is_free:
        return Finding(f"port {port}", "free")
    who = f"pid {holder.pid} ({holder.name})" if holder is not None and holder.pid is not None else "another process"
    helps = f"--master-port: another one   # ss -ltnp 'sport = :{port}'"
    return failed(f"port {port}", "taken", f"{who} listens there, and the rendezvous cannot", helps)


def _dial(ip: str, port: int, family: socket.AddressFamily) -> int:
    """The error number of connect(2), 0 where somebody answers."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_LIMIT_S)
        try:
            probe.connect((ip, port))
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def answered(ip: str, port: int, code: int) -> Finding:
    """What node 0 said to another node. Refused is an answer: nobody listens there before the start."""
    name, helps = f"{ip}:{port}", _HELPS_SILENT.format(ip=ip, port=port)
    if code == 0:
        return Finding(name, "somebody listens")
    if code == errno.ECONNREFUSED:
        return Finding(name, "reachable, nobody listens yet")
    if code == errno.ETIMEDOUT:
        return warned(name, f"no answer in {_LIMIT_S:.0f} s", "that host is down, or a firewall drops packets", helps)
    return warned(name, errno.errorcode.get(code, str(code)), "node 0 cannot be reached", helps)


CHECK = Check(
    "ports",
    Group.NETWORK,
    "On node 0, whether the master's port and ddp-run's own (one above) are free; on other nodes, whether node 0"
    " answers there. Fails if one is taken; warns of silence, which a firewall causes.",
    _look,
)
