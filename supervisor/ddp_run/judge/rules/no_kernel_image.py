"""No kernel for this GPU's architecture.

## What happened
Torch or an extension has no code for the GPU's architecture: the GPU is newer (or much older) than the build supports.
## How to recognise it
`no kernel image is available for execution on the device`, or torch's warning `NVIDIA … with CUDA capability sm_120 is
not compatible with the current PyTorch installation`, which names both sides; ROCm: `hipErrorNoBinaryForGpu: Unable to
find code object for all current devices!`, `HIP error: invalid device function`, rocBLAS' `Cannot read
…TensileLibrary.dat … for GPU arch : gfx1010`; `…_STATUS_ARCH_MISMATCH`. The GPU is detected and works until the first
kernel runs. Libraries also say what their kernels need: `only supports Ampere GPUs or newer`, `compute capability 8.9
or higher required`.
## What to do
- `python -c "import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())"`: the first must be
  in the second (sm_90 is (9, 0)). Install a torch whose list includes it.
- If torch itself works, an extension (flash-attention, xformers, bitsandbytes, apex, your own) is the problem: rebuild
  it with `TORCH_CUDA_ARCH_LIST="9.0"`, or install its wheel for this torch.
- ROCm on a consumer GPU: set `HSA_OVERRIDE_GFX_VERSION` to the nearest supported one, if the instruction sets match.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import behind_nccl, ended_by_gpu, errors_named, vendor
from ddp_run.judge.signs import Hit, Sign, anywhere, first_of, like, meaning, quotes
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP309",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the build will still have no code for this GPU"),
)
_WARNING = (
    r"(?m:^)(?P<gpu>[^\n]{2,160}?) with (?:CUDA|HIP|XPU)? ?capability (?P<arch>sm_\w+)"
    r" is not compatible with the current PyTorch installation"
)
_WARNED = like(_WARNING)
SYMPTOMS = (like(rf"{_WARNING}[^\n]{{0,80}}(?:\n[^\n]{{0,400}}){{0,4}}\Z"),)
"""A log that ends with it."""
_REFUSED = meaning(
    like(r"only supported on GPUs with compute capability (?:of at least|>=) [\d.]+"),
    like(r"Runtime compute cap (?P<arch>\d+) is not compatible with compile time compute cap"),
    like(r"is not supported for the current GPU\. Minimum capability: \d+\. Current capability: "),
    like(r"FlashAttention only supports (?:\w{1,20} or )?(?:Turing|Ampere|Ada|Hopper)\b"),
    like(r"only supports sm_?\d{2,3} and above"),
    Sign("with CUDA capab", r"GPU with CUDA capability \d+ \d+ is not supported|requires a GPU with CUDA capab"),
    like(r" Backend requires SM>=\d{2,3}\b"),
    Sign("engine plan file is generated on an incompatible device"),  # TensorRT
    cause="{line}",
)
"""Libraries that compare the GPU with the ones they were built for."""
_RAISED = frozenset(
    {"RuntimeError", "ValueError", "AssertionError", "NotImplementedError", "ImportError", "UnsupportedCUDAError"}
)
_ASKS = r"(?:[Rr]equires?|[Nn]eeds?|only (?:supports?|supported|available)|(?:is|are) supported|[Mm]inimum|at least)"
_OLDER = r"(?:Volta|Turing|Ampere|Ada|Hopper|Blackwell|[sS][mM]_?\d{2,3}|A[18]00|H[128]00|B[23]00)"
_OF_A_GPU = r"\b(?:[Cc]ompute|CUDA|GPU|device with)"
_NEEDS_ANOTHER = "{who} needs another GPU: {asked}{where}"
_WHAT_IT_HAS = ("nvidia-smi --query-gpu=name,compute_cap --format=csv   # what this GPU has",)
_TOO_OLD = meaning(
    *(
        Sign("", said, _RAISED)
        for said in (
            rf"{_ASKS}[^\n]{{0,120}}?{_OF_A_GPU} [Cc]apability[^\n\d]{{0,30}}\d|Minimum capability: \d",
            rf"{_OF_A_GPU} [Cc]apability[^\n\d]{{0,12}}\d[\d.]{{0,4}}\)?,?"
            r" (?:is required|required|or (?:higher|newer|above|greater|later))",
            rf"{_ASKS}[^\n,]{{0,60}}?\b{_OLDER}"
            r"(?:\+|\b[^\n]{0,30}?\b(?:newer|later|above|higher|GPUs?|[AH]\d{3})\b)",
            r"CUDA [Dd]evice does not support bfloat16",
            r"supported on CUDA ?>= ?\d{1,2}\.\d and MI\d{3}",
        )
    ),
    cause=_NEEDS_ANOTHER,
    advice=_WHAT_IT_HAS,
)
"""Requirements of kernels, in their libraries' exceptions."""
_SEVERAL = "No operator found for `"
"""xFormers then lists a reason for each of its kernels; any of them may be the cause."""
SIGNS = meaning(
    *_REFUSED,
    *meaning(
        Sign("No supported GPU compute capabilities found"),
        Sign("No supported CUDA architectures found"),
        Sign("architecture mismatch when calling `cu"),
        cause=_NEEDS_ANOTHER,
        advice=_WHAT_IT_HAS,
    ),
    *errors_named(
        "NoKernelImageForDevice|InvalidKernelImage|InvalidImage|NoBinaryForGpu",
        "NO_BINARY_FOR_GPU|INVALID_(?:IMAGE|SOURCE)",
    ),
    Sign("HSA_STATUS_ERROR_INVALID_ISA"),
    Sign("Error named symbol not found at line "),  # bitsandbytes
    like(r"Value '(?P<arch>sm_\w{2,6})' is not defined for option 'gpu-name'"),
    Sign("no kernel image is available for exec"),
    like(
        r"(?:(?:CUDA|HIP) (?:driver )?error|Triton Error \[(?:CUDA|HIP)\])[^\n]{0,40}: device kernel image is invalid",
    ),
    like(r"\b\w+_STATUS_ARCH_MISMATCH\w*"),
    *("PI_ERROR_INVALID_BINARY", "UR_RESULT_ERROR_INVALID_BINARY"),
    Sign("Unable to find code object for all current devices"),
    like(r"(?P<runtime>CUDA|HIP) error: invalid device function"),
    like(r"rocBLAS error: Cannot read \S[^\n]{0,300} for GPU arch ?: (?P<arch>\w+)"),
    _WARNED,
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that ended the rank; torch's warning alone is not a failure."""
    hit = first_of(death, (*_TOO_OLD, *SIGNS[:-1]), ended_by_gpu, behind_nccl)
    if hit is None:
        return None
    warned = anywhere(death.stderr, (_WARNED,))
    arch = hit["arch"] or (warned["arch"] if warned else None)
    gpu = re.sub(r"^.*?(?=NVIDIA|GeForce|Tesla|Quadro|AMD|Intel)", "", warned["gpu"] or "", count=1) if warned else ""
    which = f" ({', '.join(part for part in (gpu, arch) if part)})" if arch or gpu else ""
    if hit.sign.advice is not None:
        sure: Confidence | None = "likely" if _SEVERAL in hit.match.string else None
        asked = re.sub(r"^.*?: ", "", hit.text, count=1)[:160]
        return hit.finding(RULE, death, hit.says(death, asked=asked), confidence=sure)
    sure = "likely" if warned is None and hit["runtime"] == "CUDA" else None
    whose = "this torch" if warned is not None else "torch or an extension"
    why = hit.says(death) or f"{whose} was built without it"
    cause = f"{death.who} has no kernel for its GPU{which}: {why}{hit.where(death)}"
    return hit.finding(RULE, death, cause, _advice(hit, arch, warned is not None), confidence=sure, also=quotes(warned))


def _advice(hit: Hit, arch: str | None, torchs: bool) -> tuple[str, ...]:
    if vendor(hit.match.string) == "HIP":
        return (
            "rocminfo | grep -m1 gfx   # the GPU's architecture",
            'python -c "import torch; print(torch.cuda.get_arch_list())"   # its architectures',
        )
    if torchs:
        return (
            'python -c "import torch; print(torch.__version__, torch.cuda.get_arch_list())"   # its architectures',
            f"python -m pip install --upgrade torch   # to a version with {arch}:"
            f" https://pytorch.org/get-started/locally/",
        )
    digits = re.fullmatch(r"sm_(\d+)(\d)", arch or "")
    build = f"{digits[1]}.{digits[2]}" if digits else "9.0"
    return (
        'python -c "import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())"'
        "   # the first must be in the second",
        f'TORCH_CUDA_ARCH_LIST="{build}" pip install --no-build-isolation --force-reinstall --no-deps EXTENSION'
        "   # if torch's list has it: rebuild the failed extension",
    )
