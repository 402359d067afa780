"""NCCL network error.

## What happened
NCCL found no network interface to use, could not connect to another rank, or the network (sockets, InfiniBand, RoCE,
EFA) failed.
## How to recognise it
`ncclSystemError`, or `Last error:` and `NCCL WARN` lines about the network: `Bootstrap : no socket interface found`,
`Call to connect returned Connection refused`, `socketStartConnect: Connect to … failed : No route to host`, `NET/IB :
Got completion … with error 12`, `Call to ibv_reg_mr failed`. A connection *closed* by a peer (`Connection closed by
remote peer`, `ncclRemoteError`) is not a network failure: see peer-died. An `ncclSystemError` about `/dev/shm` is
shm-exhausted.
## What to do
Set the interface that connects the nodes: `export NCCL_SOCKET_IFNAME=eth0` (`ip -br addr` lists them; on one host, `lo`
always works). Between nodes, all ports must be open: NCCL listens on ephemeral ones. If you suspect InfiniBand, one run
with `NCCL_IB_DISABLE=1` shows whether it is the cause (slow). `NCCL_DEBUG=INFO` prints which interfaces and devices
NCCL chose. InfiniBand error 12 can also mean that the other rank's process is gone: look for a rank that exited first.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.nccl_text import ERRORS, REASONS, NcclError, error_of, warning_of_result
from ddp_run.judge.signs import Sign, in_exception, in_last_words, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP205",
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="the link may have been down only for a moment"),
    host="repeated",
    unlike="together",
    backend="init",
)
SYMPTOMS = (
    like(r"\bibv_\w{1,40} failed\b"),
    like(r"NCCL WARN (?:\w{1,30} : |socketStartConnect: )?Connect to \S{1,100} failed : "),
    like(r"NCCL WARN (?:Bootstrap|NET/\w{1,20}) : (?:no socket interface found|Got completion with error \d)"),
    warning_of_result("26"),
)
_ALONE = meaning(
    like(  # NCCL's src/proxy.cc: the thread that connects to other hosts failed
        r"NCCL WARN \[Proxy Service \d{1,9}\] (?P<said>Failed to execute operation Connect from rank \d{1,9})"
        r"(?!, retcode [1345]\b)",  # ncclResult_t: not of the system (2), nor of another rank (6)
        cause="{who}: NCCL could not connect to another host: {said}",
    ),
    like(
        # NCCL's src/misc/socket.cc: another rank's host refuses a connection
        r"socketPollConnect: connect (?:to \S{1,80} )?returned (?P<said>[^,\n]{1,80}), retrying "
        r"\((?P<times>\d{1,9}/\d{1,9})\)",
        cause="{who}: NCCL cannot connect to another host: {said} (attempt {times})",
        advice=("ip -br addr   # which interface connects the hosts? set NCCL_SOCKET_IFNAME to it on each",),
    ),
    like(
        # its src/transport/net_ib.cc; older versions print `error 12`
        r"NET/IB ?: Got completion from peer (?P<peer>\S{1,80}) with (?:error|status)[ =](?P<status>[1-9]\d{0,4})",
        cause="{who}: an NCCL transfer over InfiniBand failed (status {status}, peer {peer})",
        advice=(
            "ibv_devinfo; ibstat   # on both hosts: is the port active?",
            "NCCL_IB_DISABLE=1 ddp-run …   # once: shows whether InfiniBand is the cause (slow)",
        ),
    ),
    like(
        # MPI and NCCL's UCX plugin use it
        r"UCX  ERROR +(?P<said>Transport retry count exceeded on \S{1,80}|Remote endpoint is unreachable"
        r"|no [\w ]{1,40} transport to [^\n]{1,300}Destination is unreachable)",
        cause="{who}: the network failed: {said}",
        advice=("ibv_devinfo; ip -br addr   # on both hosts",),
    ),
    likely=True,
)
"""Lines without an exception."""
_NEVER = Retry(helps=False, reason="the interface will still be missing")
_CCL = Sign(
    "host IP",
    r"oneCCL: [^\n]{1,300}?(?P<said>can ?not get host IP|can't find interface \S{1,80} to get host IP)",
    ("RuntimeError",),
    cause="{who}: oneCCL found no network address of this host: {said}",
    advice=("ip -br addr; env | grep -E 'CCL_KVS|FI_'   # is there such an interface?",),
    retry=_NEVER,
)
SIGNS = (*ERRORS, *REASONS, *_ALONE, _CCL)
_INTERFACE = re.compile(
    r"no socket interface found|No usable listening interface|no interface found|no device found"
    r"|No IP interface found|No interface found in the same subnet"
)
_ADDRESS = re.compile(r"(?:to|from peer|peer) \[?(?P<host>[\w.\-:%]+?)\]?<(?P<port>\d+)>")
_INFINIBAND = re.compile(r"NET/IB|ibv_|IB_|InfiniBand|Got completion")
_FOR_SURE = re.compile(
    r"no socket interface found|No usable listening interface|no interface found|no device found|No route to host"
    r"|Network is unreachable|Connection refused|Connection timed out|async fatal event"
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match an NCCL error caused by the network, or a system error without a reason."""
    ccl = in_exception(death, (_CCL,))
    if ccl is not None:
        return ccl.finding(RULE, death)
    error = error_of(death)
    if error is None and attempt.logs_only and death.code is None and death.exception is None:
        return _without_exception(death)
    if error is None or error.peer_left or error.shared_memory or error.mismatch:
        return None
    if not error.network and (error.code != "ncclSystemError" or error.reason is not None):
        return None
    said = error.reason
    cause = (
        f"{death.who}: NCCL network failed: {said[:160]}"
        if said
        else (f"{death.who}: a system call in NCCL failed, usually the network (ncclSystemError, no reason given)")
    )
    sure = said is not None and _FOR_SURE.search(said) is not None
    missing = said is not None and _INTERFACE.search(said) is not None
    return error.hit.finding(
        RULE,
        death,
        cause,
        _advice(error),
        confidence="certain" if sure and error.hit.exception is not None else "likely",
        retry=_NEVER if missing else None,
        also=error.also,
    )


def _without_exception(death: Death) -> Finding | None:
    """Match a log with a failed connection or a failed transfer over InfiniBand, and no exception."""
    hit = in_last_words(death, _ALONE)
    return None if hit is None else hit.finding(RULE, death)


def _advice(error: NcclError) -> tuple[str, ...]:
    said = error.reason or ""
    debug = "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV   # prints the interfaces NCCL chooses"
    if _INTERFACE.search(said):
        return (
            "ip -br addr   # the interfaces of this host",
            "env | grep -E 'NCCL_(SOCKET|OOB_NET)_IFNAME'   # set to one that is not listed above?",
            "export NCCL_SOCKET_IFNAME=lo   # enough for one host; for several, the interface that connects them",
        )
    if _INFINIBAND.search(said):
        return (
            "ibstat | grep -E 'CA |State|Rate'   # are all ports Active?",
            "ulimit -l   # must be unlimited for InfiniBand",
            "export NCCL_IB_DISABLE=1   # one run over sockets shows whether InfiniBand is the cause",
            debug,
        )
    address = _ADDRESS.search(said)
    if address is not None:
        return (
            f"ip route get {address['host']}   # the interface this host uses to reach it",
            "export NCCL_SOCKET_IFNAME=eth0   # the interface that connects the nodes (ip -br addr)",
            debug,
        )
    return ("ip -br addr; env | grep NCCL_   # the interfaces, and which one NCCL was told to use", debug)
