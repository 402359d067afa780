"""DDP: two gradients for one parameter.

## What happened
DDP expects each parameter to become ready once per backward pass. Here one became ready twice: it was used outside
`forward`, in several reentrant backward passes (activation checkpointing), or in more than one backward pass per
forward pass.
## How to recognise it
`Expected to mark a variable ready only once.` With `TORCH_DISTRIBUTED_DEBUG=INFO` it adds the parameter's name:
`Parameter at index 3 with name encoder.weight has been marked as ready twice.`
## What to do
With activation checkpointing, use `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`
(`gradient_checkpointing_kwargs={"use_reentrant": False}` in transformers). With `find_unused_parameters=True`, try
`False`. If the graph is the same in every iteration, `DistributedDataParallel(model, static_graph=True)`.
"""

from __future__ import annotations

from ddp_run.judge.signs import Sign, like, matcher, meaning
from ddp_run.judge.verdict import Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP509",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same backward pass will mark the parameter twice again"),
)
_ADVICE = (
    "grep -rnE 'checkpoint\\(|gradient_checkpointing' --include='*.py' .   # use_reentrant=False there",
    "grep -rn 'find_unused_parameters' --include='*.py' .   # False, or static_graph=True instead",
)
SIGNS = meaning(
    like(
        r"Expected to mark a variable ready only once[\s\S]{0,4000}?Parameter at index \d+ with name (?P<name>\S+)",
        cause="{who} got two gradients for parameter {name} in one backward pass",
    ),
    *meaning(
        like(r"Expected to mark a variable ready only once(?:[\s\S]{0,4000}?Parameter at index (?P<index>\d+))?"),
        Sign("has already been reduced. Gradient computed twice for this partition"),  # DeepSpeed's ZeRO
        cause="{who} got two gradients for one parameter{ (index {index})} in one backward pass",
        advice=("export TORCH_DISTRIBUTED_DEBUG=INFO   # prints the parameter's name", *_ADVICE),
    ),
    advice=_ADVICE,
)
SYMPTOMS = (Sign("has been marked as ready twice"),)
match = matcher(RULE, SIGNS)
