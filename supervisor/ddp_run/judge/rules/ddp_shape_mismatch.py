"""Ranks wrapped different models.

## What happened
`DistributedDataParallel` compares the model's parameters across all ranks on construction. They differ in number or
shape.
## How to recognise it
`DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has inconsistent 6 params.`, or
`[1]: params[2] in this process with sizes [10, 8] appears not to match sizes of the same param in process 0.`
## What to do
Build the same model on every rank: the same configuration, vocabulary and number of classes (not derived from a rank's
own data shard), the same `requires_grad`, the same checkpoint loaded before wrapping.
"""

from __future__ import annotations

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, anywhere, like, matcher, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP507",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the ranks will build different models again"),
    unlike="together",
)
SIGNS = meaning(
    like(
        r"DDP expects same model across all ranks, but Rank (?P<one>\d+) has (?P<count>\d+) params, "
        r"while rank (?P<other>\d+) has inconsistent (?P<others>(?!0 )\d+) params",
        cause="rank {one}'s model has {count} parameters, rank {other}'s has {others}",
    ),
    like(
        # a model without parameters is rejected earlier, without a comparison
        r"DDP expects same model across all ranks, but Rank (?P<one>\d+) has (?P<count>\d+) params, "
        r"while rank (?P<other>\d+) has inconsistent 0 params",
        cause="rank {one}'s model has {count} parameters, and no number came from rank {other}",
        advice=("export NCCL_DEBUG=INFO   # did the first collective fail, and bring zeros?",),
        likely=True,
    ),
    like(
        r"\[(?P<one>\d+)\]: params\[(?P<index>\d+)\] in this process(?: with sizes \[(?P<sizes>[^\]]*)\])? "
        r"appears not to match (?P<what>sizes|strides) of the",
        cause="rank {one}'s parameter {index}{ ([{sizes}])} has different {what} than rank 0's",
    ),
    advice=(
        "grep -rnE 'len\\(|num_classes|vocab' --include='*.py' .   # is a size derived from the rank's data shard?",
        "grep -rn 'DistributedDataParallel(\\|DDP(' --include='*.py' ."
        "   # print(len(list(model.parameters()))) before it",
    ),
)
_TIMED_OUT = Sign("aught collective operation timeout")
_WITH_NUMBERS = matcher(RULE, SIGNS)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match torch's comparison of the models, unless the collective that brings the numbers timed out."""
    found = _WITH_NUMBERS(death, attempt)
    return None if found is None or (found.confidence == "likely" and anywhere(death.stderr, (_TIMED_OUT,))) else found
