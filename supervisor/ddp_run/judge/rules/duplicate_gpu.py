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

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.nccl_text import error_of
from ddp_run.judge.signs import Sign, anywhere, ended_by, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP511",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same ranks will share the GPU again"),
)
SIGNS = meaning(
    like(
        r"Duplicate GPU detected"
        r"(?: ?: ranks? (?P<one>\d+) and (?:rank )?(?P<other>\d+) both on \w+ device (?P<device>[0-9a-f]{1,16}))?"
    ),
    Sign("Multiple Ranks are using the same GPU"),
    cause="two ranks use the same GPU, which NCCL does not allow{: ranks {one} and {other}, device {device}}",
    advice=(
        "grep -rn 'set_device' --include='*.py' .   # torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first",
        "nvidia-smi -L; echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES   # as many GPUs as ranks on this host?",
    ),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match NCCL's message in the error that ended the rank, or in the warning before it."""
    hit = ended_by(death, SIGNS)
    error = error_of(death) if hit is None else None
    if error is not None:
        hit = anywhere(death.nccl, SIGNS) or anywhere(death.stderr, SIGNS)
    return None if hit is None else hit.finding(RULE, death)
