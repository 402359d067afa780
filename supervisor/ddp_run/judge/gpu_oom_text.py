"""Messages of programs whose GPU ran out of memory: torch, other frameworks, and the runtimes. Pure."""

from __future__ import annotations

from ddp_run.judge.gpu_text import errors_named
from ddp_run.judge.signs import Sign, like, meaning

SIZE = r"\d{1,20}(?:\.\d{1,20})? (?:bytes|[KMGT]iB)"
_ASKED = rf"(?:(?:CUDA|HIP|XPU|NPU) o|\bO)ut of memory\. Tried to allocate (?P<asked>{SIZE})?"
IN_NCCL = meaning(
    like(r"(?:Cuda|HIP|Hip) failure (?:\d+ )?'out of memory'"),
    Sign("Failed to CUDA calloc"),
    cause=" for NCCL's buffers",
)
_SERVERS = (
    Sign("No available memory for the cache blocks"),  # vLLM
    Sign("KV cache is needed, which is larger than the available KV cache"),
    Sign("larger than the maximum number of tokens that can be stored in KV cache"),
    Sign("not enough GPU memory available to serve even a single token"),
    Sign("exceeds available Mamba cache blocks"),
    Sign("CUDA out of memory occurred when warming up"),
    like(r"Free memory on device[^\n]{0,120} on startup is less than desired GPU memory utilization"),
    Sign("Not enough memory. Please try to increase --mem-fraction-static"),  # SGLang
    Sign("out of memory. Try to lower your batch size", r"(?:Decode|Prefill) out of memory\. Try to lower"),
    like(r"Not enough memory to handle (?:\d{1,9} prefill|`max_total_)"),  # TGI
    Sign("No enough gpu memory for"),  # lmdeploy
    like(r"CUDA runtime error(?: in [^\n]{1,200}?\))?: out of memory"),  # TensorRT-LLM
    Sign("Error Code 2: OutOfMemory"),
)
"""Servers compute the size of their request cache before they allocate it."""
GPUS_OR_NOT = meaning(
    like(r"RESOURCE_EXHAUSTED: Out of memory (?:while trying to )?alloc\w{2,5} (?P<asked>\d{1,20} bytes)?"),
    like(r"Failed to allocate memory for requested buffer of size \d{1,20}"),
    likely=True,
)
"""Messages of XLA and ONNX Runtime, which they also use for CPU memory."""
_XLAS = (
    like(r"Ran out of memory in memory space (?:hbm|vmem|smem)"),
    Sign("That was not possible.", r"Attempting to (?:reserve|allocate) [\d.]{1,20}\w? ?[\s\S]{0,40}not possible\."),
    Sign("RESOURCE_EXHAUSTED: Error ", r"Error (?:allocating device buffer|loading program): Attempting to"),
    like(r"OOM when allocating tensor[^\n]{0,400}/device:GPU:"),
    Sign("failed to allocate memory [Op", r"/device:GPU:\d{1,9}\}\} failed to allocate memory"),
)
_REFUSED = tuple(
    Sign(
        words,
        r"(?:[Cc]an(?:'t| ?not)|[Ff]ailed to|[Uu]nable to) allocate (?:request for )?\d[\d.,]{0,30} ?\w{0,10}"
        r"(?: \(\d{1,20}B\))? on device",
    )
    for words in (" bytes on device", ") on device ordinal")
)
"""From DALI, Warp and XLA."""
_RUNTIMES = Sign(
    "out of memory",
    r"\b(?:CUDA|[Cc]uda(?:[A-Z]\w{1,30})?|cu[A-Z]\w{1,30}|HIP|hip[A-Z]\w{1,30})(?:\([^\n]{0,80}?\){1,2} ?)?"
    r"(?: (?!out\b)\w{1,20}){0,4}?(?: ?[:(] ?| ['\"]| (?:error|failure|failed) )out of memory\b"
    r"|Triton Error \[HIP\]: {1,2}Code: \d{1,4}, Mess{1,2}age: out of memory",
)
"""`CUDA failure 2: out of memory`, `cudaMalloc failed: out of memory`, `Cuda Runtime (out of memory)` and the like."""
SIGNS = (
    Sign("CUDA out of memory", _ASKED),
    Sign("HIP out of memory", _ASKED),
    Sign("XPU out of memory", _ASKED),
    Sign("NPU out of memory"),
    Sign("EL0004", r"EL0004\)?: [^\n]{0,80}?Failed to allocate memory"),  # Ascend's
    Sign("MPS backend out of memory"),
    like(r"GPU:\d{1,4} failed\. Status: out of memory"),  # TensorFlow
    Sign("std::bad_alloc: out_of_memory"),  # RMM
    like(r"Out of memory error on GPU \d"),  # Paddle
    *errors_named("MemoryAllocation|OutOfMemory", "OUT_OF_MEMORY"),
    _RUNTIMES,
    *_REFUSED,
    *_XLAS,
    *GPUS_OR_NOT,
    # torch's allocator asks NVML for the memory's users only after an allocation failed
    Sign(
        "NVML_SUCCESS == ",
        r"NVML_SUCCESS == [\s\S]{0,200}?CUDACachingAllocator\.cpp",
        ("RuntimeError",),
        likely=True,
    ),
    Sign("Out of memory. Tried to allocate", _ASKED),
    like(r"(?:CUDA|HIP|CUDA driver) [Ee]rror: out of memory"),
    Sign("Error 2: out of memory"),
    Sign("CUDA allocation failed"),  # DALI
    Sign("cuda runtime error (2)"),
    like(rf"would exceed allowed memory\. \(out of memory\)(?:[\s\S]{{0,200}}?Requested\s*: (?P<asked>{SIZE}))?"),
    like(r"Triton Error \[CUDA\]: out of memory"),
    Sign("_ALLOC", r"\b(?:CU|HIP)[A-Z]{2,12}_(?:STATUS_)?ALLOC(?:ATION)?_FAILED"),
    *_SERVERS,
    Sign("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    Sign("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    Sign("PI_ERROR_OUT_OF_RESOURCES"),
    Sign("UR_RESULT_ERROR_OUT_OF_RESOURCES"),
    Sign("DEVMEM Allocation failed"),  # Intel Gaudi's
    *IN_NCCL,
    like(r"^(?:(?:torch|cupy|numba|rmm|triton|jax)[\w.]{0,60}\.)?OutOfMemoryError", ("OutOfMemoryError",)),
)
