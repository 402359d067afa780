"""Rendezvous host name does not resolve.

## What happened
This node cannot resolve the name of the rendezvous host (`--rdzv-endpoint`, `--master-addr`, `MASTER_ADDR`).
## How to recognise it
`The IPv6 network addresses of (HOST, PORT) cannot be retrieved (gai error: -2 - Name or service not known)` from
torch's socket, followed by a timeout. The warning alone is harmless: it is also printed if the name has only an IPv4
address. A name that an HTTP library cannot resolve is hub-network.
## What to do
`getent hosts HOST` on the failed node: if it prints nothing, use an address instead of the name, or add the name to
`/etc/hosts`. Under SLURM, `scontrol show hostnames "$SLURM_JOB_NODELIST"` gives names that resolve; under Kubernetes,
the first pod's service must exist before the others start.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence, LogText
from ddp_run.judge.signs import Hit, Sign, ended_by, every, in_exception, in_whole_log, like, quotes
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP203",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="a name that does not resolve now rarely resolves a minute later"),
)
_UNRESOLVED = like(
    r"network addresses of \((?P<host>[^,()]+), (?P<port>\d+)\) cannot be retrieved "
    r"\(gai error: (?P<number>-?\d+) - (?P<said>[^)]*)\)",
)
_NOT_REACHED = like(
    r"he client socket has (?:timed out after \d+ ?m?s\s{1,9}while trying to connect to "
    r"|failed to connect to any network address of )\((?P<host>[^,()]+), (?P<port>\d+)\)"
)
_ETCDS = like(r"Failed to get list of machines from https?://(?P<host>[^\s:/]{1,300})[:/]")
"""Source: python-etcd's client.py, used by torchelastic and `--rdzv-backend etcd`."""
_PYTHONS = Sign("gaierror", types=("gaierror",))
_OLD = like(r"^ValueError: host not found: (?P<said>[^\n]{1,80})", ("ValueError",))
"""torch's before 1.8, which names no host."""
_SSHS = like(r"ssh: Could not resolve hostname (?P<host>[\w.\-]{1,255}): (?P<said>[^\n]{1,80})")
_STARTED_BY_SSH = (Sign("unable to reliably start one or more daemons"), Sign("ssh exited with exit code 255"))
"""Messages of mpirun and pdsh if ssh cannot reach a host of the job."""
SIGNS = (_UNRESOLVED, _NOT_REACHED, _ETCDS, _PYTHONS, _OLD, _SSHS, *_STARTED_BY_SSH)
SYMPTOMS = (
    Sign(
        "gai error",
        r"(?:network addresses of \([^()\n]{1,300}\) cannot be retrieved \(gai error: [^\n]{0,200}"
        r"(?:\n[^\n]{0,200}|\Z)){3}",  # again and again
    ),
)
_TORCHS = re.compile(r"torch/distributed/(?:rendezvous|distributed_c10d|elastic/|run)")
_SAID = re.compile(r"\[Errno (?P<number>-?\d+)\] (?P<said>.+)")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank that could not connect to a name that its own socket could not resolve."""
    hit = ended_by(death, (_NOT_REACHED,))
    if hit is not None and not _UNRESOLVED.search(hit.match.string):
        return _finding(hit, death.stderr, death)
    hit = in_exception(death, (_UNRESOLVED,))
    if hit is not None:
        return hit.finding(RULE, death, _cause(death.who, hit), _advice(hit["host"]))
    hit = in_exception(death, (_OLD,))
    if hit is not None:
        return hit.finding(
            RULE, death, f"{death.who} could not resolve the rendezvous host: {hit['said']}", _advice(None)
        )
    hit = ended_by(death, (_PYTHONS,))
    if hit is None or hit.exception is None:
        return None
    etcd = in_whole_log(attempt, (_ETCDS,))
    if etcd is None and not _frames_of_torch(hit.exception.traceback):
        return None
    said = _SAID.search(hit.exception.message)
    cause = f"{death.who} could not resolve the rendezvous host{': ' + said['said'] if said else ''}"
    return hit.finding(RULE, death, cause, _advice(etcd["host"] if etcd is not None else None))


def match_launch(attempt: Evidence) -> Finding | None:
    """Match torch's agent that could not resolve the endpoint."""
    if attempt.started:
        return None
    ssh = in_whole_log(attempt, (_SSHS,)) if in_whole_log(attempt, _STARTED_BY_SSH) is not None else None
    if ssh is not None:
        return ssh.finding(RULE, TORCHS_AGENT, _cause("the launcher", ssh), _advice(ssh["host"]))
    hit = in_whole_log(attempt, (_NOT_REACHED,))
    return _finding(hit, attempt.agent.log, TORCHS_AGENT) if hit is not None else None


def _finding(hit: Hit, log: LogText, death: Death) -> Finding | None:
    said = _unresolved(log, hit["host"])
    if said is None:
        return None
    return said.finding(RULE, death, _cause(death.who, said), _advice(hit["host"]), also=quotes(hit))


def _unresolved(log: LogText, host: str | None) -> Hit | None:
    """Return the failed lookup of this host, unless a later line tried an address of it, so the name does resolve."""
    found = next((hit for hit in reversed(every(log, _UNRESOLVED)) if hit["host"] == host), None)
    if found is None:
        return None
    tried = f"]:{found['port']}"
    later = (line for line in log.lines[found.index + 1 :] if "client socket has failed to connect to [" in line)
    return None if any(tried in line for line in later) else found


def _cause(who: str, hit: Hit) -> str:
    return f"{who} could not resolve the rendezvous host {hit['host']}: {hit['said']}"


def _advice(host: str | None) -> tuple[str, ...]:
    name = host or '"$MASTER_ADDR"'
    return (
        f"getent hosts {name}   # on the failed node: prints its address, or nothing",
        "cat /etc/resolv.conf   # name servers and search domains",
        "hostname -I   # on the rendezvous host: an address to use instead of the name",
    )


def _frames_of_torch(traceback: str) -> bool:
    return _TORCHS.search(traceback) is not None and "urllib" not in traceback and "requests/" not in traceback
