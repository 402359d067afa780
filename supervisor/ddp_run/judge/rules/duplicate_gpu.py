"""Two ranks share one GPU.

## What happened
Two ranks of one communicator use the same GPU. NCCL allows one rank per GPU.
## How to recognise it
NCCL's `Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000` (src/init.cc), after `ncclInvalidUsage`.
The number is the GPU's PCI address. gloo silently accepts several ranks per GPU.
## What to do
- `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before `init_process_group` and before anything touches CUDA;
  otherwise every rank uses GPU 0. `RANK` instead of `LOCAL_RANK` works only on the first node.
- Start no more ranks per node than `nvidia-smi -L` and `CUDA_VISIBLE_DEVICES` list GPUs.
- If two nodes are containers on one host, give them different GPUs.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.judge.nccl_text import error_of
from ddp_run.judge.signs import Sign, ended_by
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP511",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same ranks will share the GPU again"),
)
_PAIR = re.compile(
    r"Duplicate GPU detected ?: ranks? (?P<one>\d+) and (?:rank )?(?P<other>\d+) both on (?:CUDA|HIP|\w+) device"
    r" (?P<device>\w+)"
)
_DUPLICATE = Sign("Duplicate GPU detected", f"{_PAIR.pattern}|Duplicate GPU detected")
_SAME = Sign("Multiple Ranks are using the same GPU")
SIGNS = (_DUPLICATE, _SAME)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match NCCL's message in the error that ended the rank, or in the warning before it."""
    hit = ended_by(death, SIGNS)
    also: tuple[Quote, ...] = ()
    said = hit.match.string if hit is not None else ""
    if hit is None:
        error = error_of(death)
        said = error.reason or "" if error is not None else ""
        if error is None or not any(sign.search(said) for sign in SIGNS):
            return None
        hit, also = error.hit, error.also
    pair = _PAIR.search(said)
    who = f"ranks {pair['one']} and {pair['other']}" if pair else "two ranks"
    device = f" (CUDA device {pair['device']})" if pair else ""
    return hit.finding(RULE, death, f"{who} use the same GPU{device}, which NCCL does not allow", _ADVICE, also=also)


_ADVICE = (
    "grep -rn 'set_device' --include='*.py' .   # torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first",
    "nvidia-smi -L; echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES   # as many GPUs as ranks on this host?",
)
