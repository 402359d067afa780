"""What a traceback shows whose last line is missing: the `raise` that it ends with, else whose frames they are. Pure.

A pasted log is often cut there. Python prints each frame's line of source below it, and where that is a `raise` it
names the class and often the words; else the frames of some libraries say all the same what was being done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_run.evidence.model import LogText, Quote
from ddp_run.evidence.traceback_text import is_library
from ddp_run.record.events import ExceptionInfo

_FRAME = re.compile(r'  File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<function>[^\s,]+))?')
_RAISE = re.compile(
    r"\braise (?:[\w.]{1,80}\()?(?P<type>[A-Za-z_][\w.]{0,80}(?:Error|Exception|Exit|Interrupt|Timeout))\b"
)
_LITERAL = re.compile(r"[\"'](?P<said>[^\"'\n]{4,300})[\"']?")
_LAUNCHERS = re.compile(
    r"torch/distributed/(?:run|launch)\.py|torch/distributed/(?:launcher|elastic)/|/bin/(?:torchrun|accelerate|deepspeed)"
    r"|accelerate/commands/|deepspeed/launcher/|<frozen runpy>|/runpy\.py|torch/multiprocessing/spawn\.py"
)
_FEWEST = 2
"""Frames that make a traceback; one alone may be a warning's."""
_NEAR = 6
"""Frames, from the innermost one outwards, that say what was being done."""
_WHOSE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"/(?:triton/(?:compiler|runtime|backends)|torch/_inductor)/"), "compile-failure"),
    (re.compile(r"/torch/utils/cpp_extension\.py|/deepspeed/ops/op_builder/"), "compile-failure"),
    (re.compile(r"/wandb/(?:sdk/)?(?:lib/apikey|wandb_login|util)\.py|/huggingface_hub/_login\.py"), "auth"),
    (re.compile(r"/wandb/"), "hub-network"),
    (re.compile(r"/huggingface_hub/utils/_(?:http|errors)\.py \S*raise_for_status"), "auth"),
    (re.compile(r"/(?:huggingface_hub|urllib3|requests|httpx|httpcore|aiohttp|botocore)/"), "hub-network"),
    (re.compile(r"/torch/cuda/__init__\.py _lazy_init"), "cuda-unavailable"),
    (re.compile(r"/torch/serialization\.py (?:load|_load|_legacy_load|_open_zipfile)"), "checkpoint-corrupt"),
    (re.compile(r"/torch/nn/modules/module\.py load_state_dict"), "checkpoint-mismatch"),
    (re.compile(r"/torch/utils/data/dataloader\.py _try_get_data"), "dataloader-worker-died"),
    (re.compile(r"/torch/distributed/rendezvous\.py|/distributed_c10d\.py _store_based_barrier"), "rendezvous-timeout"),
    (re.compile(r"<frozen importlib\._bootstrap>|/importlib/__init__\.py import_module"), "import-error"),
    (re.compile(r"/argparse\.py (?:error|exit)"), "bad-arguments"),
)
"""Whose frames say what was being done (file and function), and of what cause that most often dies."""


@dataclass(frozen=True, slots=True)
class TornFrames:
    """`exception`: as the last `raise` names it, or of type "" with only its place; `cause`: what the frames say."""

    exception: ExceptionInfo
    cause: str | None
    quote: Quote


def read(log: LogText) -> TornFrames | None:
    """The last traceback of the text that no exception ends; null where there are no frames."""
    found = [(index, hit) for index, line in enumerate(log.lines) if (hit := _FRAME.search(line)) is not None]
    frames = [(index, hit) for index, hit in found if not _LAUNCHERS.search(hit["file"])]
    if not frames or frames[-1][0] != found[-1][0]:
        return None
    last = frames[-1][0]
    place = next((hit for _index, hit in reversed(frames) if not is_library(hit["file"])), frames[-1][1])
    named = _raised(log.lines[last + 1 : last + 4])
    if named is None and len(frames) < _FEWEST:
        return None
    whose = _whose([hit for _index, hit in reversed(frames)])
    type_, message = named if named is not None else ("", "")
    shown = "\n".join(log.lines[frames[0][0] : last + 4])
    info = ExceptionInfo(type_, message, place["file"], int(place["line"]), place["function"], shown)
    return TornFrames(info, whose, log.quote(last))


def _raised(lines: Sequence[str]) -> tuple[str, str] | None:
    """The class that a line of source raises, and the words that it gives it as far as they stand there."""
    for index, line in enumerate(lines):
        hit = _RAISE.search(line)
        if hit is not None:
            said = _LITERAL.search(" ".join([line[hit.end() :], *lines[index + 1 :]]))
            return hit["type"], said["said"] if said else ""
    return None


def _whose(innermost: Sequence[re.Match[str]]) -> str | None:
    where = [f"{hit['file']} {hit['function'] or ''}" for hit in innermost[:_NEAR]]
    return next((cause for pattern, cause in _WHOSE if any(pattern.search(each) for each in where)), None)
