"""Illegal memory access on the GPU.

## What happened
Code on the GPU read or wrote outside its memory, or at a misaligned address. The process's GPU context is then lost, so
every later call fails with the same message.
## How to recognise it
`CUDA error: an illegal memory access was encountered`, `misaligned address`, `unspecified launch failure`, `an illegal
instruction was encountered`, `invalid program counter`; ROCm: `Memory access fault by GPU node-1 … on address …`, which
ends the process with SIGABRT; Intel: `Segmentation fault from GPU at …`. In the kernel log: Xid 31 (a page fault) or
13.

The GPU runs asynchronously: the Python line in the traceback is where the error surfaced, rarely where it happened. An
assertion in a kernel is [device-side-assert](device-side-assert.md).
## What to do
- `CUDA_LAUNCH_BLOCKING=1` (ROCm: `HIP_LAUNCH_BLOCKING=1`, `AMD_SERIALIZE_KERNEL=3`) makes the Python line accurate.
- `compute-sanitizer --target-processes all python train.py` on one GPU names the kernel and the address.
- Suspect code outside torch: custom CUDA and Triton kernels, flash-attention, apex, extensions built for another torch.
  Tensors with more than 2^31 elements are another common cause.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import behind_nccl, ended_by_gpu, errors_named, vendor
from ddp_run.judge.signs import Hit, Sign, every, first_of, like, meaning, quotes
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP305",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same kernel will fail on the same data again"),
    end="sticky",
)
SIGNS = meaning(
    Sign("an illegal memory access was encountered"),
    Sign("misaligned address", r"(?:CUDA|HIP) (?:error|driver error): misaligned address|'misaligned address'"),
    Sign("unspecified launch failure"),
    Sign("an illegal instruction was encountered"),
    Sign("CUDA error: invalid program counter"),
    Sign("operation not supported on global/shared address space"),
    *errors_named(
        "IllegalAddress|MisalignedAddress|LaunchFailure|IllegalInstruction|InvalidPc|InvalidAddressSpace",
        "ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|LAUNCH_FAILED|ILLEGAL_INSTRUCTION|INVALID_PC|INVALID_ADDRESS_SPACE",
    ),
    like(r"HSA_STATUS_ERROR_(?:MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|ILLEGAL_INSTRUCTION)\b"),
    Sign("address of the MTE instruction is out of range"),  # Ascend's
    # ROCm
    like(
        r"Memory access fault by GPU node-(?P<gpu>\d+).{0,200} on address (?P<address>0x[0-9a-fA-F]+|\(nil\))",
        cause="memory access fault on GPU node {gpu} at address {address}",
    ),
    like(r"Segmentation fault from GPU at (?P<address>0x[0-9a-f]+)", cause="page fault at address {address}"),  # Intel
    cause="{match}",
)
SYMPTOMS = (like(r"amdgpu: VM_L2_PROTECTION_FAULT_STATUS: ?0x[0-9a-fA-F]{1,16}"),)
"""Of the kernel, about a GPU of AMD: what NVIDIA's driver calls Xid 31."""
_PAGE_FAULT = (like(r"NVRM: Xid \([^)]{0,60}\): (?:13|31), (?:pid='?(?P<pid>\d{1,9}))?[^\n]*"),)
_ADVICE = {
    "HIP": (
        "export AMD_SERIALIZE_KERNEL=3 HIP_LAUNCH_BLOCKING=1   # then the traceback shows the launch itself",
        "dmesg -T | grep -i amdgpu   # the page fault, with its process",
    ),
    "XPU": ("dmesg -T | grep -iE 'i915|xe '   # the page fault, with its engine",),
}


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that ended the rank."""
    hit = first_of(death, SIGNS, ended_by_gpu, behind_nccl)
    if hit is None:
        return None
    what = re.sub(r"^(?:CUDA|HIP) (?:driver )?error: ", "", hit.says(death)).strip("'")
    cause = f"{death.who}'s GPU kernel failed: {what}"
    if hit.exception is not None and hit.exception.place:
        cause += f", surfaced at {hit.exception.place} (the kernel may have been launched earlier)"
    nvidias = (
        "export CUDA_LAUNCH_BLOCKING=1   # then the traceback shows the launch itself",
        f"compute-sanitizer --target-processes all python {attempt.script or 'train.py'}"
        "   # on one GPU: names the kernel and the address",
    )
    advice = _ADVICE.get(vendor(hit.match.string), nvidias)
    return hit.finding(RULE, death, cause, advice, also=quotes(_page_fault(death, attempt)))


def _page_fault(death: Death, attempt: Evidence) -> Hit | None:
    """Return the driver's last report about this process. Others, of this job or not, may fault at the same time."""
    told = every(attempt.kernel, *_PAGE_FAULT)
    if attempt.kernel_pids:
        told = [hit for hit in told if hit["pid"] in (None, str(death.pid))]
    return told[-1] if told else None
