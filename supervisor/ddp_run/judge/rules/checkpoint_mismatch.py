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

from ddp_run.evidence.model import Death, Evidence
from ddp_run.evidence.windows import AFTER
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import Hit, Sign, ended_by, every, in_itself, like, meaning, quotes, survived
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP801",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="checkpoint and model will still differ"),
    unlike="loading",
)
FRAMES = re.compile(r"/torch/nn/modules/module\.py load_state_dict")
SYMPTOMS = (like(r"\bsize mismatch for [\w.]{1,400}:\s{1,9}copying a param"),)
_NO_KEY = "{who} found no key '{key}' in a checkpoint{where}"
SIGNS = meaning(
    like(r"Error\(s\) in loading state_dict for(?: (?P<model>[\w.\[\]]+):(?P<body>[\s\S]*)|\s*$)"),
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
        *("loaded state dict contains a parameter group", "loaded state dict has a different number of"),
        Sign("Trying to restore optimizer state but checkpoint contains only the model"),
        cause="{who} loaded an optimizer state that does not match the model's parameters{where}",
        advice=(
            "print([len(g['params']) for g in optimizer.param_groups])   # in the program",
            "print([len(g['params']) for g in state['param_groups']])   # in the checkpoint's optimizer state",
        ),
    ),
    *meaning(
        like(r"Missing optimizer state for parameter '(?P<key>[^'\n]{1,400})' in checkpoint"),
        like(r"Missing key in checkpoint state_dict: (?P<key>\S+[^\s.])"),
        like(r"^RuntimeError: weight (?P<key>\w{1,80}(?:\.\w{1,80}){1,20}) does not exist", ("RuntimeError",)),
        cause=_NO_KEY,
    ),
    like(r"Size mismatch between saved (?=torch\.Size)[^\n]{0,140}"),
    Sign("Trying to restore training state but checkpoint contains only the model"),
    Sign("weights were not initialized from checkpoint"),  # vLLM, like the next
    Sign("Attempted to load weight (torch.Size("),
    Sign("The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler"),
    Sign("You set `ignore_mismatched_sizes` to `False`"),
    *meaning(  # Megatron, Transformers, Keras, Orbax
        Sign("from model not in state dict"),
        Sign("not compatible with the stored shape"),
        Sign("on-disk value metadata tree structures do not match"),
        like(r"Trying to set a tensor of shape [^\n]{1,300} this looks incorrect\."),
        like(r"\w{1,40} count mismatch when loading weights"),
        cause="{who} loaded a checkpoint that does not match{where}: {line}",
        likely=True,
    ),
    Sign("KeyError", r"KeyError: '(?P<part>[\w.\-/]+)'$", ("KeyError",)),
    cause="{who} loaded a checkpoint that does not match{where}: {match}",
)
_UNLIKE = (
    r"\b(?:mismatch\w{0,10}|(?:does not|doesn't|do not|did not) match|not match(?:ing)?|not equal to|different from"
    r"|incompatible with|architectures match)\b"
)
_LOADED = (
    r"(?<!gradient )(?<!activation )"
    r"\b(?i:checkpoints?(?!ing)(?!Error)|state[ _]?dict|(?:saved|pretrained) (?:weights|state|model))\b"
)
_IN_WORDS = meaning(
    like(rf"{_LOADED}[^\n]{{0,200}}?{_UNLIKE}|{_UNLIKE}[^\n]{{0,200}}?{_LOADED}"),
    like(r"\b(?i:key|keys|tensor|parameter|weight)\b[^\n]{0,200} not (?:found )?in (?:checkpoint|state)"),
    like(r"File does not contain tensor |Unexpected key\(s\) in state|CheckpointingException: Global shape mismatch"),
    like(r"ignore_mismatched_sizes|shape mismatch for loaded "),
    like(r"Cannot load \S{1,400} because [^\n]{1,300}? (?:expected shape|has shape) "),
    like(r"unable to load the checkpoint\. Ensure you passed in a DeepSpeed compatible"),
    like(r"; please reset the optimizer \(--reset-optimizer\)|ensure that the architectures match"),
    like(r"Received saved weight with shape|objects could not be loaded\. Example error message for object"),
    like(r"onverting the state dict\. Found unexpected key|Failed to apply weight conversion for "),
    like(r"state dict not found in dict_keys|state dict do not match exactly"),
    cause="{who} loaded a checkpoint that does not match{where}: {line}",
    likely=True,
)
"""Readers of other formats, in exceptions of any class: fairseq, Megatron, Transformers, Diffusers, Lightning."""
_RECOMPUTED = re.compile(r"torch\.utils\.checkpoint|[Rr]ecompute|[Tt]okenizer|use_reentrant|checkpoint\.\w")
_SIZES = like(
    r"size mismatch for (?P<key>\S+): copying a param(?:eter)? with shape (?:torch\.Size\()?(?P<saved>\[[\d, ]*\])\)?"
    r" from checkpoint, the shape in current model is (?:torch\.Size\()?(?P<built>\[[\d, ]*\])"
)
_PARTS = re.compile(
    r"(?:optimizers?|optim|model|net|weights|schedulers?|lr_schedulers?|scaler|ema|model_ema)(?:_states?)?(?:_dicts?)?"
    r"|state_dict|epoch|global_step|iteration|step|args|teacher|student|generator|discriminator"
    r"|pytorch-lightning_version"
)
_FROM_CHECKPOINT = re.compile(
    r"(?:^|[^\w.])(?:\w+\.)*"
    r"(?:ck|(?=\w*(?:ckpt|check_?point|state_?dict|snapshot|resume|loaded|pretrained))\w++|states?)"
    r"(?:\[[^\]]{0,80}\]){0,8}\[(?P<quote>['\"])(?P<key>[^'\"]+)(?P=quote)\]",
    re.IGNORECASE,
)
_LOADING = re.compile(r"\btorch\.load\(|\.load_state_dict\(")
_PREFIXES = {
    "module.": "model.module.load_state_dict(state)",
    "_orig_mod.": "model._orig_mod.load_state_dict(state)",
    "_fsdp_wrapped_module.": "state = {'_fsdp_wrapped_module.' + k: v for k, v in state.items()}",
    "model.": "state = {'model.' + k: v for k, v in state.items()}",
}
"""What wrappers put before a model's names, and what to do if only the model has it."""
_WRAPPERS = frozenset({"module", "model", "_orig_mod", "base_model"})


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the messages of torch and related libraries, or a part that a checkpoint does not have."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = ended_by(death, SIGNS)
    if hit is None:
        return _said_in_words(death) or _tolerated(death)
    if hit["part"]:
        return _part(death, hit, hit["part"])
    return hit.finding(RULE, death) if hit["body"] is None else _state_dict(death, hit, hit["body"])


def _said_in_words(death: Death) -> Finding | None:
    hit = in_itself(death, _IN_WORDS)
    if hit is None or _RECOMPUTED.search(hit.match.string[:400]):
        return None
    return hit.finding(RULE, death)


def _tolerated(death: Death) -> Finding | None:
    """Match a warning about mismatched sizes if the program failed right after it."""
    raised = death.exception
    if raised is None or raised.type not in ("IndexError", "KeyError", "RuntimeError", "ValueError"):
        return None
    start = next(iter(every(death.stderr, Sign("Traceback (most recent call last)"))[-1:]), None)
    warned = [hit for hit in every(death.stderr, _SIZES) if start and 0 < start.index - hit.index <= AFTER]
    if not warned or survived(death.stderr, warned[-1]):
        return None
    cause = f"{death.who} raised {raised.type} right after loading a checkpoint with mismatched sizes:"
    shown = (*quotes(warned[-1]), *line_of(death.stderr, raised))
    advice = ("grep -rn 'strict=False' --include='*.py' .   # load with strict=True to see every difference",)
    said = f"{cause} {_sizes(warned[-1].match)}"
    return Finding(RULE, said, shown, advice, "likely")


def _part(death: Death, hit: Hit, key: str) -> Finding | None:
    """Match a KeyError if the line that raised it takes that key out of a variable named like a checkpoint."""
    source = hit.statement
    taken = [found["key"] for found in _FROM_CHECKPOINT.finditer(source)]
    indexed = re.search(rf"\[['\"]{re.escape(key)}['\"]\]", source) is not None
    if key not in taken and not (indexed and _PARTS.fullmatch(key) and _LOADING.search(source)):
        return None
    advice = ('python -c "import sys, torch; print(list(torch.load(sys.argv[1])))" FILE   # lists its keys',)
    return hit.finding(RULE, death, hit.fill(_NO_KEY, death, key=key), advice, confidence="likely")


def _state_dict(death: Death, hit: Hit, body: str) -> Finding:
    missing, unexpected = _keys(body, "Missing"), _keys(body, "Unexpected")
    sizes = list(_SIZES.compiled.finditer(body))
    parts = [
        f"{len(keys)} {what} ({keys[0]}{', …' if len(keys) > 1 else ''})"
        for what, keys in (("missing", missing), ("unexpected", unexpected))
        if keys
    ]
    parts += [f"{len(sizes)} of different size ({_sizes(sizes[0])})"] if sizes else []
    said = f": {', '.join(parts)}" if parts else ""
    cause = f"{death.who} loaded a checkpoint that does not match {hit['model']}{hit.where(death)}{said}"
    return hit.finding(RULE, death, cause, _repair(missing, unexpected, sizes[0]["key"] if sizes else None))


def _keys(body: str, which: str) -> list[str]:
    listed = re.search(rf"{which} key\(s\) in state_dict: (?P<keys>[^\n]*)", body)
    return re.findall(r'"([^"]+)"', listed["keys"]) if listed else []


def _sizes(found: re.Match[str]) -> str:
    return f"{found['key']} is {found['saved']} in the file, {found['built']} in the model"


def _repair(missing: list[str], unexpected: list[str], resized: str | None) -> tuple[str, ...]:
    for prefix, load in _PREFIXES.items():
        if _prefixed(unexpected, missing, prefix):
            return (f"state = {{k.removeprefix('{prefix}'): v for k, v in state.items()}}   # the file has the prefix",)
        if _prefixed(missing, unexpected, prefix):
            return (f"{load}   # the model's names begin with '{prefix}'",)
    if resized is not None:
        layer = next((part for part in resized.split(".") if part not in _WRAPPERS and not part.isdigit()), None)
        known = layer not in (None, "weight", "bias")
        return (f"grep -rnw {layer} --include='*.py' .   # which setting determines its size?",) if known else ()
    return ("print(model.load_state_dict(state, strict=False))   # lists the mismatches, loads the rest",)


def _prefixed(with_it: list[str], without: list[str], prefix: str) -> bool:
    """Whether one side's names equal the other's with this prefix."""
    bare = {name.removeprefix(prefix) for name in with_it}
    return bool(with_it) and all(name.startswith(prefix) for name in with_it) and bool(bare & set(without))
