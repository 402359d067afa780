"""Triton kernel exceeds the GPU's resources.

## What happened
A kernel that Triton compiled (by hand, in a library, or by `torch.compile`) needs more shared memory, registers or
threads per block than this GPU has. This shared memory is on the GPU's multiprocessors; it has nothing to do with
`/dev/shm`.
## How to recognise it
`triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.
Reducing block sizes or num_stages may help.`; from Inductor `No valid triton configs. OutOfResources: …`.
## What to do
- Reduce `num_stages` or the block sizes, or `num_warps` if threads are the limit.
- The kernel may be tuned for larger GPUs: A100 and H100 have 163 and 227 KiB per block, consumer cards 99, T4 64.
- With `torch.compile`, drop `mode="max-autotune"`; with a library, try its newest release, or its switch for other
  kernels.
"""

from __future__ import annotations

from ddp_run.judge.gpu_text import ended_by_gpu
from ddp_run.judge.signs import Sign, like, matcher, meaning
from ddp_run.judge.verdict import Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP313",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the kernel will still need more than the GPU has"),
)
SIGNS = meaning(
    like(
        r"out of resource: (?P<what>[\w ]+)(?:,? Required: ?(?P<required>\d+),? Hardware limit: ?(?P<limit>\d+))?",
        cause="{who} has a Triton kernel that needs more {what} than the GPU has{where}{: {required} of {limit}}",
    ),
    Sign("OutOfResources", types=("OutOfResources",)),
    cause="{who} has a Triton kernel that needs more resources than the GPU has{where}",
    advice=(
        "lower num_stages or the block sizes of this kernel (num_stages=1 needs the least shared memory)",
        "TORCH_COMPILE_DISABLE=1 ddp-run …   # to confirm, if torch.compile generated the kernel",
    ),
)
match = matcher(RULE, SIGNS, ended_by_gpu)
