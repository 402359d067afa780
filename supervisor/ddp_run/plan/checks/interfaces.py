"""With several nodes: interfaces in NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME that don't lead to another node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddp_run.plan.preflight import Answer, Check, Launch
from ddp_run.values.problem import Problem

if TYPE_CHECKING:
    from ddp_run.plan.net import Interface, Route

_LIBRARIES = {"NCCL_SOCKET_IFNAME": ("nccl", "DDP205"), "GLOO_SOCKET_IFNAME": ("gloo", "DDP204")}
"""By variable: the library that reads it, and the code of a wrong value."""
_BRIDGE = re.compile(r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|virbr\d+|podman\d+|lxcbr\d+|lxdbr\d+|cni\d+")
"""Bridges to containers or virtual machines on the same host."""
_SHOWN = 8


def _check(launch: Launch) -> Answer:
    """Refuse only if --backend says that the ranks use the library. A script's own choice isn't known here."""
    options = launch.options
    named = {name: launch.environ[name] for name in _LIBRARIES if launch.environ.get(name)}
    if options.max_nodes == 1 or not named:
        return Answer(options)
    from ddp_run.plan.net import interfaces

    here = interfaces()
    master = options.master[0] if options.master is not None else None
    problems: list[Problem] = []
    suspicions: list[Problem] = []
    for name, value in named.items() if here else ():
        found = judged(name, value, here, master)
        if found is not None:
            is_used = _LIBRARIES[name][0] in (options.backend or "").lower()
            (problems if found.certain and is_used else suspicions).append(found.problem)
    return Answer(options, tuple(problems), tuple(suspicions))


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong, and whether it must fail: nodes on the same host don't need a route to another host."""

    problem: Problem
    certain: bool


def judged(variable: str, value: str, here: Sequence[Interface], master: str | None) -> Found | None:
    """Say what is wrong with a variable's value; None if it may work.

    `here`: this host's interfaces. `master`: node 0's name or address, if known.
    """
    from ddp_run.plan.net import route_to

    route = route_to(master) if master is not None else None
    takes_any = variable == "NCCL_SOCKET_IFNAME"  # gloo opens a device for each
    chosen = _chosen_by_nccl(value, here) if takes_any else _chosen_by_gloo(value, here)
    if chosen is None:
        return None
    reasons = [(each, True) if isinstance(each, str) else _unfit(each, master, route) for each in chosen]
    wrong = [reason for reason in reasons if reason is not None]
    if not wrong or (takes_any and len(wrong) < len(reasons)):
        return None
    sure = [reason for reason in wrong if reason[1]]
    is_certain = len(sure) == len(wrong) if takes_any else bool(sure)
    why = (wrong if takes_any else sure or wrong)[0][0]
    fit = [each.name for each in here if _unfit(each, master, route) is None]
    helps = ["ip -br addr   # the interfaces of this host", f"unset {variable}"]
    if route is not None and route.interface in fit:
        helps.insert(0, f"export {variable}={route.interface}   # leads to node 0")
    label = "other nodes can't be reached through it"
    origin = f"environment variable {variable}"
    problem = Problem(_LIBRARIES[variable][1], f"{variable}={value}: {why}", None, label, origin, helps=tuple(helps))
    return Found(problem, is_certain)


def _chosen_by_nccl(value: str, here: Sequence[Interface]) -> list[Interface | str] | None:
    """Read a list of prefixes, or of names after `=`. Returns None for exclusions (`^`) and for what NCCL ignores.

    Source: NCCL's documentation of NCCL_SOCKET_IFNAME; its src/misc/socket.cc ignores a value of one character.
    """
    if value.startswith("^") or len(value) < 2:
        return None
    exact = value.startswith("=")
    words = [word.partition(":")[0] for word in value.removeprefix("=").split(",") if word]
    chosen: list[Interface | str] = [
        each for each in here if any(each.name == word if exact else each.name.startswith(word) for word in words)
    ]
    return chosen or [f"matches none of this host's interfaces: {_names(here)}"]


def _chosen_by_gloo(value: str, here: Sequence[Interface]) -> list[Interface | str] | None:
    """Read a list of names. Source: torch's ProcessGroupGloo, which opens a device for each."""
    by_name = {each.name: each for each in here}
    missing = f"isn't an interface of this host, which has {_names(here)}"
    return [by_name.get(word, f"{word} {missing}") for word in value.split(",") if word]


def _names(here: Sequence[Interface]) -> str:
    names = [each.name for each in here]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _unfit(interface: Interface, master: str | None, route: Route | None) -> tuple[str, bool] | None:
    """Say why it can't reach another node, and whether that is certain: nodes may share a host."""
    name = interface.name
    if not interface.is_up:
        return f"{name} is down", True
    if not interface.addresses:
        return f"{name} has no IP address", True
    if not interface.is_running:
        return f"{name} has no carrier", False
    if interface.is_loopback and not _is_loopback(master):
        return f"{name} only reaches this host", False
    if _BRIDGE.fullmatch(name) and (route is None or route.interface != name):
        return f"{name} is a bridge within this host", False
    return None


def _is_loopback(master: str | None) -> bool:
    from ddp_run.values.addresses import literal_address

    literal = literal_address(master) if master else None
    return master == "localhost" or (literal is not None and literal.ip.startswith(("127.", "::1")))


CHECK = Check("the interfaces", _check)
