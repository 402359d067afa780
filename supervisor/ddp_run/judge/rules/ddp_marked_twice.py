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

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.signs import Sign, ended_by
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP509",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same backward pass will mark the parameter twice again"),
)
SIGNS = (
    Sign("Expected to mark a variable ready only once"),
    Sign("has already been reduced. Gradient computed twice for this partition"),  # DeepSpeed's ZeRO
)
_WHICH = re.compile(r"Parameter at index (?P<index>\d+)(?: with name (?P<name>\S+))? has been marked as ready twice")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the reducer's message; certain if it is in the exception that ended the rank."""
    hit = ended_by(death, SIGNS)
    if hit is None:
        return None
    said = hit.exception.message if hit.exception is not None else "\n".join(death.stderr.ending(LAST_WORDS).lines)
    which = _WHICH.search(said)
    named = (
        "one parameter"
        if which is None
        else f"parameter {which['name']}"
        if which["name"]
        else f"the parameter at index {which['index']}"
    )
    advice = (
        *(() if which and which["name"] else ("export TORCH_DISTRIBUTED_DEBUG=INFO   # prints the parameter's name",)),
        "grep -rnE 'checkpoint\\(|gradient_checkpointing' --include='*.py' .   # use_reentrant=False there",
        "grep -rn 'find_unused_parameters' --include='*.py' .   # False, or static_graph=True instead",
    )
    return hit.finding(RULE, death, f"{death.who} got two gradients for {named} in one backward pass", advice)
