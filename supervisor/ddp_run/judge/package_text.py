"""Library exceptions about a missing package, or one with the wrong version. Pure.

Few libraries raise ImportError for this. The words are too common for whole logs (pip and warnings use them, too). So
they count only in the exception that ended the rank, and are never certain.
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death
from ddp_run.judge.signs import Hit, Sign, in_itself, like

_PACKAGE = (
    r"(?:py)?torch(?:vision|audio|ao|data|tune|_xla|[- ]xla)?|transformers|accelerate|peft|trl|datasets|diffusers"
    r"|tokenizers|huggingface[-_]hub|safetensors|deepspeed|vllm|sglang|triton|xformers|flash[-_ ]?att(?:n|ention)"
    r"|bitsandbytes|bnb|liger[-_]kernel|unsloth(?:_zoo)?|apex|te|transformer[- ]?engine|megatron[-_ ]core|mcore"
    r"|lightning|pytorch[-_]lightning|torchmetrics|tensordict|optimum|kernels|auto[-_]?gptq|gptqmodel|autoawq|nemo|fla"
    r"|numpy|pandas|scipy|pyarrow|fsspec|pydantic|protobuf|keras|tensorflow|jax(?:lib)?|flax|ray|python|mmcv|mmengine"
    r"|timm|einops|hydra(?:-core)?|omegaconf|setuptools|flashinfer(?:-python)?|modelopt|ninja|cmake"
)
_OTHER = r"(?:NVIDIA|CUDA|cuda|[Dd]river|the (?:NVIDIA|CUDA|cuda|latest|newest|correct|appropriate)|git-lfs)\b"
"""Not a Python package, or always installed."""
_NUMBER = r"v?\d{1,5}(?:\.\d{1,5}){0,3}"
_LATER = r"or (?:higher|later|newer|above|greater|lower|older|earlier|below)\b"

_MISSING = Sign(
    "nstall",
    r"(?<!river )(?<!CUDA )(?<!cuda )(?<!river is )(?<!CUDA is )\b(?<!is )not (?:currently )?installed\b"
    r"|(?<!river )(?<!CUDA )(?<!cuda )\b(?:is|are) not (?:currently )?installed\b"
    rf"|\b(?:requires?|must have|need to have|sure(?: that)?|without having) (?!{_OTHER})[^\n.;]{{1,60}}?"
    r" (?:(?:to be|is|are) )?installed\b"
    rf"|\b[Pp]lease (?:pip )?install (?!{_OTHER}|an? )"
    r"|\b[Pp]ip3? install (?!-U\b|--upgrade\b)"
    rf"|\byou (?:must|need to|have to|should) install (?!{_OTHER})"
    rf"|[.;!:] Install (?!{_OTHER})\S",
)
_COMPARED = Sign(
    "",
    rf"(?i)\b(?:{_PACKAGE})[`'\"]? ?(?:version |package |library )?(?:[<>=!~]=|[<>]) ?{_NUMBER}"
    r"|\b[a-z][\w\-]{1,60}(?:\[\w{1,40}\])?(?:[<>=~]=|[<>]) ?\d{1,5}\.\d{1,5}\.\d{1,5}"
    rf"|\b(?:{_PACKAGE}) {_NUMBER}(?: {_LATER}|\+)",
)
_WANTED = (
    Sign(
        "ersion",
        rf"(?<![\w\-])versions? (?:(?:is|must be|has to be|needs? to be|should be) )?(?:at least|[<>]=?"
        rf"|(?:greater|newer|higher|older|lower|less) than|above|below) ?[`'\"]?{_NUMBER}"
        rf"|\bversions? [`'\"]?{_NUMBER}[`'\"]? {_LATER}|\bversion {_NUMBER} ?[<>]=? ?{_NUMBER}"
        rf"|\b(?:minimum|minimal|required?|requires) [^\n]{{0,40}}?(?<![\w\-])version(?: of)?"
        rf" (?:[`'\"][\w\-]{{1,40}}[`'\"] )?(?:is )?[`'\"]?{_NUMBER}"
        r"|\bversion of [`'\"]?[\w\-]{1,40}[`'\"]? (?:is (?:not compatible|incompatible|not supported|too old)"
        r"|does not support)"
        r"|(?:[Nn]ot (?:yet )?(?:supported|available|compatible|implemented)|[Uu]nsupported|ncompatible"
        r"|(?:n't|not) support) [^\n.]{0,100}?\b(?:your|this|(?:the|your)? ?(?:installed|current)) "
        r"(?:[\w\-]{1,40} )?version\b(?! control)"
        r"|(?<!river )\b(?:version|installation) is (?:outdated|too old|out of date)\b"
        r"|\b(?:outdated|incompatible) version of\b"
        r"|\bplease (?:upgrade|update|downgrade)[^\n.]{0,40}? (?:version|installation)\b",
    ),
    Sign(
        "grade",
        rf"(?i)\b(?:upgrade|downgrade)(?: (?:or downgrade|to|your|the|of)){{0,3}} [`'\"]?(?:{_PACKAGE})\b"
        rf"|\b(?:{_PACKAGE})\b[^\n.]{{0,30}}?[.,] ?please upgrade\b",
    ),
    Sign("update", rf"(?i)\bplease update(?: (?:to|your|the)){{0,3}} [`'\"]?(?:{_PACKAGE})\b"),
    like(rf"\b(?:has|have) been (?:removed|dropped|updated)\b[^\n]{{0,40}}? (?:in|since) [\w ]{{0,30}}?{_NUMBER}"),
)
_HARDWARE = re.compile(r"\b(?:Ampere|Hopper|Blackwell|[Cc]ompute [Cc]apability)\b")
"""A message that also asks for another GPU is not only about versions."""
_IMPORT = frozenset({"ImportError", "ModuleNotFoundError"})
_OF_A_CHILD = frozenset({"CalledProcessError", "RuntimeEnvSetupError", "BuildError"})
"""These repeat a command, which may contain package names."""


def missing_package(death: Death) -> Hit | None:
    """Return an exception that says that a package is not installed; never certain."""
    return _told(death, (_MISSING,))


def wrong_version(death: Death) -> Hit | None:
    """Return an exception that says which version of a package it needs; never certain.

    ImportErrors often name the required version of a package that is not installed at all.
    """
    hit = _told(death, (*_WANTED, _COMPARED))
    if hit is None or hit.exception is None or _HARDWARE.search(hit.exception.message):
        return None
    named = hit.exception.type.rpartition(".")[2] in _IMPORT
    return _told(death, _WANTED) if named and hit.sign is _COMPARED else hit


def _told(death: Death, signs: tuple[Sign, ...]) -> Hit | None:
    hit = in_itself(death, signs)
    repeated = hit is not None and hit.exception is not None and hit.exception.type.rpartition(".")[2] in _OF_A_CHILD
    return None if repeated else hit
