"""Finds the GPU error: in the error that ended the rank, and in messages of NCCL and the driver. Pure.

Covers the runtimes of NVIDIA (CUDA), AMD (ROCm, HIP) and Intel (XPU: SYCL, Level Zero), as torch passes their messages
on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence.exception_frames import statement
from ddp_run.evidence.model import Death, LogText
from ddp_run.evidence.windows import VERY_LAST
from ddp_run.judge.signs import Hit, Sign, anywhere, in_exception, in_last_words

_OF_A_GPU = re.compile(
    r"CUDA|cuda|cuDNN|cuBLAS|CUBLAS|CUDNN|NVML|NCCL|nccl|HIP |hip[A-Z]|rocBLAS|miopen|MIOpen|RCCL|HSA_"
    r"|XPU|SYCL|level_zero|[Tt]riton|AcceleratorError"
)
_UNHANDLED = re.compile(r"unhandled (?:cuda|system) error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError")
_REMOTE = re.compile(r"ncclRemoteError|remote process exited")
_BY = re.compile(r"[\w.\-]:(?P<pid>\d{1,9}):\d{1,9} \[\d{1,9}\] ")
_NO_GPU = re.compile(r"no GPUs found!|No CUDA GPUs are available|Unexpected error from cudaGetDeviceCount")
"""torch prints this if it counts no GPUs. A warning before it has the reason."""
_PROGRAMS_NO_GPU = re.compile(
    r"CUDA (?:is )?not available|is_available\(\)|bf16/gpu|requires? a GPU|No GPU found|No supported gpu backend"
    r"|(?i:no (?:cuda|gpu|npu|tpu)s?\b.{0,30}(?:available|found|detected))"
)
"""Other programs' messages for the same."""


def errors_named(runtime: str, driver: str) -> tuple[Sign, ...]:
    """Signs for errors by their names, as libraries print them: `cudaErrorX`, `hipErrorX`, `CUDA_ERROR_X`.

    Both arguments are alternatives of a pattern. Source: driver_types.h and cuda.h of CUDA 13, hip_runtime_api.h of
    ROCm 7.
    """
    said = rf"Error(?:{runtime})"
    told = r"\b(?=: ?\w| \((?:\d|error code)| [a-z]{2}|['.,]?\s*$)"  # a name in displayed source code means nothing
    return (
        *(
            Sign(f"{maker}Error", rf"(?m)(?<!case )\b{maker}{said}{told}|code=\d{{1,4}}\( ?{maker}{said} ?\)")
            for maker in ("cuda", "hip")
        ),
        Sign("CUDA_ERROR_", rf"\bCUDA_ERROR_(?:{driver})\b"),
    )


def ended_by_gpu(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Return the sign in the exception that ended the rank; without an exception, the one in its last words.

    A rank that was killed from outside may have gone on after it printed a GPU message. In that case only the very last
    lines count, and they prove nothing.
    """
    if death.exception is not None:
        return in_exception(death, signs)
    if not death.ended_from_outside:
        return in_last_words(death, signs)
    hit = in_last_words(death, signs, VERY_LAST)
    return None if hit is None else replace(hit, confidence="likely")


def behind_nccl(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Return the sign in NCCL's warnings if NCCL's exception ended the rank: `unhandled cuda error` is not a cause."""
    raised = death.exception
    if raised is None:
        return None
    said = f"{raised.type}: {raised.message}"
    if not _UNHANDLED.search(said) or _REMOTE.search(said):
        return None
    return anywhere(death.nccl, signs) or anywhere(_without_other_processes(death), signs)


def _without_other_processes(death: Death) -> LogText:
    """Return the rank's log without NCCL lines of other processes (`HOST:PID:THREAD [GPU] …`), as logs may mix them."""
    if death.pid is None:
        return death.stderr
    mine = str(death.pid)
    lines = tuple("" if (by := _BY.search(line)) and by["pid"] != mine else line for line in death.stderr.lines)
    return replace(death.stderr, lines=lines)


def behind_no_gpu(death: Death, signs: Sequence[Sign]) -> Hit | None:
    """Return the sign in torch's warnings if the rank ended because it found no GPU; likely if only the warning
    fits."""
    raised = death.exception
    if raised is None:
        return None
    torchs = _NO_GPU.search(raised.message) is not None
    asserted = statement(raised) if raised.type == "AssertionError" else ""
    if not torchs and not _PROGRAMS_NO_GPU.search(f"{raised.message}\n{asserted}"):
        return None
    hit = anywhere(death.stderr, signs)
    return hit if hit is None or torchs else replace(hit, confidence="likely")


def is_of_a_gpu(death: Death) -> bool:
    """Whether the rank's end came from a GPU runtime, or is unknown."""
    raised = death.exception
    if raised is None:
        return not death.ended_from_outside
    return _OF_A_GPU.search(f"{raised.type}: {raised.message}") is not None


_VENDORS = tuple(
    (name, re.compile(form))
    for name, form in (
        ("HIP", r"\bHIP\b|hip[A-Z]|HSA_STATUS|\bROCm\b|rocBLAS|miopen|MIOpen|\brocm|by GPU node-"),
        ("XPU", r"\bXPU\b|level_zero|PI_ERROR_|UR_RESULT_|SYCL|fault from GPU at|device index is out of range"),
        ("NPU", r"\bNPU\b|torch_npu|ASCEND_|\baclrt|input visible devices:|\[Error\]: Invalid device ID"),
    )
)


def vendor(text: str) -> str:
    """Return what a message is about: `HIP`, `XPU`, `NPU` (Ascend), else `CUDA` (which torch for ROCm prints, too)."""
    return next((name for name, form in _VENDORS if form.search(text)), "CUDA")
