"""DDP: parameters received no gradient.

## What happened
Some parameters did not contribute to the loss of an iteration and got no gradient, so DDP could not finish its
reduction before the next forward pass.
## How to recognise it
`Expected to have finished reduction in the prior iteration before starting a new one.` With
`TORCH_DISTRIBUTED_DEBUG=INFO` it names the parameters; otherwise it prints their indices in `list(model.parameters())`,
and ddp-run takes the names from the model in the exception's frames. Only ranks that skipped part of the model print
this; the others lose their connection.
## What to do
Use all parameters in the loss, or freeze the unused ones (`requires_grad_(False)`). If a branch is skipped on purpose:
`DistributedDataParallel(model, find_unused_parameters=True)`; it costs an extra traversal of the graph. With
`static_graph=True`, the set of used parameters changed between iterations: drop `static_graph`.
`TORCH_DISTRIBUTED_DEBUG=INFO` prints the names (not `DETAIL`: with Gloo it crashes the ranks with SIGSEGV).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from shlex import quote

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, ended_by, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.record.events import Rank, UnusedParameters
from ddp_run.values.words import named_ranks

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP506",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the same parameters will get no gradient again"),
)
SIGNS = (
    Sign("Expected to have finished reduction in the prior iteration"),
    Sign("has parameters that were not used in producing the loss returned by training_step"),  # from Lightning
)
SYMPTOMS = (
    like(r"Parameter(?:s| indices) which did not receive grad for rank (?P<rank>\d{1,9})"),
    Sign("print out information about which particular parameters did not receive gradient on this rank"),
)
_NAMES = re.compile(r"Parameters which did not receive grad for rank (?P<rank>\d{1,9}): (?P<names>[^\n]+)")
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank (?P<rank>\d{1,9}): (?P<numbers>[\d \t]+)")
_STATIC = "training graph has changed in this iteration"
_SHOWN = 4


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the reducer's message; certain if it is in the exception that ended the rank."""
    hit = ended_by(death, SIGNS)
    if hit is None:
        return None
    said = hit.message
    told = _NAMES.search(said) or _INDICES.search(said)
    rank = Rank(int(told["rank"])) if told is not None else death.rank
    seen = None if death.exception is None else death.exception.unused
    who = death.who if rank is None else f"rank {rank}"
    culprit = rank if rank != death.rank else None
    if _STATIC in said:
        cause = f"{who} used a different set of parameters than before, but DDP has static_graph=True"
        advice = ("grep -rn 'static_graph' --include='*.py' .   # drop it, or use the same parameters each iteration",)
        return replace(hit.finding(RULE, death, cause, advice), culprit=culprit)
    cause = f"{who} {_unused(said, seen)}{_others(death, attempt)}"
    return replace(hit.finding(RULE, death, cause, _advice(said, seen)), culprit=culprit)


def _unused(said: str, seen: UnusedParameters | None) -> str:
    names, numbers = _NAMES.search(said), _INDICES.search(said)
    if seen is not None:
        return f"left {_count(seen.count)} without a gradient: {_listed(seen.names, seen.count)} of {seen.model}"
    if names is not None:
        each = [name.strip() for name in names["names"].split(",")]
        return f"left {_count(len(each))} without a gradient: {_listed(each, len(each))}"
    if numbers is not None:
        each = numbers["numbers"].split()
        return f"left {_count(len(each))} without a gradient (indices {_listed(each, len(each))})"
    return "left parameters without a gradient; DDP waits for them"


def _others(death: Death, attempt: Evidence) -> str:
    """Return the unused parameters of other ranks, if their exceptions show them."""
    left: dict[str, list[Rank]] = {}
    for each in attempt.deaths:
        unused = each.exception.unused if each.exception is not None else None
        if unused is not None and each.rank not in (death.rank, None):
            left.setdefault(_listed(unused.names, unused.count), []).append(each.rank)
    return "".join(f"; {named_ranks(ranks)}: {names}" for names, ranks in list(left.items())[:_SHOWN])


def _count(parameters: int) -> str:
    return f"{parameters} parameter{'' if parameters == 1 else 's'}"


def _listed(each: Sequence[str], count: int) -> str:
    return ", ".join(each[:_SHOWN]) + (f" and {count - _SHOWN} more" if count > _SHOWN else "")


def _advice(said: str, seen: UnusedParameters | None) -> tuple[str, ...]:
    already = "Since `find_unused_parameters=True` is enabled" in said
    names = () if seen or _NAMES.search(said) else ("export TORCH_DISTRIBUTED_DEBUG=INFO   # prints their names",)
    if seen is not None and seen.file is not None:
        names = (
            f"sed -n '{seen.line},+30p' {quote(seen.file)}   # {seen.model}.forward: which of them reach the loss?",
        )
    if already:
        return (
            *names,
            "grep -rn 'def forward' --include='*.py' .   # return only outputs that the loss uses",
        )
    return (
        *names,
        "grep -rn 'DistributedDataParallel(\\|DDP(' --include='*.py' .   # add find_unused_parameters=True there",
    )
