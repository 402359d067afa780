"""Rendezvous timed out.

## What happened
The job's processes find each other through a store (on rank 0's or the rendezvous endpoint's host). A process did not
join in time, or the store could not be reached.
## How to recognise it
In torch's agent: `RendezvousTimeoutError`, `RendezvousConnectionError`, `RendezvousClosedError`. In a rank, during
`init_process_group`: `The client socket has timed out after 60000ms while trying to connect to (HOST, PORT)`, `Timed
out after 1801 seconds waiting for clients. 1/2 clients joined`, `wait timeout after 8000ms, keys: …`, `Timed out
initializing process group in store based barrier`, and only `Socket Timeout` before torch 2.3. A name that does not
resolve is rendezvous-dns; a store that disappeared later (`Failed to recv, got 0 bytes`) is a consequence.
## What to do
On every node: is the same command running, with the same endpoint, number of nodes and run id? Is the endpoint's port
reachable (`timeout 5 bash -c '</dev/tcp/HOST/PORT' && echo open`)? A firewall between the nodes, or an endpoint on the
wrong network, is the most common cause; the other is a node that starts minutes later: raise the timeout (`--rdzv-conf
join_timeout=1800`, `init_process_group(timeout=…)`).
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence
from ddp_run.judge.rules.store_lost import HEARTBEAT
from ddp_run.judge.signs import Hit, Sign, ended_by, in_whole_log, like, meaning, quotes
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP202",
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="a node that was late may join in time"),
    unlike="together",
    end="waited",
)
FRAMES = re.compile(r"/torch/distributed/rendezvous\.py|/distributed_c10d\.py _store_based_barrier")
_JAXS = r"DEADLINE_EXCEEDED: Barrier timed out\. (?:Barrier_i|I)d: (?:PjRT_Client_Connect|\[Init\])"
SYMPTOMS = (
    like(r"Waiting in store based barrier to [^\n]{0,200}\(world_size=\d{1,7}, \w{1,20}=\d{1,7}, "),
    like(_JAXS),
)
_TIME = r"(?:(?P<ms>\d{1,20}) ?ms|(?P<s>\d{1,20}) ?s\w*)"
_CONNECT = like(
    rf"he client socket has (?:timed out after {_TIME}\s{{1,9}}while trying to connect to "
    r"|failed to connect to any network address of )\(?(?P<host>[^\s,()]{1,255})(?:, |:)(?P<port>\d{1,9})\b",
    cause="{who} could not reach the store at {host}:{port}{ within {time}}",
)
_CLIENTS = like(
    rf"Timed out after {_TIME} waiting for clients\. (?P<joined>\d+)/(?P<wanted>\d+) c",
    cause="{who} waited {time} for the other ranks: {joined} of {wanted} joined",
)
_SOCKET = meaning(
    like(r"(?:Error|Exception): Socket Timeout\s*$"),
    like(r"connect\(\) timed out\. Original timeout was \d{1,9} ms\.\s*$"),  # torch's before 1.11
    cause="{who} waited for another rank, which did not join the store in time",
)
_ENDS = r"(?<!due to an error of type )"
"""What agents warn of once they have met doesn't end them."""
_AGENT = tuple(
    Sign(name, f"{_ENDS}{name}", cause=f"{{agent}} {cause}", likely=likely)
    for name, cause, likely in (
        ("RendezvousTimeoutError", "waited for other nodes, which did not join in time", False),
        ("RendezvousConnectionError", "could not reach the rendezvous store", True),
        ("RendezvousClosedError", "joined a rendezvous that another node had already closed", False),
    )
)
_IN_RANK = (
    _CONNECT,
    _CLIENTS,
    like(
        r"Timed out initializing process group in store based barrier on rank:? ?\d+, for key: \S+ \(world_size="
        r"(?P<wanted>\d+), (?:num_workers_joined|worker_count)=(?P<joined>\d+), timeout=(?P<timeout>[\d:.]+)",
        cause="{who} waited {timeout} for the other ranks: {joined} of {wanted} joined",
    ),
    *meaning(
        like(rf"wait timeout after {_TIME}, keys:\s{{1,9}}(?P<keys>\S+)"),
        like(rf"Timeout waiting for key: (?P<keys>\S+) after {_TIME}"),
        cause="{who} waited {time} for {whom}, which did not join the store",
    ),
    *meaning(  # other runtimes
        # JAX, torch_xla: the tasks of a job meet at their coordination service
        like(_JAXS),
        like(
            r"DEADLINE_EXCEEDED: (?:Getting local topologies failed"
            r"|GetKeyValue\(\) timed out)"
        ),
        Sign("DEADLINE_EXCEEDED: failed to connect to all addresses", types=("XlaRuntimeError", "JaxRuntimeError")),
        "Unable to meet other processes at the rendezvous store",  # Ray's collectives
        *("Failed to connect to GCS", "Failed to initialize distributed runtime client"),
        *("KVS get error: timeout limit", "failed to connect to lighthouse"),  # oneCCL, torchft
        # Horovod
        *("was not reachable via ssh", "could not connect to some hosts via ssh"),
        "Timed out waiting for tasks to start. Please check connectivity",
        "Unable to find a set of common task-to-task communication interfaces",
        like(r"Horovod was unable to connect to [^\n]{1,80} on any of the following addresses: "),
        like(r"Only \d{1,6}/\d{1,6} workers arrived after "),  # Dask
        like(r"Timed out trying to connect to (?:tcp|tls|ucx)://\S{1,200} after"),
        cause="{who} did not meet the other processes of the job in time: {match}",
        likely=True,
    ),
)
SIGNS = (*_IN_RANK, *_SOCKET, *_AGENT)
_MEETING = re.compile(
    r"init_process_group|_new_process_group_helper|_store_based_barrier|rendezvous|_create_c10d_store|new_group|TCPStore"
    r"|ProcessGroupGloo\("
)
_GLOO_KEY = re.compile(r"/(?:cpu|gloo)//?\d+/(?P<rank>\d+)$")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank that ended because the others, or the store, were missing when the process group was created."""
    hit = ended_by(death, _IN_RANK) or _old_timeout(death) or ended_by(death, _AGENT)
    if hit is None or _lost_it(hit, attempt) or "setting up NCCL communicator" in hit.match.string:
        return None
    return hit.finding(RULE, death, _cause(hit, death), _advice(hit, attempt))


def match_launch(attempt: Evidence) -> Finding | None:
    """Match torch's agent that gave up before it started a rank."""
    if attempt.started:
        return None
    gave_up = in_whole_log(attempt, _AGENT)
    if gave_up is not None and _lost_it(gave_up, attempt):
        return None
    closed = gave_up is not None and "Closed" in gave_up.text
    told = (None if closed else in_whole_log(attempt, (_CONNECT, _CLIENTS))) or gave_up
    if told is None:
        return None
    cause = _cause(told, TORCHS_AGENT)
    return told.finding(RULE, TORCHS_AGENT, cause, _advice(told, attempt), also=quotes(gave_up))


def _lost_it(hit: Hit, attempt: Evidence) -> bool:
    """Whether agents that had met before lost the store."""
    return "RendezvousConnectionError" in hit.text and in_whole_log(attempt, (HEARTBEAT,)) is not None


def _old_timeout(death: Death) -> Hit | None:
    """torch 1.x prints only `Socket Timeout`: it is the store's if the process group was being created."""
    if death.exception is None or not _MEETING.search(death.exception.traceback):
        return None
    return ended_by(death, _SOCKET)


def _cause(hit: Hit, death: Death) -> str:
    awaited = _GLOO_KEY.search((hit["keys"] or "").rstrip(".,"))
    whom = f"rank {awaited['rank']} (likely)" if awaited else "another rank"
    seconds = f"{int(hit['ms']) / 1000:.4g}" if hit["ms"] else hit["s"]
    agent = "torch's agent" if death.rank is None else death.who
    return hit.says(death, time=f"{seconds} s" if seconds else None, whom=whom, agent=agent)


def _advice(hit: Hit, attempt: Evidence) -> tuple[str, ...]:
    place = hit if hit.sign is _CONNECT else in_whole_log(attempt, (_CONNECT,))
    same = "ps -eo pid,lstart,args | grep -E 'torchrun|ddp-run'   # on every node: same command? started when?"
    if place is None:
        return (same, "env | grep -E 'MASTER_|WORLD_SIZE|^RANK|PET_'   # same endpoint and counts on every node?")
    host, port = place["host"], place["port"]
    return (
        f"timeout 5 bash -c '</dev/tcp/{host}/{port}' && echo open   # from this node: is it reachable?",
        f"ss -ltn 'sport = :{port}'   # on {host}: is anything listening?",
        same,
    )
