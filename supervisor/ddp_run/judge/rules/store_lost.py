"""Connection to the job's store lost.

## What happened
A rank lost its connection to the store by which the ranks find each other. The store is a part of one process: of the
agent on the first node, or of rank 0. That process ended, or the network to its node broke; the log that you have ends
there and does not say why.
## How to recognise it
The last lines are torch's warnings `TCPStore.cpp:… recvValue failed on SocketImpl(fd=…)`, `sendBytes failed …: Broken
pipe`, `Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?`, `Failed to
check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)`. Behind the end of a training
that went well they mean nothing: the first rank was only faster.
## What to do
Read the log of rank 0 and of the first node's agent: what ended there first is the cause. Without one,
`dmesg -T | grep -i 'killed process'` on that host.
"""

from __future__ import annotations

import re
from itertools import islice

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign
from ddp_run.judge.verdict import Area, Finding, Retry, Rule

RULE = Rule(
    code="DDP209",
    name="store-lost",
    title="Connection to the job's store lost",
    area=Area.NETWORK,
    retry=Retry(helps=True, reason="why the store's process ended is not shown; another attempt may show it, or pass"),
    since="0.1",
    supersedes=("peer-died",),
    consequence=True,
)
SIGNS = (
    Sign("TCPStore.cpp", re.compile(r"TCPStore\.cpp:\d+\] \[c10d\] (?:recv|send)\w+ failed on SocketImpl")),
    Sign('"should dump" flag on TCPStore'),
    Sign("Did the remote server shutdown or crash?"),
)
_LAST = 15
_FRAMES = re.compile(r"frame #\d+|Exception raised from |^\s*$")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """A log that ends there: nobody says how anything ended."""
    if not attempt.logs_only or death.code is not None or death.exception is not None:
        return None
    log = attempt.agent.log
    said = (index for index in range(len(log.lines) - 1, -1, -1) if not _FRAMES.match(log.lines[index]))
    for index in islice(said, _LAST):
        if any(sign.search(log.lines[index]) for sign in SIGNS):
            cause = f"{death.who} lost the job's store: the process that keeps it (of the first node) ended first"
            return Finding(RULE, death.rank, cause, (log.quote(index),), _ADVICE, "likely")
    return None


_ADVICE = ("read the log of rank 0 and of the first node's agent: what ended there first is the cause",)
