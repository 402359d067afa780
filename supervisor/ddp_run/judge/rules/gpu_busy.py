"""GPU in use by another process.

## What happened
The driver refused to create a context on the GPU: the GPU is in exclusive mode and another process is using it, or the
MPS server that shares it does not respond.
## How to recognise it
`CUDA-capable device(s) is/are busy or unavailable` (older CUDA: `all CUDA-capable devices are busy or unavailable`),
`exclusive-thread device already in use`, and MPS errors 805-810. In exclusive mode, two ranks on one GPU fail like
this. TPU: `The TPU is already in use by process with pid …`; Gaudi: `Device acquire failed`; Ascend: `EJ0001`.
## What to do
- `nvidia-smi -q -d COMPUTE`: `Exclusive_Process` allows one process; `sudo nvidia-smi -c DEFAULT` allows many.
- `nvidia-smi --query-compute-apps=gpu_uuid,pid,name --format=csv` shows what is using it, often a process left over
  from an earlier run.
- One GPU per rank: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything touches CUDA.
- MPS: `echo get_server_list | nvidia-cuda-mps-control`; without MPS, unset `CUDA_MPS_PIPE_DIRECTORY`.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import behind_nccl, behind_no_gpu, ended_by_gpu, errors_named
from ddp_run.judge.signs import Hit, Sign
from ddp_run.judge.verdict import Area, Confidence, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP311",
    name="gpu-busy",
    title="GPU in use by another process",
    area=Area.DEVICE,
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=True, reason="the process using the GPU may be gone by then"),
    since="0.1",
)
_MPS = (
    Sign("MPS client failed to connect"),
    Sign("MPS server is not ready to accept"),
    Sign("MPS client has been terminated by the server"),
    Sign("call between the MPS server and the MPS client failed"),
    Sign("resources required to create MPS client have been exhausted"),
    *errors_named(r"Mps\w{1,40}", r"MPS_\w{1,40}"),
)
_GUESSED = (
    Sign("The memory capacity is unbalanced. Some GPUs may be occupied by other processes"),  # SGLang
    Sign(
        "Error in memory profiling. Initial free memory",  # vLLM
        r"Error in memory profiling\. Initial free memory[^\n]{0,120} other processes",
    ),
    Sign("EL0005: The resources are busy"),  # Ascend
)
"""A server's explanation if the GPU's free memory changes or differs from other GPUs'."""
_GAUDI = Sign("Device acquire failed", r"(?<!\[Device not found\] )Device acquire failed")
"""Intel Gaudi: usually another process has the device."""
_OF_OTHERS = (
    Sign("TPU is already in use by process"),  # libtpu's, and below
    Sign("libtpu multi-process lockfile"),
    Sign("TPU initialization failed: open(", r"initialization failed: open\([^)\n]{1,99}\): Device or resource"),
    Sign("Failed to initialize the HCCP process"),  # Ascend's EJ0001: the last job's process is still there
    _GAUDI,
)
"""Accelerators of other vendors than NVIDIA."""
SIGNS = (
    *_GUESSED,
    Sign("busy or unavailable", r"CUDA-capable device\(?s\)? (?:is/)?are busy or unavailable"),
    Sign("exclusive-thread device already in use"),
    *errors_named("DevicesUnavailable|DeviceAlreadyInUse", "DEVICE_UNAVAILABLE"),
    *_OF_OTHERS,
    *_MPS,
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that ended the rank."""
    hit = ended_by_gpu(death, SIGNS) or behind_nccl(death, SIGNS) or behind_no_gpu(death, SIGNS)
    if hit is None:
        return None
    why = "another process has it" if hit.sign in _OF_OTHERS else "it is busy or in exclusive mode"
    why = "the MPS server refused it" if _is_mps(hit) else why
    why = "another process seems to use its memory" if hit.sign in _GUESSED else why
    retry = Retry(helps=False, reason="the MPS server must be restarted first") if _is_mps(hit) else None
    cause = f"{death.who} could not use its GPU: {why}{death.where}"
    sure: Confidence = "likely" if hit.sign in (*_GUESSED, _GAUDI) else hit.confidence
    return hit.finding(RULE, death, cause, _advice(hit), confidence=sure, retry=retry)


def _is_mps(hit: Hit) -> bool:
    return hit.sign in _MPS


def _advice(hit: Hit) -> tuple[str, ...]:
    if _is_mps(hit):
        return (
            "echo get_server_list | nvidia-cuda-mps-control; tail /var/log/nvidia-mps/server.log",
            "unset CUDA_MPS_PIPE_DIRECTORY   # to run without MPS",
        )
    if hit.sign in _OF_OTHERS:
        return ("ps -eo pid,user,etime,args | grep '[p]ython'   # a process of an earlier run may still have it",)
    return (
        "nvidia-smi --query-compute-apps=gpu_uuid,pid,name --format=csv   # what is using it",
        "nvidia-smi -q -d COMPUTE | grep 'Compute Mode'   # Exclusive_Process: one process per GPU",
    )
