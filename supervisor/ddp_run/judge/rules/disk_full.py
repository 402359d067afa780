"""Disk or quota full.

## What happened
A write failed because the disk, or this user's quota, is full: a checkpoint, a log, a cache.
## How to recognise it
`[Errno 28] No space left on device`, `[Errno 122] Disk quota exceeded`, `database or disk is full` (SQLite).
`torch.save` on a full disk often hides the reason: `PytorchStreamWriter failed writing file data/0: file write failed`,
then `unexpected pos 640 vs 570` from `inline_container.cc`, with or without an abort; NumPy says `8388608 requested and
2097152 written`. Kubernetes evicts a pod: `The node was low on resource: ephemeral-storage`. A full `/dev/shm` is a
different cause (`shm-exhausted`).
## What to do
`df -h PATH` and `df -i PATH` (a disk can also run out of inodes); for quotas `quota -s` or `lfs quota -h -u $USER
PATH`. Delete old checkpoints, and the one being written: it is truncated. Caches pile up in `~/.cache/huggingface`,
`~/.cache/torch`, `/tmp` and `wandb/`.
"""

from __future__ import annotations

import re
import shlex

from ddp_run.evidence.exception_chain import chain
from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.judge.signs import QUOTED_PATH, Hit, Sign, ended_by, in_exception, in_last_words, like, meaning, said_last
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP905",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the disk will still be full"),
    host="repeated",
)
_FULL = (
    like(rf"No space left on device(?:: {QUOTED_PATH}(?: -> '(?P<to>[^'\n]+)')?|, file path: (?P<file>\S+))?"),
    like(rf"(?P<quota>Disk quota exceeded)(?:: {QUOTED_PATH})?"),
    Sign("database or disk is full"),
    Sign("Not enough disk space. Needed: "),  # datasets
    Sign("OutOfDiskError: ", types=("OutOfDiskError",)),  # Ray
)
_COMPILERS = (like(r"fatal error: error writing to (?P<path>[^:\n]{1,1000}): No space left on device"),)  # gcc
_TORN = meaning(
    like(
        r"No usable temporary directory found in \[",
        cause="{who} can write to no folder for temporary files{where}: the disk is most likely full",
    ),
    like(r"PytorchStreamWriter failed writing (?:file|central directory)[^\n]{0,80}"),
    like(r"(?<!\d)\d{1,20} requested and \d{1,20} written"),  # numpy's tofile and save
    Sign("Could not write all requested bytes"),
    Sign("basic_ios::clear: iostream error"),
    like(r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+"),
    cause="{who} wrote only part of a file{where}: the disk is most likely full",
    likely=True,
)
_OF_TOOLS = (
    Sign("no space left on device"),
    Sign("nsufficient disk space"),
    like(r"Not enough space left in (?P<path>\S{1,1000})"),
    Sign("isk full while running job"),
    Sign("Job has exceeded allocated disk"),
    Sign("The node was low on resource: ephemeral-storage"),
    Sign("phemeral local storage usage exceeds"),
    like(r"Usage of EmptyDir volume \"(?!\w{0,40}shm)[^\"\n]{1,200}\" exceeds the limit"),
    Sign("The node had condition: [DiskPressure]"),
)
SIGNS: tuple[Sign, ...] = (*_FULL, *_COMPILERS, *_TORN, *_OF_TOOLS)
_SHARED_MEMORY = re.compile(r"/dev/shm|</torch_|</?psm_|shared memory|SemLock\(|multiprocessing/synchronize\.py")  # noqa: S108


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a failed write; a short write most likely has the same reason."""
    if death.killed_by_another:
        return None
    hit = ended_by(death, _FULL) or in_exception(death, _OF_TOOLS) or said_last(death, _OF_TOOLS)
    hit = hit or in_last_words(death, _COMPILERS)  # below torch.compile's exception
    if hit is None:
        hit = ended_by(death, _TORN)
        return None if hit is None or _has_another_reason(death) else hit.finding(RULE, death, None, _advice(hit))
    if _SHARED_MEMORY.search(f"{hit.message}\n{hit.traceback}"):
        return None
    why = "disk quota exceeded" if hit["quota"] else "no space left on the disk"
    cause = f"{death.who} could not write {_path(hit) or 'a file'}{hit.where(death)}: {why}"
    return hit.finding(RULE, death, cause, _advice(hit))


def match_launch(attempt: Evidence) -> Finding | None:
    """Match an agent that ended without a message while the disk with its log was full."""
    agent = attempt.agent.own_failure
    name = "/" + (attempt.folder or "").rpartition("/")[2]  # the folder may have been moved since
    full = next((each for each in attempt.space if each.path.endswith(name) and each.nearly_full), None)
    if agent is None or attempt.logs_only or any(agent.stderr.lines) or full is None:
        return None
    cause = f"{agent.who} exited with code {agent.code} and could not say why: the disk of its log is full"
    folder = shlex.quote(full.path)
    advice = (f"df -h {folder}; df -i {folder}   # free space and inodes",)
    return Finding(RULE, cause, (Quote("statvfs", None, full.words),), advice, "likely")


def _has_another_reason(death: Death) -> bool:
    """Whether an error number accompanies it, which then explains the short write."""
    links = chain(death.exception) if death.exception is not None else ()
    return any(link.type == "OSError" and link.message.startswith("[Errno ") for link in links)


def _path(hit: Hit) -> str | None:
    return hit["to"] or hit["path"] or hit["file"]


def _advice(hit: Hit) -> tuple[str, ...]:
    path = _path(hit)
    folder = shlex.quote((path.rpartition("/")[0] or "/") if path and "/" in path else ".")
    look = "" if path else " /tmp ~ ~/.cache"
    first = f"df -h {folder}{look}; df -i {folder}{look}   # free space and inodes"
    if hit["quota"]:
        return (f"quota -s; lfs quota -h -u $USER {folder}   # quota used", first)
    return (first, f"du -xsh {folder}/* ~/.cache/* 2>/dev/null | sort -h | tail   # what takes the space")
