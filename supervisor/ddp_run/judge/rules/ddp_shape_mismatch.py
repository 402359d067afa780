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
from ddp_run.judge.signs import Sign, ended_by
from ddp_run.judge.verdict import Area, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP507",
    name="ddp-shape-mismatch",
    title="Ranks wrapped different models",
    area=Area.COLLECTIVE,
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the ranks will build different models again"),
    since="0.1",
    unlike="together",
)
_COUNT = Sign(
    "DDP expects same model across all ranks",
    r"DDP expects same model across all ranks, but Rank (?P<one>\d+) has (?P<count>\d+) params, "
    r"while rank (?P<other>\d+) has inconsistent (?P<others>\d+) params",
)
_SHAPE = Sign(
    "of the same param in process 0",
    r"\[(?P<one>\d+)\]: params\[(?P<index>\d+)\] in this process(?: with sizes \[(?P<sizes>[^\]]*)\])? "
    r"appears not to match (?P<what>sizes|strides) of the same param in process 0",
)
SIGNS = (_COUNT, _SHAPE)
_ADVICE = (
    "grep -rnE 'len\\(|num_classes|vocab' --include='*.py' .   # is a size derived from the rank's data shard?",
    "grep -rn 'DistributedDataParallel(\\|DDP(' --include='*.py' .   # print(len(list(model.parameters()))) before it",
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match DDP's comparison at construction: the number of parameters per rank, or the one with a different shape."""
    hit = ended_by(death, SIGNS)
    if hit is None or hit["others"] == "0":  # a model without parameters is rejected earlier, without a comparison
        return None
    if hit.sign is _COUNT:
        cause = f"rank {hit['one']}'s model has {hit['count']} parameters, rank {hit['other']}'s has {hit['others']}"
    else:
        sizes = f" ([{hit['sizes']}])" if hit["sizes"] is not None else ""
        cause = f"rank {hit['one']}'s parameter {hit['index']}{sizes} has different {hit['what']} than rank 0's"
    return hit.finding(RULE, death, cause, _ADVICE)
