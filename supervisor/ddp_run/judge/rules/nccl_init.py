"""NCCL initialization failed.

## What happened
The ranks found each other, but NCCL could not create a communicator: different NCCL versions, wrong arguments or
settings, a CUDA call that failed inside NCCL, or a rank that never joined the setup.
## How to recognise it
`NCCL error in: …ProcessGroupNCCL.cpp:…` with `ncclInvalidUsage`, `ncclInvalidArgument`, `ncclInternalError` or
`ncclUnhandledCudaError`; the line below `Last error:` (NCCL 2.13 and later) or the `NCCL WARN` line is the real reason.
Two ranks on one GPU is [duplicate-gpu](duplicate-gpu.md). `is setting up NCCL communicator and retrieving ncclUniqueId
from [0] … got error: wait timeout` means that rank 0 did not start the same collective in time. `ncclSystemError` and
errors about sockets or InfiniBand are nccl-network; `ncclRemoteError` is a consequence.
## What to do
If the versions differ, install the same torch on all nodes. If NCCL gives no reason, run once with `NCCL_DEBUG=INFO`:
see the first `NCCL WARN` line.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.nccl_text import ERRORS, REASONS, error_of, warning_of_result
from ddp_run.judge.signs import Sign, ended_by, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import Rank

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP502",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="NCCL will fail on the same ranks and GPUs again"),
    unlike="together",
    backend="always",
)
_UNIQUE_ID = like(
    r"\] is setting up NCCL communicator and retrieving ncclUniqueId from \[(?P<root>\d{1,9})\]"
    r"[\s\S]{0,400}?got error: (?P<error>[^\n]*)",
    cause="{who} waited in NCCL setup for rank {root}, which did not start the same collective in time",
    advice=(
        "py-spy dump --pid PID_OF_RANK_{root}   # while the next run waits: where is rank {root}?",
        "export NCCL_DEBUG=INFO   # prints each rank's 'Init START'",
    ),
    likely=True,
)
_HCCL = meaning(  # Ascend's errors, through torch_npu
    like(r"HCCL function error: (?P<call>[hH]cclCommInitRootInfo\w{0,20})\("),
    Sign("store->get() got error: HCCL_BLOCKING_WAIT"),
    cause="{who}: HCCL could not set up its communicator{ ({call})}",
    likely=True,
)
SIGNS = (*ERRORS, *REASONS, _UNIQUE_ID, *_HCCL)
SYMPTOMS = (
    like(r"NCCL WARN (?:Bootstrap Root : rank \d{1,7} of \d{1,7} ranks has already checked in|Cuda failure)"),
    warning_of_result("1345"),
    # HCCL's root, and the others: ranks that did not connect in time (hiascend.com, HCCL user guide, EI0015)
    like(r"\bHCCL\(.{1,200}topo exchange server get socket timeout!|fault_info\[\"Failed to connect agent\["),
)
_CODES = frozenset({"ncclInvalidUsage", "ncclInvalidArgument", "ncclInternalError", "ncclUnhandledCudaError"})
_VERSIONS = re.compile(r"[Mm]ismatched NCCL version|mismatch in (?:info|rank count) from procs|Message truncated")
_FOR_SURE = re.compile(
    r"same GPU/Partition|Mismatched NCCL version|Invali[dg] (?:config|rank|device|NCCL_)"
    r"|has already checked in|improper usage of ncclCommInitRank|NCCL_CONFIG_INITIALIZER"
)
_WAITED = re.compile(r"wait timeout|Socket Timeout|[Tt]imed out|Timeout waiting")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match an NCCL error about wrong use or a failed setup, not about the network or a lost peer."""
    waited = ended_by(death, (_UNIQUE_ID,))
    if waited is not None:
        late = _WAITED.search(waited["error"] or "") is not None
        return replace(waited.finding(RULE, death), culprit=Rank(int(waited["root"] or 0))) if late else None
    ascends = ended_by(death, _HCCL)
    if ascends is not None:
        look = "npu-smi info   # are the devices of ASCEND_RT_VISIBLE_DEVICES there, and healthy?"
        return ascends.finding(RULE, death, None, (look,))
    error = error_of(death)
    if error is None or error.network or error.peer_left or error.mismatch or error.shared_memory:
        return None
    system = error.code == "ncclSystemError" and error.hit.exception is not None
    told = error.reason is not None and (error.code is None or system)
    if error.code not in _CODES and not told:
        return None
    said = f"{error.code or 'an NCCL error'}{': ' + error.reason[:160] if error.reason else ''}"
    sure = error.reason is not None and _FOR_SURE.search(error.reason) is not None
    return error.hit.finding(
        RULE,
        death,
        f"{death.who}: NCCL failed with {said}",
        _OTHER_VERSIONS if _VERSIONS.search(error.reason or "") else _DEBUG,
        confidence="certain" if sure else "likely",
        also=error.also,
    )


_DEBUG = ("export NCCL_DEBUG=INFO   # the first NCCL WARN line of the next run shows why",)
_OTHER_VERSIONS = (
    "python -c 'import torch; print(torch.__version__, torch.cuda.nccl.version())'   # the same on every node?",
    "echo $LD_LIBRARY_PATH $LD_PRELOAD   # does one of them load a different libnccl?",
)
