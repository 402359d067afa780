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

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import ended_by_gpu, errors_named, vendor
from ddp_run.judge.signs import Hit, Sign, in_exception, in_whole_log
from ddp_run.judge.verdict import Area, Confidence, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP301",
    name="cuda-unavailable",
    title="CUDA not available",
    area=Area.DEVICE,
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the host will still have no usable GPU"),
    since="0.1",
    backend="init",
)
FRAMES = re.compile(r"/torch/cuda/__init__\.py _lazy_init")
_RAISED = frozenset({"RuntimeError", "AssertionError", "ValueError", "OSError", "MisconfigurationException"})
_OF_LIBRARIES = frozenset({*_RAISED, "NotImplementedError", "XGBoostError", "LightGBMError", "DGLError", "error"})
_COUNT = (
    r"Unexpected error from (?:cuda|hip)GetDeviceCount\(\)[\s\S]{0,400}?Error (?!(?:2|46|802|803|804|80[5-9]|810):)"
    r"(?P<number>\d+): (?P<text>[^\n(]+)"
)

_DEMANDED = (
    Sign("mixed precision requires a GPU"),
    Sign("bf16/gpu. You need to assign use_cpu"),
    Sign("CUDA is required but not available"),  # bitsandbytes, requested by transformers
)
"""Printed for a program that runs on the CPU, intended or not."""
_NO_PART = Sign(
    "torch._C' has no attribute '_",
    r"module 'torch\._C' has no attribute '(?P<part>_(?:cuda|nccl|xpu|xccl|[Cc]ud|CUDA|Cuda|Xpu|XPU)\w*)'",
    frozenset({"AttributeError"}),
)
"""torch's Python files ask its library for functions that only GPU builds have."""
_NO_NAME = Sign(
    "' from 'torch._C'",
    r"cannot import name '(?P<part>_(?:cuda|nccl|xpu)_\w+)' from 'torch\._C'",
    frozenset({"ImportError"}),
)
_DUMMY = Sign(
    "instantiate dummy base class ",
    r"Tried to instantiate dummy base class (?P<part>Stream|Event|CUDAGraph|_?(?:Cuda|CUDA|Xpu|XPU)\w+)",
)
_NO_KERNELS = Sign(
    "Could not run 'aten::empty", r"Could not run 'aten::empty\w*\.\w+' with arguments from the 'CUDA' backend"
)
_BUILT_WITHOUT = (_NO_PART, _NO_NAME, _DUMMY)
_LIBRARY = (Sign("libcuda.so.1: cannot open shared object file"), Sign("libcuda.so cannot found"))
"""The driver's own library, which no package includes: messages of loaders, and Triton."""
_LIBRARIES = (
    Sign(
        "ot compiled with ",  # pytorch3d, torch_scatter, Detectron2, XGBoost, OpenCV, xFormers and others
        r"\b[Nn]ot compiled with (?P<lacks>CUDA|GPU|HIP|ROCm|XPU)\b",
        _OF_LIBRARIES,
    ),
    Sign("ot built with ", r"\b[Nn]ot built with (?P<lacks>CUDA|GPU|HIP|ROCm|XPU) support", _OF_LIBRARIES),
    Sign("ithout CUDA support", r"(?:compiled|built) without (?P<lacks>CUDA) support", _OF_LIBRARIES),
    Sign("'t build with ", r"wasn't build with (?P<lacks>CUDA) support", _OF_LIBRARIES),
    Sign("is not enabled. Please install the ", r"Device API (?P<lacks>cuda) is not enabled"),  # DGL
    Sign("in CPU-only version of", types=_OF_LIBRARIES),  # bitsandbytes
    Sign("not linked with support for", r"PyTorch is not linked with support for (?P<lacks>\w{1,20}) devices"),
)
"""Messages of packages built for CPUs only."""
_JAX = Sign("Unable to initialize backend '", r"Unable to initialize backend '(?:cuda|gpu|rocm|tpu)'", _RAISED)
"""For any reason; if another cause explains it, that one supersedes this one."""
_NONE = Sign("'NoneType' object has no attribute '", types=frozenset({"AttributeError"}))
_ASSERTED = Sign("AssertionError", r"^AssertionError(?::\s*)?$", frozenset({"AssertionError"}))
_ASSERTS_ONE = re.compile(
    r"^\s{1,40}assert\b[ (]{1,4}torch\.cuda\.is_available\(\)\)?(?:, [^\n]*)?$(?![\s\S]*  File \")", re.M
)
_ASKED_FOR_ONE = re.compile(r"current_accelerator\([^)\n]{0,200}\)\.\w{1,60}\s{0,9}$", re.MULTILINE)
_AGENTS = Sign("ValueError: Cuda is not available.")
_OTHER_MAKERS = (
    # JAX also logs the first of these if it goes on with another device
    Sign("Unable to initialize backend '", r"Unable to initialize backend '(?:tpu|cuda|gpu|rocm)'", _RAISED),
    Sign("' requested, but no platforms that are instances of", types=_RAISED),
    Sign("TpuPlatform is not available", types=_RAISED),
    Sign("No NPUs are available"),
    Sign("Device acquire failed", r"synStatus=\d{1,4} \[[^\]\n]{1,80}\] Device acquire failed"),
    Sign("Current node has no GPU available"),  # vLLM
    Sign("Unable to proceed, no GPU resources available"),  # DeepSpeed's launcher
    Sign("but no accelerator device is detected", types=_RAISED),
)
SIGNS = (
    Sign("Found no NVIDIA driver on your system"),
    Sign("No CUDA GPUs are available"),
    Sign("cannot find any torch accelerator"),
    Sign("No HIP GPUs are available"),
    Sign("No XPU devices are available"),
    Sign("no GPUs found!", r"ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    Sign("nccl2 requires at least one CUDA device"),
    Sign("not compiled with CUDA enabled", r"Torch not (?:compiled|linked) with CUDA enabled"),
    Sign("not compiled with XPU enabled", r"Torch not compiled with XPU enabled"),
    Sign("not compiled with CUDA support!", r"PyTorch not compiled with CUDA support!"),
    Sign("compiled without CUDA support", r"PyTorch was compiled without CUDA support"),
    Sign("compiled without XPU support", r"PyTorch was compiled without XPU support"),
    Sign("doesn't have NCCL built in", r"Distributed package doesn't have NCCL built in"),
    Sign("doesn't have XCCL built in", r"Distributed package doesn't have XCCL built in"),
    Sign("GetDeviceCount()", _COUNT),
    Sign("no CUDA-capable device is detected"),
    *errors_named("NoDevice|StubLibrary", "NO_DEVICE|STUB_LIBRARY"),
    Sign("CUDA driver is a stub library"),
    Sign("Call to cuInit results in"),  # numba, and below
    Sign("CUDA driver library cannot be found"),
    Sign("no supported devices found for platform ", r"no supported devices found for platform (?:CUDA|ROCM)"),
    Sign("no platforms that are instances of", r"no platforms that are instances of \w{1,20} are present"),
    _JAX,
    Sign("Please make sure torch can access a CUDA device"),
    Sign("None of the available devices `available_devices"),  # transformers, for bitsandbytes
    Sign("The MPS backend is supported on MacOS"),
    Sign("No device of requested type available"),  # SYCL's, and below
    Sign("_DEVICE_NOT_FOUND", r"(?:PI|UR_RESULT)_ERROR_DEVICE_NOT_FOUND"),
    Sign("[Device not found]", r"synStatus ?=? ?\d{1,3} \[Device not found\]"),  # Gaudi's
    Sign("Could not initialize Tensile host: No devices found"),  # rocBLAS
    Sign("couldn't communicate with the NVIDIA driver"),  # nvidia-smi, and below
    Sign("Failed to initialize NVML: Unknown Error"),
    Sign("driver is not loaded", r"nvml[^\n]{0,60}driver is not loaded"),
    *_LIBRARIES,
    Sign("no ROCm-capable device is detected"),
    Sign("CUDA driver initialization failed, you might not have"),
    Sign("CUDA unknown error - this may be due to an incorrectly set up environment"),
    Sign("Cannot find any available ROCm", r"Cannot find any available ROCm devices?"),
    Sign("Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False"),
    Sign("Driver Not Loaded", r"(?:NVML|pynvml)[^\n]{0,200}Driver Not Loaded"),
    Sign("NVMLError_LibraryNotFound"),
    Sign("CUDA is not available", types=_RAISED),
    Sign("CUDA not available", types=_RAISED),
    Sign("No GPU found", types=_RAISED),
    Sign("No supported gpu backend found", types=_RAISED),
    Sign("since the accelerator is not available", types=_RAISED),
    Sign("Cannot access accelerator device when none is available"),
    Sign("requires CUDA support", r"torch\.cuda\.\w+ requires CUDA support"),
    Sign("without ATen_cuda library"),
    Sign("Are you sure you have a CUDA build?"),
    Sign("pin_memory=True requires a CUDA or other accelerator backend"),
    Sign("Need to provide pin_memory allocator to use pin memory"),
    Sign("allocated_bytes.all.current", types=frozenset({"KeyError"})),  # torch.cuda.memory_summary()
    Sign("0 active drivers ([])"),
    Sign("Failed to infer device type", types=_RAISED),
    # container runtimes, kubelet
    Sign(
        "nvidia-container-cli: initialization error: ",
        r"nvidia-container-cli: initialization error: (?!nvml error: driver/library)",
    ),
    Sign("with capabilities: [[gpu"),
    Sign("unresolvable CDI devices "),
    Sign('no runtime for "nvidia" is configured'),
    Sign("invalid runtime name: nvidia"),
    Sign("Unknown runtime specified nvidia"),
    Sign("number of devices unavailable for ", r"requested number of devices unavailable for [a-z.]{1,40}/gpu"),
    Sign("no cuda capable devices", types=_RAISED),
    Sign("torch.cuda is not available", types=_RAISED),
    *_OTHER_MAKERS,
    *_LIBRARY,
    *_BUILT_WITHOUT,
    _NO_KERNELS,
    *_DEMANDED,
    _AGENTS,
)
_REQUIRED = (
    Sign(
        "CUDA",
        r"\bCUDA (?:is )?(?:required|needed)\b(?! to be)|\bCUDA was not found(?! on the system, please set)"
        r"|\brequires? (?:a )?CUDA(?: GPUs?)?(?:\.$|[.!;]\s|$)",
    ),
    Sign("GPU", r"\b(?:a )?GPU is (?:required|needed)\b|\b(?:[Yy]ou need|requires?) a GPU(?:[.!;,]|$)"),
    Sign("NVIDIA GPU", r"\b[Nn]o NVIDIA GPU (?:was )?found\b"),
    Sign("mixed precision requires a device in"),
    Sign("Invalid CUDA '", r"Invalid CUDA '[^'\n]{1,80}' requested"),
)
"""Libraries raise this if they find no GPU, but also for wrong devices and builds."""
_REFUSALS = frozenset({"RuntimeError", "ValueError", "AssertionError", "NotImplementedError", "OSError", "Exception"})


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that there is no GPU, if it ended the rank."""
    hit = ended_by_gpu(death, SIGNS) or _none_there(death) or _required(death)
    if hit is None:
        return None
    said = hit.match.string
    why = _why(hit)
    name = {"HIP": "AMD GPU", "XPU": "Intel GPU"}.get(vendor(hit.match[0]), "GPU")
    cause = f"{death.who} has no usable {name}: {why}{death.where}"
    sure: Confidence = (
        "likely"
        if hit.sign in (*_DEMANDED, *_REQUIRED, _NO_KERNELS, _NO_NAME, _NONE, _JAX) or "No operator found" in said
        else hit.confidence
    )
    return hit.finding(RULE, death, cause, _advice(why, vendor(said)), confidence=sure)


def _none_there(death: Death) -> Hit | None:
    """`torch.accelerator.current_accelerator()` returns None, and the program reads its type; or an assertion."""
    hit = in_exception(death, (_NONE, _ASSERTED))
    if hit is None or hit.exception is None:
        return None
    asked = _ASKED_FOR_ONE if hit.sign is _NONE else _ASSERTS_ONE
    return hit if asked.search(hit.exception.traceback) else None


def _required(death: Death) -> Hit | None:
    """Find a library's own check in the exception that ended the rank."""
    hit = in_exception(death, _REQUIRED)
    raised = death.exception
    if hit is None or raised is None or hit.exception is not raised:
        return None
    return hit if raised.type.rpartition(".")[2] in _REFUSALS else None


def match_launch(attempt: Evidence) -> Finding | None:
    """Match torch's agent that should start a rank per GPU (`--nproc-per-node=gpu`) and found none."""
    if attempt.started:
        return None
    hit = in_whole_log(attempt, (_AGENTS,))
    if hit is None or hit.quote is None:
        return None
    cause = "cannot start one rank per GPU: torch found no GPU"
    return Finding(RULE, None, cause, (hit.quote,), _advice("found none", "CUDA"))


def _why(hit: Hit) -> str:
    words = hit.sign.words
    if hit.sign in _BUILT_WITHOUT or "ATen_cuda" in words or words.startswith(("requires CUDA", "Are you sure you")):
        part = (hit["part"] or "").lower()
        missing = "XPU" if part.startswith(("_xpu", "_xccl")) else "NCCL" if part.startswith("_nccl") else "CUDA"
        return f"this torch is built without {missing}"
    if hit.sign in _LIBRARIES:
        return f"a package is built without {hit['lacks'] or 'CUDA'}"
    if hit.sign in _LIBRARY:
        return "the NVIDIA driver library (libcuda.so.1) was not found"
    if words.startswith(("not compiled", "compiled without", "doesn't have")):
        what = re.search(r"NCCL|XCCL|CUDA|XPU", words)
        return f"this torch is built without {what[0] if what else 'it'}"
    if words.startswith("Found no NVIDIA"):
        return "the host (or container) has no NVIDIA driver"
    if words.startswith(("Driver Not", "NVMLError")):
        return "the NVIDIA driver is not loaded"
    if hit["number"]:
        return f"CUDA could not count the devices: error {hit['number']}, {(hit['text'] or '').strip()}"
    return "torch found none"


_TOOLS = {
    "CUDA": ("nvidia-smi; ls -l /dev/nvidia*", "--gpus all", "CUDA_VISIBLE_DEVICES"),
    "HIP": ("rocm-smi; ls -l /dev/kfd /dev/dri", "--device=/dev/kfd --device=/dev/dri", "HIP_VISIBLE_DEVICES"),
    "XPU": ("xpu-smi discovery; ls -l /dev/dri", "--device=/dev/dri", "ZE_AFFINITY_MASK"),
}
"""For each vendor: the tool to inspect GPUs, the container options, and the variable that hides GPUs."""


def _advice(why: str, maker: str) -> tuple[str, ...]:
    if "built without" in why:
        return (
            'python -c "import torch; print(torch.__version__, torch.version.cuda, torch.version.hip)"'
            "   # a CPU build has neither",
            "or run on the CPU: init_process_group(backend='gloo')",
        )
    look, container, mask = _TOOLS.get(maker, _TOOLS["CUDA"])
    return (
        f"{look}   # does the driver see a GPU? in a container: docker run {container}",
        f'echo "{mask}=${{{mask}-unset}}"   # empty or -1 hides all GPUs',
        "or run on the CPU: init_process_group(backend='gloo')",
    )
