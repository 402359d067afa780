"""A GPU's memory ran out.

## What happened
The rank asked its GPU for more memory than was free there.
## How to recognise it
`torch.OutOfMemoryError` (in older releases `torch.cuda.OutOfMemoryError`, `RuntimeError`) with
`CUDA out of memory. Tried to allocate …`, `HIP out of memory`, `XPU out of memory`; `CUDA error: out of memory` from
the runtime itself; `CUBLAS_STATUS_ALLOC_FAILED`; NCCL's `Cuda failure 'out of memory'`;
`UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY`. The host's memory is another matter ([host-oom](host-oom.md)): that says
`DefaultCPUAllocator`, `MemoryError` or only `Killed`.

The message has the numbers that decide what to do: what was asked, what the GPU has and what was free of it, what torch
uses, and what torch holds but does not use ("reserved … but unallocated").
## What to do
1. Much memory reserved but not allocated: the pool is in pieces. `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`
   (newer torch: `PYTORCH_ALLOC_CONF`; ROCm: `PYTORCH_HIP_ALLOC_CONF`).
2. Memory that neither torch nor this process holds: another process is on that GPU, often what is left of an earlier
   run, or another rank that put its tensors on GPU 0. `nvidia-smi --query-compute-apps=pid,used_memory --format=csv`.
3. Else the job is too large: a smaller batch per rank with gradient accumulation, activation checkpointing, bf16,
   or FSDP to shard the optimizer's state.
4. While loading a checkpoint: `torch.load(path, map_location="cpu")`, or every rank loads onto the GPU that saved it.
"""

from __future__ import annotations

import re

from ddp_run.gpu_text import behind_nccl, ended_by_gpu, vendor
from ddp_run.signs import Hit, Sign
from ddp_run.verdict import Area, Death, Evidence, Finding, Retry, Rule

RULE = Rule(
    code="DDP402",
    name="cuda-oom",
    title="A GPU's memory ran out",
    area=Area.MEMORY,
    retry=Retry(helps=False, reason="the same step asks for the same memory again"),
    since="0.1",
    beats=(
        "nccl-init",
        "nccl-network",
        "native-abort",
        "segfault",
        "host-oom",
        "cuda-library-error",
        "compile-failure",
        "cuda-unavailable",
    ),
)
_SIZE = r"[\d.]+ (?:bytes|[KMGT]iB)"
_ASKED = re.compile(rf"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<asked>{_SIZE})?")
_GPU = re.compile(r"GPU (?P<gpu>\d+)(?: has|;)")
_TOTAL = re.compile(rf"total capac?i?ty of (?P<new>{_SIZE})|; (?P<old>{_SIZE}) total capacity")
_FREE = re.compile(rf"of which (?P<new>{_SIZE}) is free|; (?P<old>{_SIZE}) free")
_OWN = re.compile(rf"this process has (?P<new>{_SIZE}) memory in use")
_USED = re.compile(rf"Of the allocated memory (?P<new>{_SIZE}) is allocated by PyTorch|; (?P<old>{_SIZE}) already")
_IDLE = re.compile(rf"and (?P<new>{_SIZE}) is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"; (?P<old>{_SIZE}) (?:reserved in total|cached)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_IN_NCCL = (
    Sign("'out of memory'", re.compile(r"(?:Cuda|HIP|Hip) failure (?:\d+ )?'out of memory'")),
    Sign("Failed to CUDA calloc"),
)
SIGNS = (
    Sign("CUDA out of memory", _ASKED),
    Sign("HIP out of memory", _ASKED),
    Sign("XPU out of memory", _ASKED),
    Sign("error: out of memory", re.compile(r"(?:CUDA|HIP|CUDA driver) error: out of memory")),
    Sign("Error 2: out of memory"),
    Sign("cuda runtime error (2)"),
    Sign(
        "would exceed allowed memory. (out of memory)",
        re.compile(
            rf"would exceed allowed memory\. \(out of memory\)(?:[\s\S]{{0,200}}?Requested\s*: (?P<asked>{_SIZE}))?"
        ),
    ),
    Sign("[CUDA]: out of memory", re.compile(r"Triton Error \[CUDA\]: out of memory")),
    Sign("CUBLAS_STATUS_ALLOC_FAILED"),
    Sign("CUDNN_STATUS_ALLOC_FAILED"),
    Sign("CUSOLVER_STATUS_ALLOC_FAILED"),
    Sign("HIPBLAS_STATUS_ALLOC_FAILED"),
    Sign("CUDA_ERROR_OUT_OF_MEMORY"),
    Sign("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    Sign("PI_ERROR_OUT_OF_RESOURCES"),
    *_IN_NCCL,
    Sign("OutOfMemoryError", types=frozenset({"OutOfMemoryError"})),
)


def match(death: Death, run: Evidence) -> Finding | None:
    """An allocation on a GPU that was refused and ended the rank."""
    hit = ended_by_gpu(death, SIGNS) or behind_nccl(death, _IN_NCCL)
    if hit is None:
        return None
    if _is_pinned(death):
        return _pinned(hit, death)
    text = hit.exception.message if hit.exception is not None else hit.text
    memory = _Memory(text)
    cause = f"{death.who} ran out of GPU memory"
    cause += f" asking for {hit['asked']}" if hit["asked"] else ""
    cause += f" on GPU {memory.gpu}" if memory.gpu else ""
    cause += " for NCCL's buffers" if hit.sign in _IN_NCCL else _phase(death)
    cause += f": {memory.counted}" if memory.counted else ""
    retry = None
    if memory.foreign:
        retry = Retry(helps=True, reason="another process held part of the GPU's memory and may be gone next time")
    return hit.finding(RULE, death, cause, _advice(memory, hit, death), retry=retry)


class _Memory:
    """The numbers of one message, in bytes; null where it does not have them."""

    def __init__(self, text: str) -> None:
        gpu = _GPU.search(text)
        self.gpu = gpu["gpu"] if gpu else None
        self.total, self.free = _read(_TOTAL, text), _read(_FREE, text)
        self.used, own = _read(_USED, text), _read(_OWN, text)
        reserved, self.idle = _read(_RESERVED, text), _read(_IDLE, text)
        if self.idle is None and reserved is not None and self.used is not None:
            self.idle = max(0, reserved - self.used)
        if own is None and self.used is not None:
            own = self.used + (self.idle or 0)
        self.others = None if self.total is None or own is None else max(0, self.total - own - (self.free or 0))

    @property
    def foreign(self) -> bool:
        """Whether other processes hold a part that counts: more than a tenth, which no CUDA context takes."""
        return self.others is not None and self.total is not None and self.others > self.total / 10

    @property
    def fragmented(self) -> bool:
        return self.idle is not None and self.total is not None and self.idle > self.total / 20

    @property
    def counted(self) -> str:
        parts = []
        if self.free is not None and self.total is not None:
            parts.append(f"{_shown(self.free)} of {_shown(self.total)} were free")
        if self.foreign and self.others is not None:
            parts.append(f"other processes held {_shown(self.others)}")
        if self.fragmented and self.idle is not None:
            parts.append(f"torch held {_shown(self.idle)} unused")
        return ", ".join(parts)


def _read(pattern: re.Pattern[str], text: str) -> float | None:
    hit = pattern.search(text)
    if hit is None:
        return None
    number, unit = next(value for value in hit.groups() if value).split()
    return float(number) * _UNITS[unit]


def _shown(size: float) -> str:
    unit = next((name for name in ("GiB", "MiB", "KiB") if size >= _UNITS[name]), "bytes")
    return f"{size / _UNITS[unit]:.4g} {unit}"


def _phase(death: Death) -> str:
    """What it was doing, as the frames show, the innermost first."""
    raised = death.exception
    frames = raised.traceback if raised is not None else ""
    for words, phase in (
        ("torch/serialization.py", "loading a checkpoint"),
        ("torch/autograd/__init__.py", "during backward"),
        ("torch/optim/", "in the optimizer's step"),
    ):
        if words in frames:
            return f" {phase}" if phase.startswith(("during", "in ")) else f" while {phase}"
    return ""


def _is_pinned(death: Death) -> bool:
    """Whether it was host memory that the driver was to pin: the runtime says `out of memory` of that too."""
    raised = death.exception
    return raised is not None and "Tried to allocate" not in raised.message and "pin_memory" in raised.traceback


def _pinned(hit: Hit, death: Death) -> Finding:
    cause = f"{death.who} ran out of memory pinning host memory for its GPU, not of the GPU's own"
    advice = ("free -h   # pinned memory is the host's", "DataLoader(…, pin_memory=False)   # to confirm")
    return hit.finding(RULE, death, cause, advice, confidence="likely")


def _advice(memory: _Memory, hit: Hit, death: Death) -> tuple[str, ...]:
    amd = vendor(hit.text) == "HIP"
    intel = vendor(hit.text) == "XPU"
    said = hit.exception.message if hit.exception is not None else hit.text
    advice = []
    if memory.foreign or (memory.total is None and not intel):
        query = "rocm-smi --showpids" if amd else "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"
        advice.append(f"{query}   # which processes hold the GPU's memory")
    if memory.fragmented and not intel:
        name = "PYTORCH_HIP_ALLOC_CONF" if amd else "PYTORCH_CUDA_ALLOC_CONF"
        name = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in said else name
        unused = _shown(memory.idle or 0)
        advice.append(f"export {name}=expandable_segments:True   # {unused} reserved but unused")
    raised = death.exception
    if raised is not None and "torch/serialization.py" in raised.traceback:
        advice.append('torch.load(path, map_location="cpu")   # else it goes onto the GPU that saved it')
    elif not memory.foreign:
        advice.append("halve the batch per rank and double gradient accumulation: the same step in less memory")
    return tuple(advice)
