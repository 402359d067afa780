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
from ddp_run.judge.signs import Hit, Sign, anywhere, in_exception, in_itself, in_last_words, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP603",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same steps usually lead to the same values"),
)
SYMPTOMS = (
    Sign(
        "n", r"(?im)(?:^[^\n]{0,400}?\b(?:loss|grad(?:ient)?[_ ]?norm)\b\W{1,4}nan\b[^\n]{0,400}(?:\n|\Z)){3}"
    ),  # on line after line
    like(r"Attempted loss scale: 0\.0,"),  # DeepSpeed's: it can't go lower
    like(r"overflow detected, setting loss scale to: 0\.\d"),  # fairseq's
)
_NOT_FINITE = r"`?(?:nans?|infs?|infinite|infinity|infinities|non-?finite|not finite)\b`?"
_OF_TRAINING = r"(?:\w{1,40}_)?(?:loss(?:es)?|grad(?:ient)?s?(?:[ _]norm)?)"
_BECOMES = r"(?:is|are|was|has|have|had|contains?|becomes?|became|went|got|turned)"
_STOPPING = tuple(
    Sign(
        words,
        rf"(?i)(?:\bloss\b[^\n]{{0,60}}?\b{_NOT_FINITE}|\b{_NOT_FINITE} loss\b)[^\n]{{0,200}}?\b{words}\b(?! ?\()",
    )
    for words in ("stopping", "aborting", "exiting", "ending training")
)
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
    like(
        r"to satisfy the constraint [\s\S]{0,200}?found invalid values:[\s\S]{0,1500}?\b(?:nan|inf)\b",
        cause="{who} passed NaN or infinite values to a torch.distributions object{where}",
    ),
    Sign("Detected nan and/or inf values"),
    Sign("The loss returned in `training_step` is"),
    like(r"found (?:NaN|Inf) in local"),
    like(r"FloatingPointError(?!: underflow)", ("FloatingPointError",)),  # an underflow is finite
    *_STOPPING,
)
_IN_WORDS = (
    Sign(
        "",
        rf"(?i)\b{_OF_TRAINING}(?: {_BECOMES})?(?: ?[=:])? ?{_NOT_FINITE}"
        rf"|\b{_NOT_FINITE}(?: (?:detected )?in)? {_OF_TRAINING}\b|\bloss exploded\b",
    ),
)
_GENERAL = (
    Sign(
        "",
        rf"(?i)\b(?:{_OF_TRAINING}|tensor|logits|activations?|weights|boxes|parameters?|outputs?|scores)\b[^\n]{{0,60}}?"
        rf" {_BECOMES}(?: an?| some elements =)? {_NOT_FINITE}"
        rf"|\b{_NOT_FINITE} ?(?:or|and|/) ?{_NOT_FINITE}[^\n]{{0,60}}?\b(?:detected|encountered|found|persisted)"
        rf"|\b(?:detected|found|encountered)\b[^\n]{{0,20}}? {_NOT_FINITE} (?:or|and|values?|in)\b"
        rf"|\b{_NOT_FINITE} (?:persisted|detected|tensor found|values? (?:found|detected|encountered) in"
        r"(?! [^\n]{0,40}\b(?:columns?|features?|labels?|data|files?|rows?)\b))"
        r"|\bnan in summary histogram\b",
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
    hit = in_exception(death, (*SIGNS, *_IN_WORDS)) or _said_in_general(death)
    if raised is None or raised.type.rpartition(".")[2] == "SystemExit":
        left = death.code is None or death.code > 0
        hit = (hit or _last_words(death)) if left else None
    if hit is None:
        return None
    others = [each.exception for each in attempt.deaths if each.rank != death.rank and each.exception is not None]
    alone = raised is not None and bool(others) and all(each.type != raised.type for each in others)
    first = hit.message.partition("\n")[0]
    said = first if hit.exception is None else first.partition(". ")[0] or hit.exception.type
    cause = hit.says(death) or f"{death.who} stopped on a non-finite value{hit.where(death)}: {said[:160]}"
    return hit.finding(RULE, death, cause, _advice(death, hit, alone))


def _said_in_general(death: Death) -> Hit | None:
    """Only in the exception that ended the rank: NaN in data is a different problem."""
    hit = in_itself(death, _GENERAL)
    if hit is None or _OF_DATA.search(hit.match.string) or hit.match.start() > _AT_ONCE:
        return None
    return hit


def _last_words(death: Death) -> Hit | None:
    """The message is usually printed to stdout."""
    return in_last_words(death, _STOPPING, LEAVING) or anywhere(death.stdout.ending(LEAVING), _STOPPING)


def _advice(death: Death, hit: Hit, alone: bool) -> tuple[str, ...]:
    advice = [
        "torch.autograd.set_detect_anomaly(True)   # for the steps before: names the operation with the first NaN"
    ]
    if alone:
        advice.append(f"torch.isfinite(batch).all()   # check the data of {death.who}: no other rank raised it")
    if "loss scale" in hit.match[0]:
        advice.append('"bf16": {"enabled": true}   # instead of fp16 in the DeepSpeed config: needs no loss scale')
    return tuple(advice)
