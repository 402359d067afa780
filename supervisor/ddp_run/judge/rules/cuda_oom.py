"""GPU out of memory.

## What happened
The rank tried to allocate more GPU memory than was free.
## How to recognise it
`torch.OutOfMemoryError` (in older releases `torch.cuda.OutOfMemoryError`, `RuntimeError`) with `CUDA out of memory.
Tried to allocate …`, `HIP out of memory`, `XPU out of memory`; `CUDA error: out of memory` from the runtime itself;
`CUBLAS_STATUS_ALLOC_FAILED`; NCCL's `Cuda failure 'out of memory'`; `UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY`; XLA's
`RESOURCE_EXHAUSTED: Out of memory …`. Host memory is a different cause ([host-oom](host-oom.md)):
`DefaultCPUAllocator`, `MemoryError` or just `Killed`.

The message has the numbers you need: the requested size, the GPU's total and free memory, what torch uses, and what
torch holds but does not use ("reserved … but unallocated"). With the extra `gpu` (NVML), ddp-run looks at the GPU when
the rank fails, and reports which processes hold its memory and which of them are ranks of this job. In a container they
often cannot be told apart: the driver shows different pids, or none.
## What to do
1. A lot of memory reserved but unallocated: the pool is fragmented. `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`
   (newer torch: `PYTORCH_ALLOC_CONF`; ROCm: `PYTORCH_HIP_ALLOC_CONF`).
2. Memory held by neither torch nor this process: another process is using that GPU, often left over from an earlier
   run. `nvidia-smi --query-compute-apps=pid,used_memory --format=csv`. Two ranks on one GPU:
   `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything touches CUDA, or fewer ranks
   (`--nproc-per-node`).
3. Otherwise the job is too large: use a smaller batch per rank with gradient accumulation, activation checkpointing,
   bf16, or FSDP to shard the optimizer's state.
4. While loading a checkpoint: use `torch.load(path, map_location="cpu")`; otherwise every rank loads onto the GPU the
   checkpoint was saved from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.evidence.resources import Gpu, GpuHolder
from ddp_run.judge.gpu_text import behind_nccl, ended_by_gpu, errors_named, vendor
from ddp_run.judge.signs import Hit, Sign, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import Rank
from ddp_run.values.words import rank_list

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP402",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same step will need the same memory again"),
)
_SIZE = r"\d{1,20}(?:\.\d{1,20})? (?:bytes|[KMGT]iB)"
_ANY_SIZE = r"\d[\d,.]{0,40} ?(?:bytes|[KMGT]iB)"
"""Of other libraries: `4,398,046,511,104 bytes`, `4.00TiB`."""
_ASKED = rf"(?:(?:CUDA|HIP|XPU|NPU) o|\bO)ut of memory\. Tried to allocate (?P<asked>{_SIZE})?"
_IN_NCCL = meaning(
    like(r"(?:Cuda|HIP|Hip) failure (?:\d+ )?'out of memory'"),
    Sign("Failed to CUDA calloc"),
    cause=" for NCCL's buffers",
)
_XLA = rf"RESOURCE_EXHAUSTED: Out of memory (?:while trying to )?alloc\w{{2,5}} (?P<asked>{_ANY_SIZE})?"
_XLAS = (
    like(rf"{_XLA} with allocator GPU_\d"),
    like(_XLA, likely=True),  # also for CPU memory
    like(r"Ran out of memory in memory space (?:hbm|vmem|smem)"),
    Sign("That was not possible.", r"Attempting to (?:reserve|allocate) [\d.]{1,20}\w? ?[\s\S]{0,40}not possible\."),
    like(r"OOM when allocating tensor[^\n]{0,400}/device:GPU:"),
)
_REFUSED = Sign(
    " on device",
    r"(?:[Cc]an(?:'t| ?not)|[Ff]ailed to|[Uu]nable to) allocate (?:request for )?\d[\d.,]{0,30} ?\w{0,10}"
    r"(?: \(\d{1,20}B\))? on device\b",
)
"""From DALI, Warp and XLA."""
_RUNTIMES = Sign(
    "out of memory",
    r"\b(?:CUDA|[Cc]uda(?:[A-Z]\w{1,30})?|cu[A-Z]\w{1,30}|HIP|hip[A-Z]\w{1,30})(?:\([^\n]{0,80}?\){1,2} ?)?"
    r"(?: (?!out\b)\w{1,20}){0,4}?(?: ?[:(] ?| ['\"]| (?:error|failure|failed) )out of memory\b"
    r"|Triton Error \[(?:CUDA\]|HIP\]: {1,2}Code: \d{1,4}, Mess{1,2}age): out of memory"
    r"|GPU:\d{1,4} failed\. Status: out of memory|Error 2: out of memory",
)
"""`CUDA failure 2: out of memory`, `cudaMalloc failed: out of memory`, `Cuda Runtime (out of memory)` and the like."""
SYMPTOMS = (
    like(r"\[HAMI-core ERROR [^\]\n]{1,100}\]: Device \d{1,3} OOM \d{1,20} / \d{1,20}"),
    like(rf"{_SIZE} is free\. Including non-PyTorch memory, this process has {_SIZE} memory in use"),
    like(rf"Of the allocated memory {_SIZE} is allocated by PyTorch\b"),
    like(rf"already allocated; {_SIZE} free; {_SIZE} reserved in total by PyTorch\)"),
)
"""From HAMi, which divides GPUs, as it refuses memory; torch's messages without their beginning."""
SIGNS = meaning(
    like(_ASKED),
    *("NPU out of memory", "MPS backend out of memory", "CUDA allocation failed", "DEVMEM Allocation failed"),
    *("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "UR_RESULT_ERROR_OUT_OF_RESOURCES", "PI_ERROR_OUT_OF_RESOURCES"),
    *("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "std::bad_alloc: out_of_memory", "Error Code 2: OutOfMemory"),
    # servers compute the size of their request cache before they allocate it: vLLM, lmdeploy, SGLang
    *("No available memory for the cache blocks", "exceeds available Mamba cache blocks"),
    *("CUDA out of memory occurred when warming up", "No enough gpu memory for"),
    "KV cache is needed, which is larger than the available KV cache",
    "larger than the maximum number of tokens that can be stored in KV cache",
    "not enough GPU memory available to serve even a single token",
    "Not enough memory. Please try to increase --mem-fraction-static",
    like(r"Free memory on device[^\n]{0,120} on startup is less than desired GPU memory utilization"),
    like(r"(?:Decode|Prefill) out of memory\. Try to lower your batch size"),
    like(r"Not enough memory to handle (?:\d{1,9} prefill|`max_total_)"),  # TGI
    like(r"Out of memory error on GPU \d"),  # Paddle
    *errors_named("MemoryAllocation|OutOfMemory", "OUT_OF_MEMORY"),
    _RUNTIMES,
    _REFUSED,
    *_XLAS,
    # torch's allocator asks NVML for the memory's users only after an allocation failed
    Sign(
        "NVML_SUCCESS == ",
        r"NVML_SUCCESS == [\s\S]{0,200}?CUDACachingAllocator\.cpp",
        ("RuntimeError",),
        likely=True,
    ),
    like(rf"would exceed allowed memory\. \(out of memory\)(?:[\s\S]{{0,200}}?Requested\s*: (?P<asked>{_SIZE}))?"),
    Sign("_ALLOC", r"\b(?:CU|HIP)[A-Z]{2,12}_(?:STATUS_)?ALLOC(?:ATION)?_FAILED"),
    like(r"EL0004\)?: [^\n]{0,80}?Failed to allocate memory"),  # Ascend
    like(r"Failed to allocate memory for requested buffer of size \d{1,20}", likely=True),  # ONNX Runtime
    *_IN_NCCL,
    like(
        r"^(?:(?:torch|cupy|numba|rmm|triton|jax)[\w.]{0,60}\.)?OutOfMemoryError"
        rf"(?:: Out of memory allocating (?P<asked>{_ANY_SIZE}))?",
        ("OutOfMemoryError",),
    ),
)
_GPU = re.compile(r"GPU (?P<gpu>\d{1,9})(?: has|;)")
_TOTAL = re.compile(rf"total capac?i?ty of (?P<new>{_SIZE})|; (?P<old>{_SIZE}) total capacity")
_FREE = re.compile(rf"of which (?P<new>{_SIZE}) is free|; (?P<old>{_SIZE}) free")
_OWN = re.compile(rf"this process has (?P<new>{_SIZE}) memory in use")
_OTHER = re.compile(rf"Process (?P<pid>\d{{1,9}}) has (?P<size>{_SIZE}) memory in use")
_USED = re.compile(rf"Of the allocated memory (?P<new>{_SIZE}) is allocated by PyTorch|; (?P<old>{_SIZE}) already")
_IDLE = re.compile(rf"and (?P<new>{_SIZE}) is reserved by PyTorch but unallocated")
_ALLOWED = re.compile(rf"(?P<new>{_SIZE}) allowed;")
_RESERVED = re.compile(rf"; (?P<old>{_SIZE}) (?:reserved in total|cached)")
_FRESH_S = 2.0
"""The longest time between a rank's failure and a look at its GPU that still shows the free memory at the failure."""
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a failed GPU allocation that ended the rank."""
    hit = ended_by_gpu(death, SIGNS) or behind_nccl(death, _IN_NCCL)
    if hit is None:
        return None
    if _is_pinned(hit):
        return _pinned(hit, death)
    scene = _Scene.of(_Memory(hit.message), death, attempt)
    cause = f"{death.who} ran out of GPU memory"
    cause += f" allocating {hit['asked']}" if hit["asked"] else ""
    cause += f" on GPU {scene.memory.gpu}" if scene.memory.gpu else ""
    cause += hit.says(death) or _phase(hit.traceback)
    cause += f": {scene.counted}" if scene.counted else ""
    return hit.finding(RULE, death, cause, _advice(scene, hit, death), retry=scene.retry, also=scene.quotes)


class _Memory:
    """The numbers of one message, in bytes; None if missing."""

    def __init__(self, text: str) -> None:
        gpu = _GPU.search(text)
        self.gpu = gpu["gpu"] if gpu else None
        self.total, self.free = _read(_TOTAL, text), _read(_FREE, text)
        self.used, own = _read(_USED, text), _read(_OWN, text)
        self.allowed = _read(_ALLOWED, text)
        reserved, self.idle = _read(_RESERVED, text), _read(_IDLE, text)
        if self.idle is None and reserved is not None and self.used is not None:
            self.idle = max(0, reserved - self.used)
        # In a container the pids may be of another pid namespace, so torch does not find itself among them.
        listed = _OTHER.finditer(text) if own is not None else ()
        self.holders = tuple(GpuHolder(int(each["pid"]), int(_bytes(each["size"]))) for each in listed)
        if own is None and self.used is not None:
            own = self.used + (self.idle or 0)
        self.others = None if self.total is None or own is None else max(0, self.total - own - (self.free or 0))

    @property
    def fragmented(self) -> bool:
        return self.idle is not None and self.total is not None and self.idle > self.total / 20


@dataclass(frozen=True, slots=True)
class _Scene:
    """The message, combined with the last look at that GPU."""

    memory: _Memory
    death: Death
    gpu: Gpu | None
    """The GPU in question; None: not inspected, or unknown which."""
    certain: bool
    fresh: bool
    """It was inspected when the rank failed, so it shows the free memory at that time."""
    holders: tuple[GpuHolder, ...]
    """Other processes known to hold its memory, largest first."""

    @classmethod
    def of(cls, memory: _Memory, death: Death, attempt: Evidence) -> _Scene:
        look, number = death.gpus, None if memory.gpu is None else int(memory.gpu)
        gpu, certain = look.gpu_of(death.rank, number, death.local_rank) if look is not None else (None, False)
        seen = gpu.holders if gpu is not None and certain else ()
        known = {holder.pid: holder for holder in seen}
        fresh = look is not None and abs(look.age_s) <= _FRESH_S
        named = [replace(holder, rank=_rank(holder.pid, death, attempt)) for holder in memory.holders]
        named = [replace(known.get(holder.pid, holder), held=holder.held) for holder in named]
        found = named or [holder for holder in seen if fresh and holder.rank != death.rank]
        total = memory.total or (gpu.total if gpu is not None else 0)
        # NVML's "not available" is printed as 17179869184 GiB
        holders = [holder for holder in found if holder.held is not None and holder.held <= total]
        return cls(memory, death, gpu, certain, fresh, tuple(sorted(holders, key=lambda holder: -(holder.held or 0))))

    @property
    def others(self) -> float | None:
        """The bytes held by other processes, if known."""
        seen = sum(holder.held or 0 for holder in self.holders)
        return max(self.memory.others, seen) if self.memory.others is not None else seen or None

    @property
    def total(self) -> float | None:
        return self.memory.total or (self.gpu.total if self.gpu is not None and self.certain else None)

    @property
    def foreign(self) -> bool:
        """Whether other processes hold a significant part: more than a tenth, which no CUDA context needs."""
        return self.others is not None and self.total is not None and self.others > self.total / 10

    @property
    def large(self) -> tuple[GpuHolder, ...]:
        """The other processes that hold a significant part."""
        return tuple(each for each in self.holders if (each.held or 0) > (self.total or 0) / 20) if self.foreign else ()

    @property
    def sharing(self) -> tuple[Rank, ...]:
        """The job's ranks that hold a significant part of the same GPU, including this one."""
        ranks = {each.rank for each in self.large if each.rank is not None}
        return tuple(sorted({*ranks, self.death.rank})) if ranks and self.death.rank is not None else ()

    @property
    def retry(self) -> Retry | None:
        if not self.foreign:
            return None
        if self.large and all(each.rank is not None for each in self.large):
            return Retry(helps=False, reason="the same ranks will share that GPU again")
        return Retry(helps=True, reason="another process held part of the GPU memory and may be gone by then")

    @property
    def counted(self) -> str:
        """Return the numbers that decide what to do, as text."""
        parts = []
        if self.memory.free is not None and self.memory.total is not None:
            parts.append(f"{_shown(self.memory.free)} of {_shown(self.memory.total)} were free")
        elif self.gpu is not None and self.certain and self.fresh:
            parts.append(f"{_shown(self.gpu.free)} of {_shown(self.gpu.total)} were free")
        if self.memory.allowed is not None:
            parts.append(f"{_shown(self.memory.allowed)} allowed")
        if self.foreign and self.others is not None:
            parts.append(self._who_held)
        if self.memory.fragmented and self.memory.idle is not None:
            parts.append(f"torch held {_shown(self.memory.idle)} unused")
        return ", ".join(parts)

    @property
    def _who_held(self) -> str:
        others = self.others or 0
        named = sum(each.held or 0 for each in self.large)
        if not self.large or len(self.large) > 2 or named < others / 2:
            return f"other processes held {_shown(others)}"
        return " and ".join(f"{each.who} held {_shown(each.held or 0)}" for each in self.large)

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """Return the GPU's state as seen."""
        look = self.death.gpus
        if look is None or self.gpu is None:
            return ()
        assumed = "" if self.certain else " (this rank's GPU according to its environment)"
        return (Quote("gpu", None, look.words(self.gpu) + assumed),)


def _rank(pid: int, death: Death, attempt: Evidence) -> Rank | None:
    """Return the rank on the same host with this pid."""
    if attempt.logs_only and death.host is None:
        return None
    ranks = [*attempt.deaths, *attempt.clean_exits]
    return next((each.rank for each in ranks if each.pid == pid and each.host == death.host), None)


def _read(pattern: re.Pattern[str], text: str) -> float | None:
    hit = pattern.search(text)
    if hit is None:
        return None
    return _bytes(next(value for value in hit.groups() if value))


def _bytes(words: str) -> float:
    number, unit = words.split()
    return float(number) * _UNITS[unit]


def _shown(size: float) -> str:
    unit = next((name for name in ("GiB", "MiB", "KiB") if size >= _UNITS[name]), "bytes")
    return f"{size / _UNITS[unit]:.4g} {unit}"


def _phase(frames: str) -> str:
    """Return the operation that the frames show, checking the innermost first."""
    for words, phase in (
        ("torch/serialization.py", "loading a checkpoint"),
        ("torch/autograd/__init__.py", "during backward"),
        ("torch/optim/", "in the optimizer's step"),
    ):
        if words in frames:
            return f" {phase}" if phase.startswith(("during", "in ")) else f" while {phase}"
    return ""


def _is_pinned(hit: Hit) -> bool:
    """Whether the driver failed to pin host memory: the runtime also says `out of memory` for that."""
    return "Tried to allocate" not in hit.message and "pin_memory" in hit.traceback


def _pinned(hit: Hit, death: Death) -> Finding:
    cause = f"{death.who} ran out of host memory while pinning it for the GPU (not GPU memory)"
    advice = ("free -h   # pinned memory is host memory", "DataLoader(…, pin_memory=False)   # to confirm")
    return hit.finding(RULE, death, cause, advice, confidence="likely")


def _advice(scene: _Scene, hit: Hit, death: Death) -> tuple[str, ...]:
    memory = scene.memory
    amd = vendor(hit.text) == "HIP"
    intel = vendor(hit.text) == "XPU"
    advice = []
    if scene.sharing:
        device = "xpu" if intel else "cuda"
        who = f"ranks {rank_list(scene.sharing)} share this GPU"
        advice.append(f'torch.{device}.set_device(int(os.environ["LOCAL_RANK"]))   # one GPU per rank: {who}')
    strangers = [str(each.pid) for each in scene.large if each.rank is None]
    if strangers:
        advice.append(f"ps -o pid,user,lstart,args -p {','.join(strangers)}   # what is using this GPU's memory")
    elif (scene.foreign and not scene.sharing) or (scene.total is None and not intel):
        query = "rocm-smi --showpids" if amd else "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"
        advice.append(f"{query}   # which processes use the GPU's memory")
    if memory.fragmented and not intel:
        name = "PYTORCH_HIP_ALLOC_CONF" if amd else "PYTORCH_CUDA_ALLOC_CONF"
        name = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in hit.message else name
        unused = _shown(memory.idle or 0)
        advice.append(f"export {name}=expandable_segments:True   # {unused} reserved but unused")
    raised = death.exception
    if raised is not None and "torch/serialization.py" in raised.traceback:
        advice.append('torch.load(path, map_location="cpu")   # otherwise it loads onto the GPU it was saved from')
    elif not scene.foreign:
        advice.append("halve the batch per rank and double gradient accumulation: same step, less memory")
    return tuple(advice)
