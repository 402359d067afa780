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
from ddp_run.judge.signs import Sign, ended_by, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP204",
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="the link may have been down only for a moment"),
    unlike="together",
)
_WRONG_NAME = Retry(helps=False, reason="the interface will still be missing")
_RESET = "env | grep GLOO_SOCKET_IFNAME   # unset it, or set it to a listed interface"
_OWN = 'getent hosts "$(hostname)"   # without GLOO_SOCKET_IFNAME, Gloo uses this address'
SIGNS = (
    *meaning(
        like(r"Unable to find (?:address|interface) for:? (?P<name>[\w.\-:@\[\]]+)"),
        Sign("interface or hostname can't be empty"),
        Sign("ifa != nullptr"),
        Sign("rp != nullptr"),
        cause="{who}: Gloo found no network address{ for {name}}",
        advice=("ip -br addr   # the interfaces and addresses of this host{: is {name} among them?}", _RESET, _OWN),
        retry=_WRONG_NAME,
    ),
    *meaning(
        like(r"Gloo connectFullMesh failed(?: with (?P<said>.{0,160}))?"),
        like(
            r"gloo/transport/tcp/\S{1,200}\] "
            r"(?P<said>(?:connect \[?|Connect timeout |timed out connecting: )(?P<address>\S*).{0,160})"
        ),
        like(r"\[Gloo\] (?P<said>Rank \d{1,9} is NOT connected to: \[[\d, ]{1,4000}\])"),
        cause="{who}: Gloo could not connect to the other ranks{: {said}}",
        advice=(
            'getent hosts "$(hostname)"   # the address Gloo announces: can other ranks reach it?',
            "export GLOO_SOCKET_IFNAME=eth0   # the interface that connects the nodes (ip -br addr)",
        ),
        likely=True,
    ),
)
_LEFT = re.compile(r"Connection (?:closed|reset) by peer|Broken pipe")
_GLOO = re.compile(r"gloo", re.IGNORECASE)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match Gloo's messages about a missing interface or address, or a connection that was never made."""
    hit = ended_by(death, SIGNS)
    if hit is None or _LEFT.search(hit.message) or not _GLOO.search(f"{hit.message}\n{hit.traceback}"):
        return None
    return hit.finding(RULE, death)
