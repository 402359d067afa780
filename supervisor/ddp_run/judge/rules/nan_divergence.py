"""Loss or gradients not finite (NaN, Inf).

## What happened
A loss, a gradient or a probability became NaN or infinite, and the program, torch or a library stopped because of it.
## How to recognise it
`Loss is nan, stopping training`; `AssertionError: loss is NaN at step …`; `The total norm of order 2.0 for gradients
from … is non-finite, so it cannot be clipped`; `Function 'MulBackward0' returned nan values in its 0th output` (anomaly
detection); `Current loss scale already at minimum` (DeepSpeed); `probability tensor contains either inf, nan or element
< 0`; `FloatingPointError`. The other ranks stop in the same step or lose their connection a moment later.
## What to do
Find the first bad value, not the last: `torch.autograd.set_detect_anomaly(True)` for a few steps, and look at that
step's batch on the named rank. If only one rank is affected, it is usually its data. Otherwise: a lower learning rate,
warm-up, gradient clipping, `bfloat16` instead of `float16`, an epsilon in divisions, logarithms and roots.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import LEAVING
from ddp_run.judge.signs import Hit, Sign, anywhere, in_exception, in_last_words, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP603",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same steps usually lead to the same values"),
)
SYMPTOMS = (
    Sign("n", r"(?im)(?:^[^\n]{0,400}?\b(?:loss|grad(?:ient)?[_ ]?norm)\b\W{1,4}nan\b[^\n]{0,400}(?:\n|\Z)){3}"),
)
"""On line after line."""
_NOT_FINITE = r"(?:nans?|infs?|infinite|infinity|non-?finite|not finite|exploded)\b"
_OF_LOSS = rf"(?i)\bloss(?:es)?\b(?:_\w+)?[^\n]{{0,60}}?\b{_NOT_FINITE}|\b{_NOT_FINITE}[^\n]{{0,40}}?\bloss(?:es)?\b"
_OF_GRADIENT = rf"(?i)\bgrad(?:ient)?s?\b[^\n]{{0,60}}?\b{_NOT_FINITE}|\b{_NOT_FINITE}[^\n]{{0,40}}?\bgrad(?:ient)?s?\b"
_STOPPING = tuple(
    Sign(words, rf"(?i)\bloss\b[^\n]{{0,60}}?\b{_NOT_FINITE}[^\n]*?\b(?:stopping|aborting|exiting|terminat)")
    for words in ("stopping training", "topping the training", "borting training", "xiting training")
)
_VERBS = ("is", "was", "became", "has", "contains", "went", "got", "turned")
_VALUES = ("nan", "NaN", "NAN", "Nan", "inf", "Inf", "not finite", "non-finite", "`nan`")
SIGNS: tuple[Sign, ...] = (
    # a sampler's negative weights give it as well
    like(r"probability tensor contains either `?inf`?, `?nan`? or element < 0", likely=True),
    like(r"The total norm of order \S+ for gradients[^\n]{0,40} is non-finite"),
    like(
        r"Function '(?P<function>\w+)' returned nan values in its \d+th output",
        cause="{who} computed NaN in the backward of {function}{where}",
    ),
    Sign("Current loss scale already at minimum"),
    Sign("Minimum loss scale reached"),
    Sign(
        "to satisfy the constraint",
        r"to satisfy the constraint [\s\S]{0,200}?found invalid values:[\s\S]{0,1500}?\b(?:nan|inf)\b",
        cause="{who} passed NaN or infinite values to a torch.distributions object{where}",
    ),
    Sign("Detected nan and/or inf values"),
    Sign("The loss returned in `training_step` is"),
    Sign("found NaN in local"),
    Sign("found Inf in local"),
    *(
        Sign(words, _OF_LOSS)
        for words in (
            *(f"oss {verb} {value}" for verb in _VERBS for value in _VALUES),
            *(f"oss{sign}{value}" for sign in (" = ", "=", ": ", " ") for value in ("nan", "NaN")),
            *(f"{value} {where}loss" for value in _VALUES[:4] for where in ("", "in ", "detected in ")),
            *("on-finite loss", "onfinite loss", "nfinite loss", "oss exploded", "oss diverged to nan"),
        )
    ),
    *(
        Sign(words, _OF_GRADIENT)
        for words in (
            *(f"radient{verb} {value}" for verb in ("s are", "s contain", " is", " norm is") for value in _VALUES[:4]),
            *(f"{value} {where}grad" for value in _VALUES[:4] for where in ("", "in ")),
            *("on-finite grad", "grad norm is nan", "grad_norm is nan", "grad norm: nan"),
        )
    ),
    like(r"FloatingPointError(?!: underflow)", ("FloatingPointError",)),  # an underflow is finite
    *_STOPPING,
)
_FINITE = r"(?:nans?|infs?|infinit[ey]|infinity|non-?finite)"
_GENERAL = (
    Sign(
        "n",
        rf"(?i:\b(?:loss|gradients?|grad|wgrad|grad_norm|tensor|logits|activations?|weights|boxes|parameters?"
        rf"|outputs?|scores)\b)[^\n]{{0,60}}? (?i:(?:contains?|has|have|had|is|are|was|became|becomes|went|got)"
        rf"(?: an?| some elements =)? (?:{_FINITE})\b)"
        rf"|(?i:\b{_FINITE}(?: (?:or|and|/) |/){_FINITE}\b)[^\n]{{0,60}}?"
        r"(?i:\b(?:detected|encountered|found|persisted|in (?:wgrad|grad|loss)))"
        rf"|(?i:\b(?:detected|found|encountered)\b)[^\n]{{0,20}}? (?i:\b{_FINITE}\b)(?i: (?:or|and|values?|in)\b)"
        r"|\bNan in summary histogram\b"
        rf"|(?i:\b{_FINITE} (?:(?:or|and) {_FINITE} )?(?:persisted|loss|gradients?|grad(?:ient)? norm|tensor found"
        rf"|detected|values? (?:found|detected|encountered) in"
        r"(?! [^\n]{0,40}\b(?:columns?|features?|labels?|data|files?|rows?)\b))\b)",
        ("RuntimeError", "ValueError", "AssertionError", "Exception", "InvalidArgumentError"),
        likely=True,
    ),
)
"""Exception messages about values that only training has."""
_OF_DATA = re.compile(r"\b(?:[Ii]nput|[Aa]udio|[Dd]ata|[Ff]eatures?|[Ii]mages?|[Ll]abels?|[Cc]olumns?|X|y) contains? ")
_AT_ONCE = 160
"""Characters. Whatever a message mentions later is usually the reason for something else."""


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match an exception about it; if the program left through `sys.exit`, its last words that say so."""
    raised = death.exception
    if raised is not None and raised.type.rpartition(".")[2] != "SystemExit":
        hit = in_exception(death, SIGNS)
    else:
        left = death.code is None or death.code > 0
        hit = (in_exception(death, SIGNS) or _last_words(death)) if left else None
    if hit is None:
        hit = _said_in_general(death)
    if hit is None:
        return None
    others = [other for other in attempt.deaths if other.rank != death.rank and other.exception is not None]
    alone = raised is not None and bool(others) and all(_another(other, death) for other in others)
    first = hit.message.partition("\n")[0]
    said = first if hit.exception is None else first.partition(". ")[0] or hit.exception.type
    cause = hit.says(death) or f"{death.who} stopped on a non-finite value{hit.where(death)}: {said[:160]}"
    return hit.finding(RULE, death, cause, _advice(death, hit, alone))


def _said_in_general(death: Death) -> Hit | None:
    """Only in the exception that ended the rank: NaN in data is a different problem."""
    hit = in_exception(death, _GENERAL)
    if hit is None or hit.exception is not death.exception or _OF_DATA.search(hit.match.string):
        return None
    if hit.match.start() > _AT_ONCE:
        return None
    return hit


def _last_words(death: Death) -> Hit | None:
    """The message is usually printed to stdout."""
    return in_last_words(death, _STOPPING, LEAVING) or anywhere(death.stdout.ending(LEAVING), _STOPPING)


def _another(other: Death, death: Death) -> bool:
    return death.exception is not None and other.exception is not None and other.exception.type != death.exception.type


def _advice(death: Death, hit: Hit, alone: bool) -> tuple[str, ...]:
    advice = [
        "torch.autograd.set_detect_anomaly(True)   # for the steps before: names the operation with the first NaN"
    ]
    if alone:
        advice.append(f"torch.isfinite(batch).all()   # check the data of {death.who}: no other rank raised it")
    if "loss scale" in hit.match[0]:
        advice.append('"bf16": {"enabled": true}   # instead of fp16 in the DeepSpeed config: needs no loss scale')
    return tuple(advice)
