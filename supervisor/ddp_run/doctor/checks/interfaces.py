"""The interface towards the master: its speed and MTU, and what GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddp_run.doctor.check import Check, Group
from ddp_run.doctor.surroundings import Surroundings
from ddp_run.plan import named_interfaces, net
from ddp_run.plan.named_interfaces import Found
from ddp_run.values.finding import Finding, failed, warned
from ddp_run.values.typed_fields import frozen

_NET = Path("/sys/class/net")
_OF_ONE_HOST = ("lo", "docker", "virbr", "cni", "podman")
_LEAST_MBIT = 1000
_LEAST_MTU = 1280


@frozen
class Interface:
    """`speed`: Mbit/s; null where the driver does not tell (virtual ones)."""

    name: str
    ip: str
    speed: int | None
    mtu: int | None


def _look(around: Surroundings) -> Iterator[Finding]:
    master = around.options.master[0] if around.options.master is not None else None
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if value := around.environ.get(variable):
            wrong = named_interfaces.judged(variable, value, net.interfaces(), master)
            several = around.options.max_nodes > 1
            yield named(variable, value, wrong, several=several, used=variable.startswith("GLOO") or around.has_driver)
    if around.options.max_nodes == 1:
        return
    if (interface := towards_master(around)) is not None:
        yield judged(interface)
    elif (address := _address(around)) is not None:
        helps = f"ip route get {address}; ip -br address"
        yield failed("interface", "no route", f"this host has no way to the master {address}", helps)


def towards_master(around: Surroundings) -> Interface | None:
    """What packets to node 0 leave by; null where there is no route, or no address."""
    address = _address(around)
    route = net.route_to(address) if address is not None else None
    if route is None:
        return None
    return Interface(route.interface, route.ip, _speed(route.interface), net.mtu_of(route.interface))


def _address(around: Surroundings) -> str | None:
    try:
        found = around.master()
    except net.Unresolvable:
        return None
    return found.ip if found is not None else None


def _speed(interface: str) -> int | None:
    try:
        speed = int((_NET / interface / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


def judged(interface: Interface) -> Finding:
    """Whether other hosts can be reached by it, and how fast it is."""
    speed = f"{interface.speed / 1000:g} Gbit/s" if interface.speed is not None else "speed unknown"
    name, value = f"interface {interface.name}", f"{interface.ip}, MTU {interface.mtu or 'unknown'}, {speed}"
    if interface.name.startswith(_OF_ONE_HOST):
        helps = "--master-addr: an address of node 0 that the other nodes can reach (hostname -I there)"
        return warned(name, value, "it leads to this host alone: nodes on other hosts cannot be reached by it", helps)
    if interface.mtu is not None and interface.mtu < _LEAST_MTU:
        return warned(name, value, f"MTU below {_LEAST_MTU}", f"ip link show {interface.name}")
    if interface.speed is not None and interface.speed < _LEAST_MBIT:
        against = "below 1 Gbit/s, gradients of 1 GB take many seconds for each step"
        return warned(name, value, against, "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME: a faster one (ip -br link)")
    return Finding(name, value)


def named(variable: str, value: str, wrong: Found | None, *, several: bool, used: bool) -> Finding:
    """What is wrong with an interface that a variable names. `used`: whether ranks of this host use the library."""
    if wrong is None or not (several or wrong.certain):  # one node needs no way to another
        return Finding(variable, value)
    grade = failed if wrong.certain and used else warned
    return grade(variable, value, wrong.problem.title.removeprefix(f"{variable}={value}: "), *wrong.problem.helps)


CHECK = Check(
    "interfaces",
    Group.NETWORK,
    "The interface and route towards the master, its MTU and speed; interfaces that `GLOO_SOCKET_IFNAME` and"
    " `NCCL_SOCKET_IFNAME` name; fails without a route, or if one does not exist.",
    _look,
)
