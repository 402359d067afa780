"""The network: names, the way to node 0, loopback, node 0's ports, InfiniBand and RoCE."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddp_run.doctor.check import Group, Surroundings, check, kernel_value
from ddp_run.doctor.findings import Finding, failed, skipped, warned
from ddp_run.plan import net
from ddp_run.plan.checks import interfaces as named_interfaces
from ddp_run.values.addresses import Resolved, is_local
from ddp_run.values.typed_fields import frozen

_LIMIT_S = 1.0
_OWN_NAME_S = 2.0


@check(Group.NETWORK, "host names")
def master_name(around: Surroundings) -> Iterator[Finding]:
    """What the master's name and this host's own resolve to; fails if the master's has no address that other nodes can
    use."""
    yield _own_name(around)
    if around.options.master is None:
        return
    name, found = f"master {around.options.master[0]}", around.master()
    if isinstance(found, net.NoAddressYet):
        yield warned(name, "no address yet", f"{found.reason}; a launch keeps asking", *found.helps)
    elif isinstance(found, net.Unresolvable):
        yield failed(name, "no usable address", found.reason, *found.helps)
    elif found is not None:
        yield master_address(name, found.ip, node_rank=around.options.node_rank, local=is_local(found.ip))


def _own_name(around: Surroundings) -> Finding:
    """gloo uses the interface that the host's own name leads to, unless GLOO_SOCKET_IFNAME names one."""
    try:
        found = around.address_of(around.host, 0, _OWN_NAME_S)
    except net.Unresolvable as error:
        helps = f"echo '127.0.0.1 {around.host}' | sudo tee -a /etc/hosts   # or export GLOO_SOCKET_IFNAME=INTERFACE"
        return warned("own name", around.host, f"{error.reason}; gloo looks it up", helps)
    return Finding("own name", f"{around.host} -> {found.ip}")


def master_address(name: str, ip: str, *, node_rank: int, local: bool) -> Finding:
    """Judge whether node 0 has the master's address."""
    if node_rank == 0 and not local:
        helps = "--master-addr: an address of node 0 (hostname -I), or another --node-rank here"
        return warned(name, ip, "this machine is node 0 but doesn't have this address", helps)
    return Finding(name, ip, against="this machine" if local else "")


_OF_ONE_HOST = ("lo", "docker", "virbr", "cni", "podman")
_LEAST_MBIT = 1000
_LEAST_MTU = 1280


@frozen
class Interface:
    """A network interface. `speed` in Mbit/s: None if the driver doesn't tell, as virtual ones don't."""

    name: str
    ip: str
    speed: int | None
    mtu: int | None


@check(Group.NETWORK, "network interfaces")
def interfaces(around: Surroundings) -> Iterator[Finding]:
    """The interface and route to the master, its MTU and speed; interfaces that `GLOO_SOCKET_IFNAME` and
    `NCCL_SOCKET_IFNAME` name; fails without a route, or if one doesn't exist."""
    options = around.options
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if value := around.environ.get(variable):
            master = options.master[0] if options.master is not None else None
            wrong = named_interfaces.judged(variable, value, net.interfaces(), master)
            used = variable.startswith("GLOO") or around.has_driver
            yield named_interface(variable, value, wrong, several=options.max_nodes > 1, used=used)
    if options.max_nodes == 1 or (node_0 := around.known_master()) is None:
        return
    if (interface := towards_master(around)) is not None:
        yield interface_found(interface)
    else:
        helps = f"ip route get {node_0.ip}; ip -br address"
        yield failed("interface", "no route", f"this host has no route to the master {node_0.ip}", helps)


def towards_master(around: Surroundings) -> Interface | None:
    """Return the interface that packets to node 0 leave by; None without a route or an address."""
    master = around.known_master()
    route = net.route_to(master.ip) if master is not None else None
    if route is None:
        return None
    speed = kernel_value(Path("/sys/class/net") / route.interface / "speed")  # -1 if unknown
    known = int(speed) if speed.isdigit() else 0
    return Interface(route.interface, route.ip, known or None, net.mtu_of(route.interface))


def interface_found(interface: Interface) -> Finding:
    """Judge whether other hosts can be reached through an interface, and how fast it is."""
    speed = f"{interface.speed / 1000:g} Gbit/s" if interface.speed is not None else "speed unknown"
    name, value = f"interface {interface.name}", f"{interface.ip}, MTU {interface.mtu or 'unknown'}, {speed}"
    if interface.name.startswith(_OF_ONE_HOST):
        helps = "--master-addr: an address of node 0 that the other nodes can reach (hostname -I there)"
        return warned(name, value, "it leads to this host only: nodes on other hosts can't be reached", helps)
    if interface.mtu is not None and interface.mtu < _LEAST_MTU:
        return warned(name, value, f"MTU below {_LEAST_MTU}", f"ip link show {interface.name}")
    if interface.speed is not None and interface.speed < _LEAST_MBIT:
        against = "below 1 Gbit/s: gradients of 1 GB take many seconds in each step"
        return warned(name, value, against, "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME: a faster one (ip -br link)")
    return Finding(name, value)


def named_interface(
    variable: str, value: str, wrong: named_interfaces.Found | None, *, several: bool, used: bool
) -> Finding:
    """Judge an interface that a variable names. `used`: whether ranks on this host use the variable's library."""
    if wrong is None or not (several or wrong.certain):  # one node needs no way to another
        return Finding(variable, value)
    grade = failed if wrong.certain and used else warned
    return grade(variable, value, wrong.problem.title.removeprefix(f"{variable}={value}: "), *wrong.problem.helps)


@check(Group.NETWORK, "the loopback", ranks_need_it=True)
def loopback(_around: Surroundings) -> Iterator[Finding]:
    """Whether a connection to 127.0.0.1 works; if not, it fails, and no ranks are started on one node."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_LIMIT_S).close()
    except OSError as error:
        helps = "ip -br address show lo; sudo ip link set lo up; sudo nft list ruleset"
        yield failed("loopback", error.strerror or str(error), "the ranks of a host meet at 127.0.0.1", helps)
    else:
        yield Finding("loopback", "connects")


@check(Group.NETWORK, "node 0's ports")
def ports(around: Surroundings) -> Iterator[Finding]:
    """On node 0, whether the master's port and ddp-run's own (one above) are free; on other nodes, whether node 0
    answers there. Fails if one is taken; warns of silence, which a firewall causes."""
    options, master = around.options, around.known_master()
    if master is None or options.master is None or (port := options.master[1]) is None:
        return
    wanted = [port] if options.max_nodes == 1 else [port, options.control_port or port + 1]
    if options.node_rank != 0:
        for each, code in _dialed(master, wanted).items():
            yield port_answer(master.ip, each, code)
    elif is_local(master.ip):
        for each in wanted:
            yield own_port(each, net.port_is_free(each, master.ip), net.port_holder(each))


def own_port(port: int, is_free: bool, holder: net.Holder | None) -> Finding:
    """Judge a port of node 0, where a launch will listen."""
    if is_free:
        return Finding(f"port {port}", "free")
    who = f"pid {holder.pid} ({holder.name})" if holder is not None and holder.pid is not None else "another process"
    helps = f"--master-port: another one   # ss -ltnp 'sport = :{port}'"
    return failed(f"port {port}", "taken", f"{who} listens there, so the rendezvous can't", helps)


def _dialed(to: Resolved, ports: Sequence[int]) -> dict[int, int]:
    """Dial all ports at once. Returns the error number of connect(2) for each; 0 if something answers."""

    def dial(port: int) -> int:
        try:
            socket.create_connection((to.ip, port), timeout=_LIMIT_S).close()
        except OSError as error:
            return error.errno or errno.ETIMEDOUT
        return 0

    with ThreadPoolExecutor() as pool:
        return dict(zip(ports, pool.map(dial, ports), strict=True))


def port_answer(ip: str, port: int, code: int) -> Finding:
    """Judge node 0's answer to another node. "Refused" is fine: nothing listens there before the start."""
    name = f"{ip}:{port}"
    if code == 0:
        return Finding(name, "something listens")
    if code == errno.ECONNREFUSED:
        return Finding(name, "reachable, nothing listens yet")
    value, against = os.strerror(code), "node 0 can't be reached"
    if code == errno.ETIMEDOUT:
        value, against = f"no answer in {_LIMIT_S:.0f} s", "that host is down, or a firewall drops packets"
    helps = f"ip route get {ip}; nc -vz {ip} {port}   # on node 0: sudo nft list ruleset; cloud: security groups"
    return warned(name, value, against, helps)


@check(Group.NETWORK, "InfiniBand and RoCE")
def rdma(_around: Surroundings) -> Iterator[Finding]:
    """State and rate of InfiniBand and RoCE ports, which NCCL prefers to TCP; warns if one is not active."""
    found = sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
    if not found:
        yield skipped("InfiniBand, RoCE", "none on this host")
    for port in found:
        yield rdma_port(port.parents[1].name, port.name, kernel_value(port / "state"), kernel_value(port / "rate"))


def rdma_port(device: str, port: str, state: str, rate: str) -> Finding:
    """Judge a port. `state`: `4: ACTIVE`, `1: DOWN`, empty if unknown. One that's down often just has no cable."""
    name, state = f"{device} port {port}", state.rpartition(" ")[2].lower()
    if state in ("active", ""):
        return Finding(name, f"{state or 'state unknown'}, {rate or 'rate unknown'}")
    helps = f"ibstat {device}   # if nothing should be connected there: export NCCL_IB_HCA=^{device}"
    return warned(name, state, "NCCL can't use a port that isn't active", helps)
