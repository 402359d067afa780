"""GPU peer access not supported.

## What happened
A program or NCCL wanted one GPU to access another one's memory directly (peer-to-peer over PCIe or NVLink), and CUDA
reports that this pair cannot: consumer cards without support, cards under different root complexes, virtual machines,
MIG slices, a container with only some of the GPUs.
## How to recognise it
`peer access is not supported between these two devices` (cudaErrorPeerAccessUnsupported, 217): as NCCL's `Cuda failure
217 '…'` after `ncclUnhandledCudaError`, as torch's `CUDA error: …`, or from a library's own all-reduce (vLLM, SGLang,
TensorRT-LLM, DeepEP).
## What to do
- `NCCL_P2P_DISABLE=1`: NCCL goes through host memory instead. The variable must reach the ranks: Ray workers take it
  from `runtime_env`, not from the shell.
- A library's own all-reduce has its own switch: vLLM and SGLang `--disable-custom-all-reduce`.
- `nvidia-smi topo -p2p r` shows which pairs support it.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import behind_nccl, ended_by_gpu, errors_named
from ddp_run.judge.signs import Sign, first_of, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP312",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="these GPUs will still not support peer access"),
)
SIGNS = meaning(
    Sign("peer access is not supported between these two devices"),
    Sign("P2P access is not supported between devices"),
    *errors_named("PeerAccessUnsupported", "PEER_ACCESS_UNSUPPORTED"),
    like(r"[Cc]uda failure 217\b"),
    cause="{who}: two GPUs cannot access each other's memory (CUDA error 217, peer access){where}",
)
_LIBRARY = re.compile(r"custom_all_?reduce|IpcMemory|deep_ep")
_ADVICE = (
    "NCCL_P2P_DISABLE=1 ddp-run …   # NCCL then goes through host memory; Ray: in runtime_env",
    "nvidia-smi topo -p2p r; nvidia-smi topo -m   # which pairs support it",
)
_OWN = "--disable-custom-all-reduce   # vLLM, SGLang: their own all-reduce needs it"


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match CUDA's message in the error that ended the rank, or in NCCL's warning before it."""
    hit = first_of(death, SIGNS, ended_by_gpu, behind_nccl)
    if hit is None:
        return None
    own = _LIBRARY.search(f"{hit.match.string}\n{hit.traceback}") is not None
    return hit.finding(RULE, death, advice=(_OWN, *_ADVICE) if own else _ADVICE)
