"""Connection to the rendezvous store lost.

## What happened
A rank lost its connection to the store through which the ranks find each other. The store runs inside one process: the
agent on the first node, or rank 0. That process died, or the network to its node failed; this log ends there and does
not show why.
## How to recognise it
The last lines are torch's warnings `TCPStore.cpp:… recvValue failed on SocketImpl(fd=…)`, `sendBytes failed …: Broken
pipe`, `Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?`, `Failed to
check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)`, and its agent's `has failed
to send a keep-alive heartbeat to the rendezvous`. After a successful training they are harmless: the first rank just
finished earlier.
## What to do
Read the log of rank 0 and of the first node's agent: what died there first is the cause. If there is none, `dmesg -T |
grep -i 'killed process'` on that host.
"""

from __future__ import annotations

import re
from itertools import islice

from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence
from ddp_run.evidence.windows import VERY_LAST
from ddp_run.judge.signs import Sign, in_whole_log, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP209",
    layer=Layer.FOLLOWED,
    retry=Retry(helps=True, reason="the log does not show why the store's process died; a retry may show it, or pass"),
    wins_over=(("peer-died", "the peer that is gone is the one that held the store"),),
    unlike="together",
)
HEARTBEAT = like(
    r"has failed to send a keep-alive heartbeat to the rendezvous '[^'\n]{1,200}' due to an error of type Rend"
)
"""An agent sends them once it has met the others."""
SIGNS = (
    like(r"TCPStore\.cpp:\d+\] \[c10d\] (?:recv|send)\w+ failed on SocketImpl"),
    Sign('"should dump" flag on TCPStore'),
    Sign("Did the remote server shutdown or crash?"),
    HEARTBEAT,
)
_FRAMES = re.compile(r"frame #\d+|Exception raised from |^\s*$")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a log that ends there and shows no end of any rank."""
    raised = death.exception
    if raised is not None and raised.type.endswith("RendezvousConnectionError"):
        return _of_agents(attempt)
    if not attempt.logs_only or death.code is not None or raised is not None:
        return None
    log = attempt.agent.log
    said = (index for index in range(len(log.lines) - 1, -1, -1) if not _FRAMES.match(log.lines[index]))
    for index in islice(said, VERY_LAST):
        if any(sign.search(log.lines[index]) for sign in SIGNS):
            cause = f"{death.who} lost the rendezvous store: its process (on the first node) died first"
            return Finding(RULE, cause, (log.quote(index),), _ADVICE, "likely")
    return None


def match_launch(attempt: Evidence) -> Finding | None:
    """Match a log in which only torch's agents say that the store was lost."""
    return _of_agents(attempt) if attempt.logs_only and not attempt.deaths else None


def _of_agents(attempt: Evidence) -> Finding | None:
    lost = in_whole_log(attempt, (HEARTBEAT,))
    if lost is None:
        return None
    cause = "torch's agent lost the rendezvous store: its process (on the first node) died first"
    return lost.finding(RULE, TORCHS_AGENT, cause, _ADVICE, confidence="likely")


_ADVICE = ("read the log of rank 0 and of the first node's agent: what died there first is the cause",)
