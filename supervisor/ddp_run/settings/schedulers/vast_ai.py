"""Vast.ai: instances are containers without a common network. Pure.

Each is behind address translation: its open port N has another number outside, in VAST_TCP_PORT_N. A port requested
with a number of 70000 or more has the same number on both sides (docs.vast.ai, "Networking & Ports", "Identity
Ports"). An overlay network can join the instances of a cluster; all its ports are open ("Multi-Node training using
Torch + NCCL").
"""

from __future__ import annotations

from collections.abc import Mapping

from ddp_run.settings.options import Options

_PORT = "VAST_TCP_PORT_"
_DOCKERS_OWN = "172.17.0.0/16"
"""The default bridge of every Docker host; each host has its own network there."""
_LAST_PORT = 65535


def likely_mistakes(options: Options, environ: Mapping[str, str]) -> list[str]:
    """Warn if the other instances may not reach the master."""
    is_instance = "VAST_CONTAINERLABEL" in environ or any(name.startswith(_PORT) for name in environ)
    if options.max_nodes == 1 or not is_instance or options.master is None:
        return []
    host, port = options.master
    if _may_be_shared(host):
        return []
    lines = [
        "Vast.ai instances share no network unless an overlay joins them, and ranks connect on any port: the master's "
        f"address should be node 0's in the overlay (it is {host})"
    ]
    ports = (port or 29500, options.control_port or (port or 29500) + 1)
    closed = [str(each) for each in ports if each not in _same_outside(environ)]
    if options.node_rank == 0 and host == environ.get("PUBLIC_IPADDR") and closed:
        lines.append(
            f"not open outside under the same number: port {' and '.join(closed)} of this instance; open two with the "
            "Docker options -p 70000:70000 -p 70001:70001, and give all nodes their numbers from here: "
            "--master-port=$VAST_TCP_PORT_70000 --control-port=$VAST_TCP_PORT_70001"
        )
    return lines


def _may_be_shared(host: str) -> bool:
    """Whether the address may belong to an overlay, or to this instance; a name says nothing."""
    from ipaddress import ip_address, ip_network

    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return not address.is_global and address not in ip_network(_DOCKERS_OWN)


def _same_outside(environ: Mapping[str, str]) -> set[int]:
    """Ports that have the same number outside."""
    mapped = [(name.removeprefix(_PORT), port) for name, port in environ.items() if name.startswith(_PORT)]
    numbers = [(int(asked), int(port)) for asked, port in mapped if asked.isdecimal() and port.isdecimal()]
    return {port for asked, port in numbers if asked == port or asked > _LAST_PORT}
