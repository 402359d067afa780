"""CUDA not available.

## What happened
The rank needs a GPU and torch found none: no driver, no device assigned to the job or container, or a CPU build of
torch.
## How to recognise it
`Found no NVIDIA driver on your system`, `No CUDA GPUs are available`, `Torch not compiled with CUDA enabled`,
`ProcessGroupNCCL is only supported with GPUs, no GPUs found!`, `Distributed package doesn't have NCCL built in`, `no
CUDA-capable device is detected`, `No HIP GPUs are available`, `No XPU devices are available`, `NVML: Driver Not
Loaded`; a CPU build also says `module 'torch._C' has no attribute '_cuda_setDevice'`, `Tried to instantiate dummy base
class Event` and `torch.cuda.Stream requires CUDA support`; without a driver, the loader reports `libcuda.so.1: cannot
open shared object file` and Triton `0 active drivers`; a container's start fails with `could not select device driver
"" with capabilities: [[gpu]]` or `nvidia-container-cli: initialization error`. Other packages: `Not compiled with GPU
support`, `Unable to initialize backend 'cuda'` (JAX), `cudaErrorNoDevice`. A driver that is installed but too old is
[driver-mismatch](driver-mismatch.md); a GPU index that is too high is [invalid-device](invalid-device.md); error 802 is
[fabric-manager](fabric-manager.md).
## What to do
- `nvidia-smi` (`rocm-smi`, `xpu-smi discovery`) on that host: does the driver see the GPUs?
- `python -c "import torch; print(torch.__version__, torch.version.cuda, torch.version.hip)"`: a version without CUDA is
  a CPU build; install the right one from <https://pytorch.org/get-started/locally/>.
- In a container: `docker run --gpus all …` (AMD: `--device=/dev/kfd --device=/dev/dri`); in SLURM: `--gpus-per-node`;
  in Kubernetes: `resources.limits: nvidia.com/gpu`.
- `echo $CUDA_VISIBLE_DEVICES`: an empty value or `-1` hides all GPUs.
- On a machine without GPUs use `backend="gloo"` and `device="cpu"`.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence
from ddp_run.judge.gpu_text import ended_by_gpu, errors_named, vendor
from ddp_run.judge.signs import Hit, Sign, in_exception, in_itself, in_whole_log, like, meaning
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP301",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the host will still have no usable GPU"),
    backend="init",
)
FRAMES = re.compile(r"/torch/cuda/__init__\.py _lazy_init")
_RAISED = frozenset(
    {"RuntimeError", "ValueError", "AssertionError", "NotImplementedError", "OSError", "Exception"}
    | {"MisconfigurationException"}
)
_OF_LIBRARIES = frozenset({*_RAISED, "XGBoostError", "LightGBMError", "DGLError", "error"})
_CPU_BUILD = (
    'python -c "import torch; print(torch.__version__, torch.version.cuda, torch.version.hip)"'
    "   # a CPU build has neither",
    "or run on the CPU: init_process_group(backend='gloo')",
)
_PART = r"_?(?:[Cc]ud|CUDA|[Xx]pu|XPU|xccl|nccl)"
"""Functions that torch's Python files ask its library for, and that only GPU builds have."""
_BUILT_WITHOUT = meaning(
    *meaning(
        like(r"Torch not (?:compiled|linked) with (?P<lacks>CUDA|XPU) enabled"),
        like(r"PyTorch not compiled with (?P<lacks>CUDA) support!"),
        like(r"PyTorch was compiled without (?P<lacks>CUDA|XPU) support"),
        # nor do torch's builds with CUDA for Windows have it
        like(r"Distributed package doesn't have (?P<lacks>NCCL|XCCL) built in", likely=True),
        cause="this torch is built without {lacks}",
    ),
    *meaning(
        like(r"torch\.cuda\.\w+ requires CUDA support"),
        Sign("without ATen_cuda library"),
        Sign("Are you sure you have a CUDA build?"),
        like(rf"module 'torch\._C' has no attribute '{_PART}\w*'", ("AttributeError",)),
        like(rf"cannot import name '{_PART}\w*' from 'torch\._C'", ("ImportError",), likely=True),
        like(rf"Tried to instantiate dummy base class (?:{_PART}|Stream|Event)"),
        cause="this torch is built without GPU support",
    ),
    # pytorch3d, torch_scatter, Detectron2, XGBoost, OpenCV, xFormers and others
    *meaning(
        *(
            like(rf"\b[Nn]ot {made} with (?P<lacks>CUDA|GPU|HIP|ROCm|XPU)\b", _OF_LIBRARIES)
            for made in ("compiled", "built")
        ),
        like(r"(?:compiled|built) without (?P<lacks>CUDA) support", _OF_LIBRARIES),
        like(r"wasn't build with (?P<lacks>CUDA) support", _OF_LIBRARIES),
        like(r"Device API (?P<lacks>cuda) is not enabled"),  # DGL
        like(r"PyTorch is not linked with support for (?P<lacks>\w{1,20}) devices"),
        cause="a package is built without {lacks}",
    ),
    Sign("in CPU-only version of", types=_OF_LIBRARIES, cause="a package is built without CUDA"),  # bitsandbytes
    advice=_CPU_BUILD,
)
_NONE_THERE = meaning(
    Sign("'NoneType' object has no attribute '", types=("AttributeError",), likely=True),
    like(r"^AssertionError\b", ("AssertionError",)),
    cause="torch found none",
)
_ASKED_FOR_ONE = re.compile(
    r"current_accelerator\([^)\n]{0,200}\)\.\w{1,60}$|^assert\b[ (]{1,4}torch\.cuda\.is_available\(\)\)?(?:, [^\n]*)?$"
)
_AGENTS = Sign("ValueError: Cuda is not available.")
SIGNS = meaning(
    *meaning(
        Sign("libcuda.so.1: cannot open shared object file"),  # loaders, and Triton: no package includes it
        Sign("libcuda.so cannot found"),
        cause="the NVIDIA driver library (libcuda.so.1) was not found",
    ),
    Sign("Found no NVIDIA driver on your system", cause="the host (or container) has no NVIDIA driver"),
    *meaning(
        like(r"(?:NVML|pynvml)[^\n]{0,200}Driver Not Loaded"),
        like(r"nvml[^\n]{0,60}driver is not loaded"),
        Sign("NVMLError_LibraryNotFound"),
        cause="the NVIDIA driver is not loaded",
    ),
    Sign(
        "GetDeviceCount()",
        r"Unexpected error from (?:cuda|hip)GetDeviceCount\(\)[\s\S]{0,400}?Error (?!(?:2|46|802|803|804|80[5-9]|810):)"
        r"(?P<number>\d+): (?P<text>[^\n(]+)",
        cause="CUDA could not count the devices: error {number}, {text}",
    ),
    *(Sign(f"No {device} are available") for device in ("CUDA GPUs", "HIP GPUs", "XPU devices", "NPUs")),
    Sign("cannot find any torch accelerator"),
    Sign("ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    Sign("nccl2 requires at least one CUDA device"),
    like(r"no (?:CUDA|ROCm)-capable device is detected"),
    *errors_named("NoDevice|StubLibrary", "NO_DEVICE|STUB_LIBRARY"),
    # for any reason; if another cause explains it, that one supersedes this one; JAX also logs it if it goes on
    like(r"Unable to initialize backend '(?:cuda|gpu|rocm|tpu)'", _RAISED, likely=True),
    Sign("Please make sure torch can access a CUDA device"),
    Sign("Could not initialize Tensile host: No devices found"),  # rocBLAS
    Sign("couldn't communicate with the NVIDIA driver"),  # nvidia-smi
    *_BUILT_WITHOUT,
    Sign("CUDA driver initialization failed, you might not have"),
    Sign("CUDA unknown error - this may be due to an incorrectly set up environment"),
    Sign("Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False"),
    like(r"torch\.cuda\.is_available\(\) (?:is|was|returned) False[^\n]{0,60}\b(?:leav|exit|abort|quit|stop|giv)"),
    Sign("Cannot access accelerator device when none is available"),
    Sign("pin_memory=True requires a CUDA or other accelerator backend"),
    Sign("Need to provide pin_memory allocator to use pin memory"),
    Sign("allocated_bytes.all.current", types=("KeyError",)),  # torch.cuda.memory_summary()
    Sign("0 active drivers ([])"),
    *("CUDA driver is a stub library", "Call to cuInit results in", "CUDA driver library cannot be found"),
    *("Failed to initialize NVML: Unknown Error", "None of the available devices `available_devices"),
    *("The MPS backend is supported on MacOS", "No device of requested type available"),
    *("PI_ERROR_DEVICE_NOT_FOUND", "UR_RESULT_ERROR_DEVICE_NOT_FOUND"),
    # container runtimes and schedulers
    *("unresolvable CDI devices ", 'no runtime for "nvidia" is configured', "invalid runtime name: nvidia"),
    *("Unknown runtime specified nvidia", "Unable to proceed, no GPU resources available"),
    *meaning(
        *("No supported gpu backend found", "no cuda capable devices", "torch.cuda is not available"),
        *("TpuPlatform is not available", "' requested, but no platforms that are instances of"),
        types=_RAISED,
    ),
    like(r"synStatus ?=? ?\d{1,3} \[Device not found\]"),  # Intel Gaudi
    like(r"Cannot find any available ROCm devices?"),
    like(r"no supported devices found for platform (?:CUDA|ROCM)"),  # XLA, like the next
    like(r"no platforms that are instances of \w{1,20} are present"),
    *meaning(
        Sign("mixed precision requires a GPU"),
        Sign("mixed precision requires a device in"),
        Sign("CUDA is required but not available"),
        like(r"Invalid CUDA '[^'\n]{1,80}' requested"),  # Ultralytics
        likely=True,
    ),
    # container runtimes, kubelet
    like(r"nvidia-container-cli: initialization error: (?!nvml error: driver/library)"),
    Sign("with capabilities: [[gpu"),
    like(r"requested number of devices unavailable for [a-z.]{1,40}/gpu"),
    Sign("Current node has no GPU available"),  # vLLM
    like(r"Could not run 'aten::empty\w*\.\w+' with arguments from the 'CUDA' backend", likely=True),
    Sign("bf16/gpu. You need to assign use_cpu", likely=True),  # for a program that runs on the CPU, intended or not
    _AGENTS,
    cause="torch found none",
)
_REQUIRED = meaning(
    like(r"CUDA (?:is )?not available|No GPU found|Failed to infer device type|no accelerator device is detected"),
    like(r"since the accelerator is not available|\b[Nn]o NVIDIA GPU (?:was )?found\b"),
    like(r"\bCUDA (?:is )?(?:required|needed)\b(?! to be)|\bCUDA was not found(?! on the system, please set)"),
    like(r"\brequires? (?:a )?CUDA(?: GPUs?)?(?:\.$|[.!;]\s|$)"),
    like(r"\b(?:a )?GPU is (?:required|needed)\b|\b(?:[Yy]ou need|requires?) a GPU(?:[.!;,]|$)"),
    types=_RAISED,
    cause="torch found none",
    likely=True,
)
"""Libraries raise this if they find no GPU, but also for wrong devices and builds."""


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that there is no GPU, if it ended the rank."""
    hit = ended_by_gpu(death, SIGNS) or _none_there(death) or in_itself(death, _REQUIRED)
    if hit is None:
        return None
    said = hit.match.string
    name = {"HIP": "AMD GPU", "XPU": "Intel GPU", "NPU": "NPU"}.get(vendor(hit.match[0]), "GPU")
    cause = f"{death.who} has no usable {name}: {hit.says(death)}{hit.where(death)}"
    sure: Confidence | None = "likely" if "No operator found" in said else None
    return hit.finding(RULE, death, cause, _advice(vendor(said)), confidence=sure)


def _none_there(death: Death) -> Hit | None:
    """`torch.accelerator.current_accelerator()` returns None, and the program reads its type; or an assertion."""
    hit = in_exception(death, _NONE_THERE)
    return hit if hit is not None and _ASKED_FOR_ONE.search(hit.statement) else None


def match_launch(attempt: Evidence) -> Finding | None:
    """Match torch's agent that should start a rank per GPU (`--nproc-per-node=gpu`) and found none."""
    if attempt.started:
        return None
    hit = in_whole_log(attempt, (_AGENTS,))
    if hit is None:
        return None
    return hit.finding(RULE, TORCHS_AGENT, "cannot start one rank per GPU: torch found no GPU", _advice("CUDA"))


_TOOLS = {
    "CUDA": ("nvidia-smi; ls -l /dev/nvidia*", "--gpus all", "CUDA_VISIBLE_DEVICES"),
    "HIP": ("rocm-smi; ls -l /dev/kfd /dev/dri", "--device=/dev/kfd --device=/dev/dri", "HIP_VISIBLE_DEVICES"),
    "XPU": ("xpu-smi discovery; ls -l /dev/dri", "--device=/dev/dri", "ZE_AFFINITY_MASK"),
    "NPU": ("npu-smi info; ls /dev/davinci*", "--device=/dev/davinci0 …", "ASCEND_RT_VISIBLE_DEVICES"),
}
"""For each vendor: the tool to inspect GPUs, the container options, and the variable that hides GPUs."""


def _advice(maker: str) -> tuple[str, ...]:
    look, container, mask = _TOOLS.get(maker, _TOOLS["CUDA"])
    return (
        f"{look}   # does the driver see a GPU? in a container: docker run {container}",
        f'echo "{mask}=${{{mask}-unset}}"   # empty or -1 hides all GPUs',
        "or run on the CPU: init_process_group(backend='gloo')",
    )
