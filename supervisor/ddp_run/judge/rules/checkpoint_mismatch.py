"""Checkpoint does not match the model, the optimizer or the number of ranks.

## What happened
The checkpoint was read, but its names, shapes or parts differ from what the program expects.
## How to recognise it
`Error(s) in loading state_dict for Net:` with `Missing key(s)`, `Unexpected key(s)` or `size mismatch for`; `loaded
state dict contains a parameter group that doesn't match the size of optimizer's group`; `Missing key in checkpoint
state_dict` (torch.distributed.checkpoint); `KeyError: 'optimizer'` on a line that reads a part of a checkpoint;
DeepSpeed's message that it was saved with a different world size.
## What to do
A `module.` prefix comes from DistributedDataParallel, `_orig_mod.` from `torch.compile`: load into `model.module`, or
strip the prefix (the verdict's help has the line). Different sizes come from a different model configuration: use the
one the checkpoint was trained with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.traceback_text import line_of
from ddp_run.evidence.windows import AFTER
from ddp_run.judge.signs import Hit, Sign, ended_by, in_exception, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP801",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="checkpoint and model will still differ"),
    unlike="loading",
)
FRAMES = re.compile(r"/torch/nn/modules/module\.py load_state_dict")
SYMPTOMS = (like(r"(?m)^\s{0,20}size mismatch for [\w.]{1,400}: copying a param"),)
_LIBRARIES = frozenset(
    {"AssertionError", "CheckpointingException", "Exception", "NotFoundError", "RuntimeError", "ValueError"}
)
_UNLIKE = r"(?:mismatch\w{0,10}|(?:does not|doesn't|do not) match|not equal to)"
_LOADED = r"(?<!gradient )(?<!activation )(?i:checkpoints?|state[ _]?dict|(?:saved|pretrained) (?:weights|state|model))"
_NO_KEY = "{who} found no key '{key}' in a checkpoint{where}"
_PHRASES = meaning(
    *(
        Sign(
            words,
            rf"^[\w.]{{1,200}}(?:Error|Exception): (?:[^\n]{{0,300}}\b{_UNLIKE}\b[^\n]{{0,200}}\b{_LOADED}\b"
            rf"|[^\n]{{0,300}}\b{_LOADED}\b[^\n]{{0,200}}\b{_UNLIKE}\b)",
        )
        for words in ("ismatch", " not match", "n't match", "not equal to")
    ),
    like(r"CheckpointingException: Global shape mismatch"),  # Megatron
    *(
        Sign(words, rf"\b(?i:key|keys|tensor|parameter|weight)\b[^\n]{{0,200}} {words}", _LIBRARIES)
        for words in ("not found in checkpoint", "not found in state", "not in state dict", "not in checkpoint")
    ),
    Sign("from model not in state dict"),  # torch.distributed.checkpoint, through Megatron
    Sign("File does not contain tensor ", types=("SafetensorError",)),
    Sign("this looks incorrect.", r"Trying to set a tensor of shape [^\n]{1,300} this looks incorrect\."),
    *(
        Sign(words, types=_LIBRARIES)
        for words in (
            "ignore_mismatched_sizes=True",  # suggested by transformers and diffusers
            "Unexpected key(s) in state",
            "ensure that the architectures match",  # fairseq
            "Received saved weight with shape",  # Keras
            "objects could not be loaded. Example error message for object",
        )
    ),
    like(r"\w{1,40} count mismatch when loading weights"),  # Keras
    Sign("not compatible with the stored shape"),  # Orbax
    Sign("on-disk value metadata tree structures do not match"),
    cause="{who} loaded a checkpoint that does not match{where}: {line}",
    likely=True,
)
"""Messages of readers of other formats, in general exception classes."""
SIGNS = meaning(
    like(r"Error\(s\) in loading state_dict for (?P<model>[\w.\[\]]+):(?P<body>[\s\S]*)"),
    *meaning(
        like(
            r"checkpoint being loaded used a DP world size of (?P<saved>\d+) but the current world size is (?P<now>\d+)"
        ),
        like(r"world size at save time was (?P<saved>\d{1,9}), but at load time was (?P<now>\d{1,9})"),
        cause="{who} loaded a checkpoint saved with {saved} ranks, but runs with {now}{where}",
        advice=(
            "start {saved} data-parallel ranks in total, as many as it was saved with",
            "python -m deepspeed.checkpoint.ds_to_universal --help   # or convert it to load with any number",
        ),
    ),
    *meaning(
        like(r"Missing optimizer state for parameter '(?P<key>[^'\n]{1,400})' in checkpoint", cause=_NO_KEY),
        Sign("doesn't match the size of optimizer's group"),
        Sign("loaded state dict has a different number of parameter groups"),
        Sign("Trying to restore optimizer state but checkpoint contains only the model"),
        cause="{who} loaded an optimizer state that does not match the model's parameters{where}",
        advice=(
            "print([len(g['params']) for g in optimizer.param_groups])   # in the program",
            "print([len(g['params']) for g in state['param_groups']])   # in the checkpoint's optimizer state",
        ),
    ),
    *meaning(
        like(r"Missing key in checkpoint state_dict: (?P<key>\S+[^\s.])"),
        Sign(
            "There is no module or parameter named ",
            r"no module or parameter named (?P<quote>['\"])(?P<key>[^'\"\n]{1,200})",
        ),
        like(r"^RuntimeError: weight (?P<key>\w{1,80}(?:\.\w{1,80}){1,20}) does not exist", ("RuntimeError",)),
        cause=_NO_KEY,
    ),
    Sign("Size mismatch between saved torch.Size", r"Size mismatch between saved [^\n]{0,140}"),
    Sign("Trying to restore training state but checkpoint contains only the model"),
    Sign("The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler"),
    Sign("weights were not initialized from checkpoint"),  # vLLM, like the next
    Sign("Attempted to load weight (torch.Size("),
    Sign("You set `ignore_mismatched_sizes` to `False`"),
    *_PHRASES,
    Sign("KeyError", r"KeyError: '(?P<part>[\w.\-/]+)'$", ("KeyError",)),
    cause="{who} loaded a checkpoint that does not match{where}: {match}",
)
_GENERAL = (
    Sign(
        "heckpoint",
        r"(?<!gradient )(?<!activation )\b[Cc]heckpoint(?!ing)(?!Error)[^\n]{0,160}?\b(?:mismatch"
        r"|(?:does not|doesn't|do not|did not) match"
        r"|not match(?:ing)?|not equal to|different from|incompatible with|architectures match)\b"
        r"|\b(?:(?<!size )mismatch|shape \([^\n)]{0,60}\))"
        r" (?:between|in|for|with|when loading)[^\n]{0,100}? checkpoint\b"
        r"|\bcheckpoint (?:file )?count \d{1,6} (?:is different|does not match)",
    ),
    Sign(
        "shape",
        r"Cannot load \S{1,400} because [^\n]{1,300}? (?:expected shape|has shape) "
        r"|shape mismatch for loaded ",
    ),
    Sign(
        "state",
        r"onverting the state dict\. Found unexpected key"
        r"|state dict not found in dict_keys|state dict do not match exactly|Failed to apply weight conversion for",
    ),
    Sign("; please reset the optimizer (--reset-optimizer)"),
    Sign("was unable to load the checkpoint. Ensure you passed in a DeepSpeed compatible"),
)
"""Exception messages of other libraries: fairseq, Megatron, Transformers, Diffusers, Keras, Lightning."""
_RECOMPUTED = re.compile(r"torch\.utils\.checkpoint|[Rr]ecompute|[Tt]okenizer|use_reentrant|checkpoint\.\w")
_SIZES = re.compile(
    r"size mismatch for (?P<key>[\w.]+): copying a param with shape torch\.Size\((?P<saved>\[[\d, ]*\])\)"
    r" from checkpoint, the shape in current model is torch\.Size\((?P<built>\[[\d, ]*\])\)"
)
_PARTS = re.compile(
    r"(?:optimizers?|optim|model|net|weights|schedulers?|lr_schedulers?|scaler|ema|model_ema)(?:_states?)?(?:_dicts?)?"
    r"|state_dict|epoch|global_step|iteration|step|args|teacher|student|generator|discriminator|pytorch-lightning_versio"
    r"n"
)
_FROM_CHECKPOINT = re.compile(
    r"(?:^|[^\w.])(?:\w+\.)*(?:ck|(?=\w*(?:ckpt|check_?point|state_?dict|snapshot|resume|loaded|pretrained))\w++|states?"
    r")"
    r"(?:\[[^\]]{0,80}\]){0,8}\[(?P<quote>['\"])(?P<key>[^'\"]+)(?P=quote)\]",
    re.IGNORECASE,
)
_LOADING = re.compile(r"\btorch\.load\(|\.load_state_dict\(")
_WRAPPERS = frozenset({"module", "model", "_orig_mod", "base_model"})
_PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "model.")


@dataclass(frozen=True, slots=True)
class _Differences:
    """The differences that torch lists; `cut` if the kept text may have lost the end of the list."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    sizes: tuple[tuple[str, str, str], ...]
    cut: bool


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the messages of torch and related libraries, or a part that a checkpoint does not have."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = ended_by(death, SIGNS)
    if hit is None:
        return _said_in_general(death) or _tolerated(death)
    if hit["part"]:
        return _part(death, hit, hit["part"])
    return hit.finding(RULE, death) if hit["body"] is None else _state_dict(death, hit, hit["body"])


def _said_in_general(death: Death) -> Finding | None:
    hit = in_exception(death, _GENERAL)
    if hit is None or hit.exception is not death.exception or _RECOMPUTED.search(hit.match.string[:400]):
        return None
    said = hit.text.partition(": ")[2][:160] or hit.text[:160]
    cause = f"{death.who} loaded a checkpoint that does not fit{hit.where(death)}: {said}"
    return hit.finding(RULE, death, cause, confidence="likely")


def _tolerated(death: Death) -> Finding | None:
    """Match a warning about mismatched sizes if the program failed right after it."""
    raised = death.exception
    if raised is None or raised.type not in ("IndexError", "KeyError", "RuntimeError", "ValueError"):
        return None
    lines = death.stderr.lines
    header = next((i for i in range(len(lines) - 1, -1, -1) if "Traceback (most recent call last)" in lines[i]), None)
    if header is None:
        return None
    for index in range(header - 1, max(-1, header - AFTER - 1), -1):
        sizes = _SIZES.search(lines[index])
        if sizes is not None:
            cause = (
                f"{death.who} raised {raised.type} right after loading a checkpoint with mismatched sizes:"
                f" {sizes['key']} is {sizes['saved']} in the file, {sizes['built']} in the model"
            )
            quotes = tuple(q for q in (death.stderr.quote(index), line_of(death.stderr, raised)) if q is not None)
            advice = ("grep -rn 'strict=False' --include='*.py' .   # load with strict=True to see every difference",)
            return Finding(RULE, death.rank, cause, quotes, advice, "likely", exception=raised)
    return None


def _part(death: Death, hit: Hit, key: str) -> Finding | None:
    """Match a KeyError if the line that raised it takes that key out of a variable named like a checkpoint."""
    source = hit.statement
    taken = [found["key"] for found in _FROM_CHECKPOINT.finditer(source)]
    indexed = re.search(rf"\[['\"]{re.escape(key)}['\"]\]", source) is not None
    if key not in taken and not (indexed and _PARTS.fullmatch(key) and _LOADING.search(source)):
        return None
    cause = f"{death.who} found no key {key!r} in a checkpoint{hit.where(death)}"
    advice = ('python -c "import sys, torch; print(list(torch.load(sys.argv[1])))" FILE   # lists its keys',)
    return hit.finding(RULE, death, cause, advice, confidence="likely")


def _state_dict(death: Death, hit: Hit, body: str) -> Finding:
    differences = _differences(body)
    model = hit["model"]
    said = _said(differences)
    cause = f"{death.who} loaded a checkpoint that does not match {model}{hit.where(death)}" + (
        f": {said}" if said else ""
    )
    return hit.finding(RULE, death, cause, _repair(differences))


def _differences(body: str) -> _Differences:
    sizes = re.findall(
        r"size mismatch for (\S+): copying a param(?:eter)? (?:with shape|of) (torch\.Size\(\[[^\]]*\]\)|\S+)"
        r" from checkpoint, (?:the shape in current model is|where the shape is) "
        r"(torch\.Size\(\[[^\]]*\]\)|\S+?)\.?(?:\s|$)",
        body,
    )
    return _Differences(_keys(body, "Missing key"), _keys(body, "Unexpected key"), tuple(sizes), body.count("\n") >= 38)


def _keys(body: str, heading: str) -> tuple[str, ...]:
    listed = re.search(rf"{heading}\(s\) in state_dict: (?P<keys>[^\n]*)", body)
    return tuple(re.findall(r'"([^"]+)"', listed["keys"])) if listed else ()


def _said(found: _Differences) -> str:
    parts = []
    if found.missing:
        parts.append(f"{len(found.missing)} missing ({_first(found.missing)})")
    if found.unexpected:
        parts.append(f"{len(found.unexpected)} unexpected ({_first(found.unexpected)})")
    if found.sizes:
        name, saved, now = found.sizes[0]
        count = f"{len(found.sizes)}{' or more' if found.cut else ''}"
        shapes = f"{name} is {_shape(saved)} in the file, {_shape(now)} in the model"
        parts.append(f"{count} of different size ({shapes})")
    return ", ".join(parts)


def _first(keys: tuple[str, ...]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]}, …"


def _shape(text: str) -> str:
    return text.removeprefix("torch.Size(").removesuffix(")")


def _repair(found: _Differences) -> tuple[str, ...]:
    for prefix in _PREFIXES:
        if _prefixed(found.unexpected, found.missing, prefix):
            return (f"state = {{k.removeprefix('{prefix}'): v for k, v in state.items()}}   # the file has the prefix",)
        if _prefixed(found.missing, found.unexpected, prefix):
            inner = {"module.": "model.module", "_orig_mod.": "model._orig_mod"}.get(prefix)
            if inner is not None:
                return (f"{inner}.load_state_dict(state)   # the model's names begin with '{prefix}'",)
            return (f"state = {{'{prefix}' + k: v for k, v in state.items()}}   # the model has the prefix",)
    if found.sizes:
        parts = found.sizes[0][0].split(".")
        named = next((part for part in parts if part not in _WRAPPERS and not part.isdigit()), None)
        if named in (None, "weight", "bias"):
            return ()
        return (f"grep -rnw {named} --include='*.py' .   # which setting determines its size?",)
    if found.missing or found.unexpected:
        return ("print(model.load_state_dict(state, strict=False))   # lists the mismatches, loads the rest",)
    return ()


def _prefixed(with_it: tuple[str, ...], without: tuple[str, ...], prefix: str) -> bool:
    """Whether one side's names equal the other's with this prefix."""
    bare = {name.removeprefix(prefix) for name in with_it}
    return bool(with_it) and all(name.startswith(prefix) for name in with_it) and bool(bare & set(without))
