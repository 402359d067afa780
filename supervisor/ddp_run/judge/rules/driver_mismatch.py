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

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import behind_nccl, behind_no_gpu, ended_by_gpu, errors_named
from ddp_run.judge.signs import Hit, Sign
from ddp_run.judge.verdict import Area, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP303",
    name="driver-mismatch",
    title="GPU driver does not match torch's CUDA version",
    area=Area.DEVICE,
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the host will still have the same driver"),
    since="0.1",
    backend="init",
)
_TOO_OLD = Sign(
    "The NVIDIA driver on your system is too old",
    r"The NVIDIA driver on your system is too old(?: \(found version (?P<found>\d{1,9})\))?",
)
_LIBRARY = Sign("Driver/library version mismatch")
_NVML = Sign("RM has detected an NVML/RM version mismatch")
_COMBINATION = Sign("system has unsupported display driver")
_FORWARD = Sign("forward compatibility was attempted on non supported")
_SHORT = Sign("CUDA driver version is insufficient for CUDA runtime version")
_NEEDS = Sign("unsatisfied condition: cuda", r"unsatisfied condition: (?P<need>cuda ?[>=<]{1,2} ?[\d.]{1,9})")
_IN_CONTAINER = Sign("nvml error: driver/library version mismatch")
_OF_KERNEL = Sign("NVRM: API mismatch")
_NEWER = (
    Sign("API call is not supported in the installed CUDA driver"),
    Sign("but driver supports", r"CUDA Runtime version is [\d.]{1,20}, but driver supports [\d.]{1,20}"),  # cuDF
)
"""Messages of software that needs a newer driver."""
SIGNS = (
    _TOO_OLD,
    _SHORT,
    _LIBRARY,
    _NVML,
    _COMBINATION,
    _FORWARD,
    Sign("PTX was compiled with an unsupported toolchain"),
    _NEEDS,
    _IN_CONTAINER,
    _OF_KERNEL,
    *_NEWER,
    *errors_named(
        "InsufficientDriver|CallRequiresNewerDriver|SystemDriverMismatch|CompatNotSupportedOnDevice"
        "|UnsupportedPtxVersion",
        "SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED_ON_DEVICE|UNSUPPORTED_PTX_VERSION",
    ),
)

_MIXED = (_LIBRARY, _NVML, _IN_CONTAINER, _OF_KERNEL)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that ended the rank, or a rank that found no GPU after torch had warned about the driver."""
    hit = ended_by_gpu(death, SIGNS) or behind_nccl(death, SIGNS) or behind_no_gpu(death, SIGNS)
    return hit.finding(RULE, death, f"{death.who} cannot use its GPU: {_why(hit)}", _advice(hit)) if hit else None


def _why(hit: Hit) -> str:
    if hit.sign is _TOO_OLD:
        found = hit["found"]
        serves = f" (it supports CUDA {int(found) // 1000}.{int(found) % 1000 // 10})" if found else ""
        return f"the NVIDIA driver is older than this torch needs{serves}"
    if hit.sign is _SHORT or hit.sign in _NEWER:
        return "the NVIDIA driver is older than this CUDA runtime needs"
    if hit.sign is _NEEDS:
        return f"the container image needs {hit['need']}, which the NVIDIA driver does not support"
    if hit.sign in _MIXED:
        return "the NVIDIA driver's kernel module and libraries have different versions"
    if hit.sign is _COMBINATION:
        return "the CUDA driver library and the host's kernel module are incompatible (error 803)"
    if hit.sign is _FORWARD:
        return "a CUDA compatibility library is loaded that this GPU does not support (error 804)"
    if "Ptx" in hit.match[0] or "PTX" in hit.match[0]:
        return "a kernel was compiled with a newer CUDA than the driver supports"
    return f"the NVIDIA driver does not match this CUDA version ({hit.match[0]})"


def _advice(hit: Hit) -> tuple[str, ...]:
    if hit.sign in _MIXED:
        return ("cat /proc/driver/nvidia/version; nvidia-smi   # they differ until the host is rebooted",)
    if hit.sign in (_COMBINATION, _FORWARD):
        return (
            "ldconfig -p | grep libcuda.so; echo $LD_LIBRARY_PATH   # a …/compat folder hides the host's libcuda",
            "cat /proc/driver/nvidia/version   # libcuda.so.1 must have this version",
        )
    return (
        "nvidia-smi | grep 'CUDA Version'   # the newest CUDA this driver supports",
        'python -c "import torch; print(torch.version.cuda)"   # the CUDA this torch needs',
        "update the driver, or install torch for that CUDA: https://pytorch.org/get-started/previous-versions/",
    )
