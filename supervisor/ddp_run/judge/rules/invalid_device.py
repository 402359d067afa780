"""GPU index out of range.

## What happened
The rank selected GPU N, but the process sees fewer GPUs: more processes per node than GPUs, a `CUDA_VISIBLE_DEVICES`
that lists fewer, or the global rank used as the index on a second node.
## How to recognise it
`CUDA error: invalid device ordinal` (HIP says the same), `device >= 0 && device < num_gpus INTERNAL ASSERT FAILED`,
`Invalid device id`, XPU's `device index is out of range`, Ascend's `Set visible device failed`. Only the ranks with
high numbers fail; all do where a container numbers its devices from 0, whatever numbers they have on the host.
## What to do
- `--nproc-per-node` must not exceed the number of GPUs on the node (`nvidia-smi -L | wc -l`); `--nproc-per-node=gpu`
  asks torch for it.
- `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`, not `RANK`.
- Each rank must see all GPUs of the node, or use index 0 if the scheduler assigns one GPU per task.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import ended_by_gpu, errors_named, vendor
from ddp_run.judge.signs import Sign, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP302",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same rank will select the same GPU again"),
)
SIGNS = meaning(
    *meaning(  # Ascend's
        like(r"Set visible device failed, invalid device=\d{1,9}, input visible devices:(?P<listed>[\d,]{1,400})"),
        like(r"set ASCEND_RT_VISIBLE_DEVICES:? ?(?P<listed>[\d,]{1,400})? ?error, input data range"),
        cause="{who} sees other devices than ASCEND_RT_VISIBLE_DEVICES lists{ ({listed})}{where}",
    ),
    like(r"Invalid device string: '(?P<device>[^'\n]{1,80})'"),
    like(r"(?<!Error 101: )invalid device ordinal"),
    like(r"device < num_gpus(?:[\s\S]{0,200}?device=(?P<device>\d+), ?num_gpus=(?P<count>\d+))?"),
    Sign("Invalid device id", types=("AssertionError",)),
    Sign("nvidia-container-cli: device error: "),
    *errors_named("InvalidDevice", "INVALID_DEVICE"),
    like(r"The device index is out of range\. It must be in \[0, (?P<count>\d+)\), but got (?P<device>\d+)"),  # Intel's
    like(r"device is out of range, device is (?P<device>\d+), total number of device is (?P<count>\d+)"),  # Intel's
    like(r"set device=(?P<device>\d{1,9}), valid device range is \[0, (?P<count>\d+)\)"),  # Ascend's
    like(r"DP adjusted local rank (?P<device>\d{1,6}) is out of bounds"),  # vLLM
    like(r"specifies invalid or unsupported gpu id (?P<device>\d{1,6})"),  # Triton's server
    like(r"No slot '(?P<device>\d{1,6})' specified on host '"),  # DeepSpeed
    like(r"Invalid device argument\s*:? ?(?P<device>\d+)?"),
    like(r"You requested (?:gpu|GPUs): [^\n]{1,200}\n? *But your machine only has: "),  # Lightning
    Sign("[Error]: Invalid device ID."),  # Ascend's
    like(r"NotEnoughCUDADevices\(\"?`num_shard` is \d{1,6} but only \d{1,6} "),  # TGI's launcher
    like(r"World size \(\d{1,9}\) is larger than the number of available GPUs \(\d{1,6}\)"),  # vLLM
    like(r"on \w+ device (?P<device>\d+) but torch\.\w+\.device_count\(\) is (?P<count>\d+)"),
    cause="{who} selected {asked}{, but sees {count}}{where}",
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that the GPU does not exist, if it ended the rank."""
    hit = ended_by_gpu(death, SIGNS)
    if hit is None:
        return None
    cause = hit.says(death, asked=f"GPU {hit['device']}" if hit["device"] else "a GPU that it cannot see")
    return hit.finding(RULE, death, cause, _advice(vendor(hit.match.string), death))


def _advice(maker: str, death: Death) -> tuple[str, ...]:
    count, mask, module = {
        "HIP": ("rocm-smi --showid", "HIP_VISIBLE_DEVICES", "cuda"),
        "XPU": ("xpu-smi discovery", "ZE_AFFINITY_MASK", "xpu"),
        "NPU": ("npu-smi info; ls /dev/davinci*", "ASCEND_RT_VISIBLE_DEVICES", "npu"),
    }.get(maker, ("nvidia-smi -L", "CUDA_VISIBLE_DEVICES", "cuda"))
    mine = f"   # local rank {death.local_rank} needs index {death.local_rank}" if death.local_rank is not None else ""
    return (
        f'{count}; echo "{mask}=${{{mask}-unset}}"{mine}',
        f"ddp-run --nproc-per-node={'gpu' if module == 'cuda' else module} …   # as many ranks as GPUs",
        f'torch.{module}.set_device(int(os.environ["LOCAL_RANK"]))   # not RANK: that counts across all nodes',
    )
