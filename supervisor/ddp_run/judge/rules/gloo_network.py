"""Gloo network error.

## What happened
Gloo found no network interface with the given name, could not resolve this host's own name, or could not connect to the
other ranks.
## How to recognise it
`Unable to find address for: ib0`, `ifa != nullptr`, `Unable to find interface for`, `rp != nullptr`, `Gloo
connectFullMesh failed with …`, `Connect timeout`. A connection *closed* by a peer is a consequence: see peer-died.
## What to do
`ip -br addr` lists the interfaces; set `GLOO_SOCKET_IFNAME` to the one that connects the nodes, or unset it. On one
host, `lo` always works. If Gloo cannot resolve the host's own name, add that name to `/etc/hosts`.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Hit, Sign, ended_by, like
from ddp_run.judge.verdict import Area, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP204",
    name="gloo-network",
    title="Gloo network error",
    area=Area.NETWORK,
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="the link may have been down only for a moment"),
    since="0.1",
    unlike="together",
)
_ADDRESS = like(r"Unable to find address for:? (?P<name>[\w.\-:@]+)")
_INTERFACE = like(r"Unable to find interface for:? (?P<name>[\w.\-:@\[\]]+)")
_NO_INTERFACE = Sign("ifa != nullptr")
_NO_ADDRESS = Sign("rp != nullptr")
_MESH = like(r"Gloo connectFullMesh failed(?: with (?P<said>.*))?")
_CONNECT = like(
    r"gloo/transport/tcp/\S{1,200}\] (?P<said>(?:connect \[?|Connect timeout |timed out"
    r" connecting: )(?P<address>\S*).*)"
)
_NOT_CONNECTED = like(r"\[Gloo\] (?P<said>Rank \d{1,9} is NOT connected to: \[[\d, ]{1,4000}\])")
SIGNS = (_ADDRESS, _INTERFACE, _NO_INTERFACE, _NO_ADDRESS, _MESH, _CONNECT, _NOT_CONNECTED)
_LEFT = re.compile(r"Connection (?:closed|reset) by peer|Broken pipe")
_GLOO = re.compile(r"gloo", re.IGNORECASE)
_WRONG_NAME = Retry(helps=False, reason="the interface will still be missing")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match Gloo's messages about a missing interface or address, or a connection that was never made."""
    hit = ended_by(death, SIGNS)
    if hit is None:
        return None
    said = hit.exception.message if hit.exception is not None else hit.text
    if _LEFT.search(said) or not (_GLOO.search(said) or _from_gloo(hit)):
        return None
    if hit.sign in (_ADDRESS, _INTERFACE, _NO_INTERFACE, _NO_ADDRESS):
        name = f" for {hit['name']}" if hit["name"] else ""
        cause = f"{death.who}: Gloo found no network address{name}"
        return hit.finding(RULE, death, cause, _for_name(hit["name"]), retry=_WRONG_NAME)
    told = (hit["said"] or "").strip()[:160]
    cause = f"{death.who}: Gloo could not connect to the other ranks{': ' + told if told else ''}"
    return hit.finding(RULE, death, cause, _FOR_CONNECTION, confidence="likely")


def _from_gloo(hit: Hit) -> bool:
    return hit.exception is not None and _GLOO.search(hit.exception.traceback) is not None


def _for_name(name: str | None) -> tuple[str, ...]:
    return (
        f"ip -br addr   # is there an interface or address {name}?" if name else "ip -br addr   # the interfaces",
        "env | grep GLOO_SOCKET_IFNAME   # unset it, or set it to a listed interface",
        'getent hosts "$(hostname)"   # without GLOO_SOCKET_IFNAME, Gloo uses this address',
    )


_FOR_CONNECTION = (
    'getent hosts "$(hostname)"   # the address Gloo announces: can other ranks reach it?',
    "export GLOO_SOCKET_IFNAME=eth0   # the interface that connects the nodes (ip -br addr)",
)
