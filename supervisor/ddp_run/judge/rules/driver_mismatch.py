"""GPU driver does not match torch's CUDA version.

## What happened
The driver on the host is older than this torch needs, or its kernel module and libraries have different versions (after
an update without a reboot).
## How to recognise it
`The NVIDIA driver on your system is too old (found version …)`, `CUDA driver version is insufficient for CUDA runtime
version`, `Driver/library version mismatch`, error 803 `system has unsupported display driver / cuda driver
combination`, error 804 `forward compatibility was attempted on non supported HW`, `the provided PTX was compiled with
an unsupported toolchain`; when a container starts, `unsatisfied condition: cuda>=…`. Torch prints the first as a
warning, and the script then fails because it "has no GPU": the warning is the cause. The version torch found is the
CUDA version times 1000: 12020 is CUDA 12.2.
## What to do
- `nvidia-smi`: its `CUDA Version` is the newest this driver supports; `python -c "import torch;
  print(torch.version.cuda)"` is the version this torch needs. Update the driver, or install a torch for the driver's
  CUDA version, e.g. `pip install torch --index-url https://download.pytorch.org/whl/cu121`.
- `Driver/library version mismatch`: reboot the host, or reload the `nvidia` modules.
- 803 and 804 in a container: the image's `cuda-compat` library hides the host's driver; remove its folder from
  `LD_LIBRARY_PATH` or update the host's driver.
"""

from __future__ import annotations

from ddp_run.judge.gpu_text import behind_nccl, behind_no_gpu, ended_by_gpu, errors_named
from ddp_run.judge.signs import Sign, like, matcher, meaning
from ddp_run.judge.verdict import Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP303",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the host will still have the same driver"),
    backend="init",
)
_USELESS = "{who} cannot use its GPU: "
SIGNS = meaning(
    like(
        r"The NVIDIA driver on your system is too old"
        r"(?: \(found version (?P<major>\d{1,6})0(?P<minor>\d)\d\))?",
        cause=f"{_USELESS}the NVIDIA driver is older than this torch needs{{ (it supports CUDA {{major}}.{{minor}})}}",
    ),
    *meaning(
        Sign("CUDA driver version is insufficient for CUDA runtime version"),
        Sign("API call is not supported in the installed CUDA driver"),
        like(r"CUDA Runtime version is [\d.]{1,20}, but driver supports [\d.]{1,20}"),  # cuDF
        cause=f"{_USELESS}the NVIDIA driver is older than this CUDA runtime needs",
    ),
    *meaning(
        Sign("Driver/library version mismatch"),
        Sign("RM has detected an NVML/RM version mismatch"),
        Sign("nvml error: driver/library version mismatch"),  # when a container starts
        Sign("NVRM: API mismatch"),  # the kernel's
        cause=f"{_USELESS}the NVIDIA driver's kernel module and libraries have different versions",
        advice=("cat /proc/driver/nvidia/version; nvidia-smi   # they differ until the host is rebooted",),
    ),
    *meaning(
        Sign(
            "system has unsupported display driver",
            cause=f"{_USELESS}the CUDA driver library and the host's kernel module are incompatible (error 803)",
        ),
        Sign(
            "forward compatibility was attempted on non supported",
            cause=f"{_USELESS}a CUDA compatibility library is loaded that this GPU does not support (error 804)",
        ),
        advice=(
            "ldconfig -p | grep libcuda.so; echo $LD_LIBRARY_PATH   # a …/compat folder hides the host's libcuda",
            "cat /proc/driver/nvidia/version   # libcuda.so.1 must have this version",
        ),
    ),
    like(
        r"unsatisfied condition: (?P<need>cuda ?[>=<]{1,2} ?[\d.]{1,9})",
        cause=f"{_USELESS}the container image needs {{need}}, which the NVIDIA driver does not support",
    ),
    *meaning(
        Sign("PTX was compiled with an unsupported toolchain"),
        *errors_named("UnsupportedPtxVersion", "UNSUPPORTED_PTX_VERSION"),
        cause=f"{_USELESS}a kernel was compiled with a newer CUDA than the driver supports",
    ),
    *errors_named(
        "InsufficientDriver|CallRequiresNewerDriver|SystemDriverMismatch|CompatNotSupportedOnDevice",
        "SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED_ON_DEVICE",
    ),
    cause=f"{_USELESS}the NVIDIA driver does not match this CUDA version ({{match}})",
    advice=(
        "nvidia-smi | grep 'CUDA Version'   # the newest CUDA this driver supports",
        'python -c "import torch; print(torch.version.cuda)"   # the CUDA this torch needs',
        "update the driver, or install torch for that CUDA: https://pytorch.org/get-started/previous-versions/",
    ),
)
match = matcher(RULE, SIGNS, ended_by_gpu, behind_nccl, behind_no_gpu)
