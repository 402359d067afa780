"""GPU hardware or link failure.

## What happened
The hardware reported an error: uncorrectable memory (ECC), a broken NVLink, a GPU that fell off the bus or hangs.
## How to recognise it
In the kernel's log (`dmesg -T | grep NVRM`): `NVRM: Xid (PCI:0000:3b:00): 79, …`. Xids that indicate hardware: 48, 92,
94, 95 (ECC), 63, 64 (pages or rows of memory retired), 74, 144-150 (NVLink), 79 (fallen off the bus), 61, 62, 119, 120,
140 (the GPU's own processor or an unrecovered error). In the rank: `uncorrectable ECC error encountered`,
`uncorrectable NVLink error detected during the execution`, `Invalid access of peer GPU memory over nvlink or a hardware
error`, `GPU is lost`; ROCm: `HW Exception by GPU node-…`; Intel: `UR_RESULT_ERROR_DEVICE_LOST`.

Xid 13, 31, 43 and 45 are caused by programs: see [illegal-memory-access](illegal-memory-access.md).
## What to do
- Run on another node, or without that GPU (`CUDA_VISIBLE_DEVICES`); report the PCI address to the host's admin.
- `nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT`; a pending remap needs a reset (`nvidia-smi --gpu-reset -i N`)
  or a reboot. `dcgmi diag -r 3` tests the GPU.
- Fallen off the bus: only a reboot brings it back; if the same GPU does it twice, suspect power, cooling or the board.
"""

from __future__ import annotations

from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.gpu_text import behind_nccl, ended_by_gpu, errors_named, is_of_a_gpu, vendor
from ddp_run.judge.signs import Hit, Sign, every, first_of, like, meaning, quotes
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP304",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the GPU will keep failing until it is reset or replaced: use another node"),
    wins_over=(("fabric-manager", "the fabric can't start because a GPU or link is broken"),),
    host="once",
    end="sticky",
)
XIDS = {
    48: "a double-bit ECC error",
    61: "an internal micro-controller breakpoint",
    62: "an internal micro-controller halt",
    63: "a page or row of its memory was retired",
    64: "a page or row of its memory could not be retired",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "a high rate of single-bit ECC errors",
    94: "a contained ECC error",
    95: "an uncontained ECC error",
    119: "the GPU's system processor did not respond",
    120: "the GPU's system processor failed",
    140: "an unrecovered ECC error",
    **dict.fromkeys(range(144, 151), "an NVLink error"),
}
"""The meaning of each number that indicates hardware (NVIDIA, "XID Errors", docs.nvidia.com/deploy/xid-errors).
Programs or the driver cause the rest, or they follow another."""
_NODE_ONLY = frozenset({79, 119, 120})
_SURVIVED = frozenset({63, 64, 74, 92})
"""A program may survive these."""
_ONLY_BESIDE = frozenset({63, 64, 92})
"""These count only next to an error that ended the rank: they record retired memory, now or at the next reset."""
_FORM = (
    r"(?:^|[:\]>\"'|] {0,3}|kernel |\d\d:\d\d(?: \S{1,100}){0,2} )"  # no report about other machines
    r"NVRM: Xid \(PCI:(?P<pci>[0-9A-Fa-f:.]+)\): (?:45, [^\n]{0,200}caused by previous Xid )?(?P<number>\d{1,9})\b"
    r"(?:, pid='?(?P<pid>\d+))?(?:[^\n]{0,200}?name=(?P<name>[\w.\-/]+))?"
)
XID = like(_FORM)
_LIKELY = meaning(
    like(r"HW Exception by GPU node-(?P<gpu>\d{1,9})[^\n]{0,200}?reason ?: ?(?P<why>[\w ]+)"),
    like(r"(?:(?:UR|ZE)_RESULT|PI)_ERROR_DEVICE_LOST"),
    like(r"Unable to determine the device handle for [Gg]PU\S* ?\S*"),
    Sign("Invalid access of peer GPU memory over nvlink or a hardware error"),
    likely=True,
)
_SAID = (
    Sign("uncorrectable ECC error encountered"),
    Sign("uncorrectable NVLink error detected during the execution"),
    *errors_named(
        "ECCUncorrectable|ECCNotCorrectable|NvlinkUncorrectable|HardwareStackError|Contained",
        "ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|HARDWARE_STACK_ERROR|CONTAINED",
    ),
    like(r"GPU is lost\.? "),
    Sign("NVMLError_GpuIsLost"),
    Sign("CUDA error: hardware stack error"),
    Sign("HBM MULTI BIT ECC ERROR"),  # Ascend's, like the next two
    Sign("HCCS LINK ERROR"),
    like(r"RuntimeError: UCE ERROR\b"),
    like(r"synStatus ?=? ?\d{1,3} \[Device reset\]"),  # Intel Gaudi
    like(r"SLICE_FAILURE_(?:CHIP_DRIVER_ERROR|HW\w{0,40}|\w{0,40}HARDWARE\w{0,40})"),  # TPU
    Sign("UNAVAILABLE: Slice health check failed"),
    Sign("has fallen off the bus"),
    *_LIKELY,
)
SIGNS = (XID, *_SAID)
SYMPTOMS = (like(r"NVRM: [^\n]{0,120}\bfallen off the bus\b"),)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a hardware error that ended the rank, or one in the kernel's log if a GPU error ended the rank."""
    hit = first_of(death, _SAID, ended_by_gpu, behind_nccl)
    xid = _xid(death, attempt)
    owner = _owner(xid, attempt) or death
    if hit is not None:
        found = _said(hit, owner, xid)
    elif xid is not None and int(xid["number"] or 0) not in _ONLY_BESIDE and is_of_a_gpu(death):
        found = _by_kernel(xid, owner)
    else:
        return None
    return found if owner.rank == death.rank else replace(found, culprit=owner.rank)


def _owner(xid: Hit | None, attempt: Evidence) -> Death | None:
    """Return the rank whose process the kernel's message names: its peers may end first, as they wait for it."""
    pid = xid["pid"] if xid is not None and (attempt.kernel_pids or attempt.logs_only) else None
    return next((each for each in attempt.deaths if pid is not None and str(each.pid) == pid), None)


def _xid(death: Death, attempt: Evidence) -> Hit | None:
    """Return the kernel's message about hardware: for this process, else one without a process."""
    told = [hit for log in (attempt.kernel, death.stderr) for hit in every(log, XID)]
    found = [hit for hit in told if int(hit["number"] or 0) in XIDS]
    found.sort(key=lambda hit: int(hit["number"] or 0) in _SURVIVED)
    own = [hit for hit in found if death.pid is not None and hit["pid"] == str(death.pid)]
    unnamed = [hit for hit in found if hit["pid"] is None or death.pid is None]
    return next(iter([*own, *unnamed, *found]), None)


def _said(hit: Hit, death: Death, xid: Hit | None) -> Finding:
    sure: Confidence | None = hit.confidence if xid is not None else None
    cause = f"{death.who}'s GPU failed: {hit.match[0].removeprefix('CUDA error: ').strip().rstrip('.')}"
    if xid is not None:
        cause += f" (GPU at PCI {xid['pci']}, Xid {xid['number']})"
    return hit.finding(RULE, death, cause, _advice(hit, xid, death), confidence=sure, also=quotes(xid))


def _by_kernel(xid: Hit, death: Death) -> Finding:
    number = int(xid["number"] or 0)
    mine = death.pid is not None and xid["pid"] == str(death.pid)
    whose = f"{death.who}'s GPU failed" if mine else f"{death.who} died when a GPU on its host failed"
    cause = f"{whose}: Xid {number} at PCI {xid['pci']}, {XIDS[number]}"
    sure: Confidence = "certain" if mine and number not in _SURVIVED else "likely"
    return xid.finding(RULE, death, cause, _advice(xid, xid, death), confidence=sure)


def _advice(hit: Hit, xid: Hit | None, death: Death) -> tuple[str, ...]:
    maker = vendor(hit.text)
    if maker == "HIP":
        return (
            "dmesg -T | grep -iE 'amdgpu.*(ras|ecc|hang|reset)'   # what the driver saw",
            "rocm-smi --showrasinfo all   # memory errors by GPU; run on another node until it is reset",
        )
    if maker == "XPU":
        return (
            "dmesg -T | grep -iE 'i915|xe '   # a reset or a hang of the GPU",
            "xpu-smi health -l   # run on another node until it is reset",
        )
    if maker == "NPU":
        return ("npu-smi info   # which device is not OK? run on another node until it is reset",)
    where = f"-i {xid['pci']} " if xid is not None else ""
    host = death.host or "this node"
    advice = [f"nvidia-smi {where}-q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT   # and exclude {host} from the job"]
    if xid is None:
        advice.insert(0, "sudo dmesg -T | grep -i xid   # which GPU, and what happened to it")
    elif int(xid["number"] or 0) in _NODE_ONLY:
        advice.append("reboot the host: this GPU needs it to come back")
    return tuple(advice)
