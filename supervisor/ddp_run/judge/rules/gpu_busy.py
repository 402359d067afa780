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

from ddp_run.judge.gpu_text import behind_nccl, behind_no_gpu, ended_by_gpu, errors_named
from ddp_run.judge.signs import Sign, like, matcher, meaning
from ddp_run.judge.verdict import Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP311",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=True, reason="the process using the GPU may be gone by then"),
)
SYMPTOMS = (like(r"\bCUDA\b[^\n]{0,40}: all CUDA-capable devices are busy or unavailable"),)
_USELESS = "{who} could not use its GPU: "
SIGNS = meaning(
    *meaning(
        Sign("The memory capacity is unbalanced. Some GPUs may be occupied by other processes"),  # SGLang
        like(r"Error in memory profiling\. Initial free memory[^\n]{0,120} other processes"),  # vLLM
        Sign("EL0005: The resources are busy"),  # Ascend
        cause=f"{_USELESS}another process seems to use its memory{{where}}",  # a server's guess
        likely=True,
    ),
    like(r"CUDA-capable device\(?s\)? (?:is/)?are busy or unavailable"),
    Sign("exclusive-thread device already in use"),
    *errors_named("DevicesUnavailable|DeviceAlreadyInUse", "DEVICE_UNAVAILABLE"),
    *meaning(  # accelerators of other vendors than NVIDIA
        Sign("TPU is already in use by process"),  # libtpu's, and below
        Sign("libtpu multi-process lockfile"),
        Sign("Failed to initialize the HCCP process"),  # Ascend
        like(r"(?<!\[Device not found\] )Device acquire failed", likely=True),  # Intel Gaudi
        cause=f"{_USELESS}another process has it{{where}}",
        advice=("ps -eo pid,user,etime,args | grep '[p]ython'   # a process of an earlier run may still have it",),
    ),
    *meaning(
        *("MPS client failed to connect", "MPS server is not ready to accept"),
        *("MPS client has been terminated by the server", "resources required to create MPS client have been"),
        "call between the MPS server and the MPS client failed",
        *errors_named(r"Mps\w{1,40}", r"MPS_\w{1,40}"),
        cause=f"{_USELESS}the MPS server refused it{{where}}",
        advice=(
            "echo get_server_list | nvidia-cuda-mps-control; tail /var/log/nvidia-mps/server.log",
            "unset CUDA_MPS_PIPE_DIRECTORY   # to run without MPS",
        ),
        retry=Retry(helps=False, reason="the MPS server must be restarted first"),
    ),
    cause=f"{_USELESS}it is busy or in exclusive mode{{where}}",
    advice=(
        "nvidia-smi --query-compute-apps=gpu_uuid,pid,name --format=csv   # what is using it",
        "nvidia-smi -q -d COMPUTE | grep 'Compute Mode'   # Exclusive_Process: one process per GPU",
    ),
)
match = matcher(RULE, SIGNS, ended_by_gpu, behind_nccl, behind_no_gpu)
