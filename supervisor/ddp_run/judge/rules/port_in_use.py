"""Port already in use.

## What happened
The agent or rank 0 could not listen on the master port because another process is using it: a second job on this host,
leftovers of an earlier one, or another service. Or the endpoint of a c10d rendezvous (`--rdzv-endpoint`) belongs to
another program, which torch alone would only notice after a minute.
## How to recognise it
`EADDRINUSE` or `address already in use` from the store's server socket; `the program at … is not torch's rendezvous`.
## What to do
Let ddp-run choose the port (omit `--master-port`), or free it: `ss -ltnp` shows the process using it.
"""

from __future__ import annotations

import re

from ddp_run.evidence import exception_frames
from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence, LogText
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.signs import Sign, anywhere, like, meaning, survived
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP201",
    layer=Layer.REFUSED,
    retry=Retry(helps=True, reason="the next attempt uses a new port"),
)
SIGNS = meaning(
    Sign("EADDRINUSE"),
    Sign("ddress already in use"),
    like(r"failed: port is already allocated"),  # Docker's
    like(r"Socket '[^'\n]{1,80}' already in use"),  # Triton
    like(r"\w{0,40}port at \d{2,5} is not available in \d{1,6} seconds"),  # SGLang
    like(r"Failed to bind to \S{1,80} because it's already occupied"),
    like(r"Ray is trying to start at \S{1,80}, but is already running"),
    like(r"is trying to use a port number \d{1,5} that is used"),  # Ray
    *("Cannot find empty port in range", "Could not find open port after "),  # gradio
    *(", but another process is utilizing it", "The IP address and port have been bound already"),
    *("Only one usage of each socket address", "[Errno 98]", "[Errno 10048]", "[WinError 10048]"),
    like(r"errno: 98\b"),
)
_ANOTHER = "ddp-run --rdzv-endpoint=HOST:29401 …   # the same on all nodes: a free port of one of them"
_SAME_ENDPOINT = Retry(helps=False, reason="the nodes would meet at the same endpoint again")
_PORT = re.compile(
    r"port[:=]? ?`?(?P<port>\d{2,5})\b|\]?:(?P<bound>\d{2,5})\b (?:\(errno|due|failed: port)|\[::\]:(?P<any>\d{2,5})"
    r"|\('[^'\n]{0,80}', (?P<pair>\d{2,5})[,)]"
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank that ended because of it: in the last exception, or in the last lines if no exception is known."""
    raised = death.exception
    if raised is not None and (not _taken(raised.message) or exception_frames.is_own(raised)):
        return None
    if death.killed_without_exception:
        return None
    return _finding(death.stderr.ending(LAST_WORDS), death, attempt)


def match_launch(attempt: Evidence) -> Finding | None:
    """Match an agent that could not open its store, or a rendezvous' endpoint that belongs to another program."""
    taken = attempt.endpoint_taken
    if taken is not None:
        port = taken.endpoint.rpartition(":")[2]
        look = f"ss -ltnp 'sport = :{port}'   # on that host: who is using it"
        return Finding(RULE, taken.said, (), (look, _ANOTHER), retry=_SAME_ENDPOINT)
    return None if attempt.started else _finding(attempt.agent.log, TORCHS_AGENT, attempt)


def _finding(log: LogText, death: Death, attempt: Evidence) -> Finding | None:
    hit = anywhere(log, SIGNS)
    if hit is None or (death.exception is None and survived(log, hit)):
        return None
    port, retry = _port(log), RULE.retry
    another = None not in (port, attempt.master_port) and port != attempt.master_port and death is not TORCHS_AGENT
    if another or (port is None and _bound_by_program(death)):
        which = f"port {port}" if port is not None else "the port"
        retry = Retry(helps=False, reason=f"{which} is set by the program, so the next attempt will use it again")
    named, look = (f"port {port}", f"ss -ltnp 'sport = :{port}'") if port is not None else ("a port", "ss -ltnp")
    cause = f"{death.who} cannot listen on {named}: already in use by another process"
    return hit.finding(RULE, death, cause, (f"{look}   # who is using it",), retry=retry)


def _bound_by_program(death: Death) -> bool:
    """Whether the exception comes from Python's own sockets: torch's store opens its port in C++."""
    raised = death.exception
    return raised is not None and raised.type.rpartition(".")[2] == "OSError" and "/torch/" not in raised.traceback


def _taken(text: str) -> bool:
    return any(sign.search(text) for sign in SIGNS)


def _port(log: LogText) -> int | None:
    for line in reversed(log.lines):
        hit = _PORT.search(line) if _taken(line) else None
        if hit is not None:
            return int(hit["port"] or hit["bound"] or hit["any"] or hit["pair"])
    return None
