"""GPU fabric not ready (fabric manager).

## What happened
On a host with NVSwitch (HGX and DGX with A100, H100 and later) CUDA starts only after NVIDIA's fabric manager has set
up the switches. It is not running, has failed, or its version differs from the driver's.
## How to recognise it
Error 802, `system not yet initialized`, from every CUDA program on that host, while `nvidia-smi` lists all GPUs. Torch
may print it as a warning, and the script then fails because it "has no GPU". NCCL's `Failed to bind NVLink SHARP (NVLS)
Multicast memory` mostly has the same reason.
## What to do
- `systemctl status nvidia-fabricmanager`, then `sudo systemctl restart nvidia-fabricmanager`.
- Its version must match the driver's exactly: `nv-fabricmanager --version` against `cat /proc/driver/nvidia/version`.
- `nvidia-smi -q | grep -A3 Fabric`: `State: Completed` and `Status: Success` are expected. For a failed GPU or switch
  see `/var/log/fabricmanager.log`.
- On GB200/GB300 racks `nvidia-imex` must also run on all nodes.
"""

from __future__ import annotations

from ddp_run.judge.gpu_text import behind_nccl, behind_no_gpu, ended_by_gpu, errors_named
from ddp_run.judge.signs import Sign, like, matcher, meaning
from ddp_run.judge.verdict import Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP308",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="CUDA does not start on this host until its fabric manager runs"),
    host="once",
)
SYMPTOMS = (like(r"CUDA failed to initialize\b[\s\S]{0,120}\(error 802\)"),)
_SHOWN = (
    "systemctl status nvidia-fabricmanager --no-pager; tail -n 20 /var/log/fabricmanager.log",
    "nv-fabricmanager --version; cat /proc/driver/nvidia/version   # must be the same version",
    "sudo systemctl restart nvidia-fabricmanager   # then nvidia-smi -q | grep -A3 Fabric: Completed, Success",
)
SIGNS = meaning(
    like(r"(?:\b802\b.{0,4}|[Ee]rror: |')system not yet initialized"),
    Sign("Error 802: sys"),
    *errors_named("SystemNotReady", "SYSTEM_NOT_READY"),
    like(
        # NCCL's src/transport/nvls.cc, which suspects these reasons
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory of size \d{1,20} : CUDA error (?!2 )\d{1,4}",
        cause="{who}: NCCL could not use the NVLink switches{ on {host}} (NVLS): most likely their fabric manager",
        advice=(*_SHOWN, "NCCL_NVLS_ENABLE=0 ddp-run …   # NCCL then goes without the switches' multicast"),
        likely=True,
    ),
    cause="{who} could not start CUDA: the GPU fabric{ on {host}} is not ready (error 802)",
    advice=_SHOWN,
)
match = matcher(RULE, SIGNS, ended_by_gpu, behind_nccl, behind_no_gpu)
