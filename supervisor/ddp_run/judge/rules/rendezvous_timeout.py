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

from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.judge.signs import Hit, Sign, anywhere, ended_by, in_whole_log
from ddp_run.judge.verdict import Area, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP202",
    name="rendezvous-timeout",
    title="Rendezvous timed out",
    area=Area.NETWORK,
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="a node that was late may join in time"),
    since="0.1",
    unlike="together",
)
FRAMES = re.compile(r"/torch/distributed/rendezvous\.py|/distributed_c10d\.py _store_based_barrier")
SYMPTOMS = (
    Sign(
        "in store based barrier",
        r"Waiting in store based barrier to [^\n]{0,200}\(world_size=\d{1,7}, \w{1,20}=\d{1,7}, ",
    ),
)
_CONNECT = Sign(
    "he client socket has ",
    r"he client socket has (?:timed out after (?P<after>\d{1,20} ?m?s) while trying to connect to "
    r"|failed to connect to any network address of )"
    r"(?:\((?P<host>[^,()]+), (?P<port>\d+)\)|(?P<address>[\w.\-]+:\d+))",
)
_CLIENTS = Sign(
    "seconds waiting for clients",
    r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<wanted>\d+) clients",
)
_BARRIER = Sign(
    "Timed out initializing process group in store based barrier",
    r"store based barrier on rank:? ?(?P<rank>\d+), for key: \S+ \(world_size=(?P<wanted>\d+), "
    r"(?:num_workers_joined|worker_count)=(?P<joined>\d+), timeout=(?P<timeout>[\d:.]+)",
)
_KEYS = Sign("wait timeout after ", r"wait timeout after (?P<ms>\d{1,20})ms, keys: (?P<keys>\S+)")
_KEY = Sign("Timeout waiting for key: ", r"Timeout waiting for key: (?P<keys>\S+) after (?P<ms>\d{1,20}) ms")
_OLD = Sign("connect() timed out. Original timeout was ", r"Original timeout was (?P<ms>\d{1,20}) ms")
_SOCKET = Sign("Socket Timeout", r"(?:Error|Exception): Socket Timeout\s*$")
_AGENT = (
    Sign("RendezvousTimeoutError"),
    Sign("RendezvousConnectionError"),
    Sign("RendezvousClosedError"),
)
_OTHERS = (
    Sign(  # JAX, torch_xla: the tasks of a job meet at their coordination service
        "DEADLINE_EXCEEDED: ",
        r"DEADLINE_EXCEEDED: (?:Barrier timed out\. Id: PjRT_Client_Connect|Getting local topologies failed"
        r"|GetKeyValue\(\) timed out)",
    ),
    Sign(
        "DEADLINE_EXCEEDED: failed to connect to all addresses", types=frozenset({"XlaRuntimeError", "JaxRuntimeError"})
    ),
    Sign("Failed to initialize distributed runtime client"),
    Sign("Timed out waiting for tasks to start. Please check connectivity"),  # Horovod
    Sign("Unable to meet other processes at the rendezvous store"),  # Ray's collectives
    Sign("Failed to connect to GCS within"),
    Sign("Failed to connect to GCS. Please check if the GCS server is running"),
    Sign("KVS get error: timeout limit"),  # oneCCL
    Sign("failed to connect to lighthouse"),  # torchft
    Sign("was not reachable via ssh"),  # DeepSpeed's launcher
    Sign("could not connect to some hosts via ssh"),  # Horovod's, like the next two
    Sign("on any of the following addresses: ", r"Horovod was unable to connect to [^\n]{1,80} on any of the fo"),
    Sign("Unable to find a set of common task-to-task communication interfaces"),
    Sign("Timed out trying to connect to ", r"Timed out trying to connect to (?:tcp|tls|ucx)://\S{1,200} after"),
    Sign(" workers arrived after ", r"Only \d{1,6}/\d{1,6} workers arrived after"),  # Dask, like the line above
)
"""Messages of other runtimes for the same."""
_IN_USE = Sign("return getattr(self._store, store_op)")
_AWAY = re.compile(r"Connection (?:reset|closed) by peer|Broken pipe|[Ff]ailed to recv|Connection was likely closed")
_IN_RANK = (_CONNECT, _CLIENTS, _BARRIER, _KEYS, _KEY, _OLD, *_OTHERS)
SIGNS = (*_IN_RANK, _SOCKET, *_AGENT)
_MEETING = re.compile(
    r"init_process_group|_new_process_group_helper|_store_based_barrier|rendezvous|_create_c10d_store|new_group|TCPStor"
    r"e"
    r"|ProcessGroupGloo\("
)
_GLOO_KEY = re.compile(r"/(?:cpu|gloo)//?\d+/(?P<rank>\d+)$")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank that ended because the others, or the store, were missing when the process group was created."""
    hit = ended_by(death, _IN_RANK) or _old_timeout(death) or ended_by(death, _AGENT)
    if hit is None or "setting up NCCL communicator" in hit.match.string:
        return None
    who = "torch's agent" if hit.sign in _AGENT and death.rank is None else death.who
    sure = "likely" if hit.sign in _OTHERS else hit.confidence
    return hit.finding(RULE, death, f"{who} {_cause(hit)}", _advice(hit, attempt), confidence=sure)


def match_launch(attempt: Evidence) -> Finding | None:
    """Match torch's agent that gave up before it started a rank."""
    if attempt.started:
        return None
    gave_up = in_whole_log(attempt, _AGENT)
    if gave_up is not None and _lost(attempt.agent.log):
        cause = "torch's agent lost the rendezvous store: its process died, or the network failed"
        return Finding(
            RULE, None, cause, (gave_up.quote,) if gave_up.quote else (), _advice(gave_up, attempt), "likely"
        )
    closed = gave_up is not None and "Closed" in gave_up.text
    hit = None if closed else in_whole_log(attempt, (_CONNECT, _CLIENTS, _OLD))
    if gave_up is None and hit is None:
        return None
    told = hit or gave_up
    assert told is not None
    quotes = tuple(each.quote for each in (hit, gave_up) if each is not None and each.quote is not None)
    return Finding(RULE, None, f"torch's agent {_cause(told)}", quotes, _advice(told, attempt))


def _lost(log: LogText) -> bool:
    """Whether the store answered at first: it then went away, and that explains the connection error."""
    hit = anywhere(log, (_IN_USE,))
    return hit is not None and any(_AWAY.search(line) for line in log.lines)


def _old_timeout(death: Death) -> Hit | None:
    """torch 1.x prints only `Socket Timeout`: it is the store's if the process group was being created."""
    if death.exception is None or not _MEETING.search(death.exception.traceback):
        return None
    return ended_by(death, (_SOCKET,))


def _cause(hit: Hit) -> str:
    if hit.sign is _CONNECT:
        after = f" within {_time(hit['after'])}" if hit["after"] else ""
        return f"could not reach the store at {_place(hit)[0]}:{_place(hit)[1]}{after}"
    if hit.sign is _CLIENTS:
        return f"waited {hit['seconds']} s for the other ranks: {hit['joined']} of {hit['wanted']} joined"
    if hit.sign is _BARRIER:
        return f"waited {hit['timeout']} for the other ranks: {hit['joined']} of {hit['wanted']} joined"
    if hit.sign in (_KEYS, _KEY):
        awaited = _GLOO_KEY.search((hit["keys"] or "").rstrip(".,"))
        whom = f"rank {awaited['rank']} (likely)" if awaited else "another rank"
        return f"waited {_time((hit['ms'] or '0') + 'ms')} for {whom}, which did not join the store"
    if hit.sign is _OLD:
        return f"could not reach the store within {_time((hit['ms'] or '0') + 'ms')}"
    if hit.sign is _SOCKET:
        return "waited for another rank, which did not join the store in time"
    if hit.sign in _OTHERS:
        return f"did not meet the other processes of the job in time: {hit.match[0].partition(chr(10))[0][:120]}"
    return {
        "RendezvousTimeoutError": "waited for other nodes, which did not join in time",
        "RendezvousConnectionError": "could not reach the rendezvous store",
        "RendezvousClosedError": "joined a rendezvous that another node had already closed",
    }[hit.sign.words]


def _time(text: str | None) -> str:
    number, unit = re.match(r"(\d+) ?(m?s)", text or "0s").groups()  # type: ignore[union-attr]
    return f"{int(number) / 1000:.4g} s" if unit == "ms" else f"{number} s"


def _advice(hit: Hit, attempt: Evidence) -> tuple[str, ...]:
    host, port = _place(hit) if hit.sign is _CONNECT else _endpoint(attempt)
    same = "ps -eo pid,lstart,args | grep -E 'torchrun|ddp-run'   # on every node: same command? started when?"
    if host is None:
        return (same, "env | grep -E 'MASTER_|WORLD_SIZE|^RANK|PET_'   # same endpoint and counts on every node?")
    return (
        f"timeout 5 bash -c '</dev/tcp/{host}/{port}' && echo open   # from this node: is it reachable?",
        f"ss -ltn 'sport = :{port}'   # on {host}: is anything listening?",
        same,
    )


def _endpoint(attempt: Evidence) -> tuple[str | None, str | None]:
    hit = in_whole_log(attempt, (_CONNECT,))
    return _place(hit) if hit is not None else (None, None)


def _place(hit: Hit) -> tuple[str | None, str | None]:
    host, _, port = (hit["address"] or "").partition(":")
    return hit["host"] or host or None, hit["port"] or port or None
