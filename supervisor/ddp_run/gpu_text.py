"""Where the error of a GPU shows: in what ended the rank, and in what NCCL and the driver say of it. Pure.

Texts of NVIDIA's CUDA, AMD's ROCm (HIP) and Intel's XPU (SYCL, Level Zero) runtimes, as torch passes them on.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from ddp_run.signs import Hit, Sign, anywhere, in_exception, in_last_words
from ddp_run.verdict import Death

_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
_OF_A_GPU = re.compile(
    r"CUDA|cuda|cuDNN|cuBLAS|CUBLAS|CUDNN|NVML|NCCL|nccl|HIP |hip[A-Z]|rocBLAS|miopen|MIOpen|RCCL|HSA_"
    r"|XPU|SYCL|level_zero|[Tt]riton|AcceleratorError"
)
_NCCLS = re.compile(r"NCCL|nccl|RCCL|rccl|DistBackendError")
NO_GPU = re.compile(
    r"no GPUs found!|No CUDA GPUs are available|CUDA is not available|is_available\(\)|No HIP GPUs are available"
    r"|Unexpected error from cudaGetDeviceCount|(?i:no (?:cuda|gpu)s?\b.{0,30}(?:available|found|detected))"
    r"|AssertionError$|device type at start of device string|bf16/gpu|requires? (?:a )?(?:gpu|GPU|CUDA)"
)
"""What programs say where torch counts no GPU: the reason stands in a warning of torch's before it."""


def ended_by_gpu(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """The sign in the exception that ended the rank; without one in its last words, unless it was killed from outside.

    A rank that the kernel or the agent killed had gone on after what it printed of its GPU.
    """
    if death.exception is not None:
        return in_exception(death, signs)
    return None if death.code in _FROM_OUTSIDE else in_last_words(death, signs)


def behind_nccl(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """The sign in NCCL's warnings, where one of its exceptions ended the rank: `unhandled cuda error` is no cause."""
    raised = death.exception
    if raised is None or not _NCCLS.search(f"{raised.type}: {raised.message}"):
        return None
    return anywhere(death.nccl, signs) or anywhere(death.stderr, signs)


def behind_no_gpu(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """The sign in torch's warnings, where the rank ended because it found no GPU."""
    raised = death.exception
    if raised is None or not NO_GPU.search(f"{raised.type}: {raised.message}".removesuffix(": ")):
        return None
    return anywhere(death.stderr, signs)


def is_of_a_gpu(death: Death) -> bool:
    """Whether what ended the rank is of a GPU's runtime, or is not known at all."""
    raised = death.exception
    if raised is None:
        return death.code not in _FROM_OUTSIDE
    return _OF_A_GPU.search(f"{raised.type}: {raised.message}") is not None


def place(death: Death) -> str:
    """The user's line, where an exception shows it: ` (train.py:88)`."""
    raised = death.exception
    return f" ({raised.file.rpartition('/')[2]}:{raised.line})" if raised is not None and raised.file else ""


def vendor(text: str) -> str:
    """Whose GPU a message speaks of: `HIP`, `XPU`, else `CUDA` (torch for ROCm says `CUDA` in Python's texts too)."""
    if re.search(r"\bHIP\b|hip[A-Z]|HSA_STATUS|\bROCm\b|rocBLAS|miopen|MIOpen|\brocm|by GPU node-", text):
        return "HIP"
    return "XPU" if re.search(r"\bXPU\b|level_zero|PI_ERROR_|UR_RESULT_|SYCL|fault from GPU at", text) else "CUDA"
