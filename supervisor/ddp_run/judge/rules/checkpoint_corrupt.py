"""Checkpoint or data file corrupt.

## What happened
The file exists, but its contents are wrong: truncated by a job that was killed while writing, written by several ranks
at once, an HTML page or a git-lfs pointer instead of the weights, or a different format.
## How to recognise it
`PytorchStreamReader failed reading zip archive: failed finding central directory`, `[Errno 22] Invalid argument` from
`PyTorchFileReader` (torch 2.13), `invalid header or archive is corrupted`; `invalid load key, 'v'.` (a git-lfs pointer
begins with `version https://git-lfs…`), `'<'` (HTML), `'\\x00'` (blocks never written); `pickle data was truncated`,
`Ran out of input` (empty file), `unexpected EOF, expected … more bytes`; safetensors' `Error while deserializing
header`; `Invalid magic number; corrupt file?`, `GGUF magic invalid`. For data files: HDF5's `truncated file`, `Parquet
magic bytes not found`, `Compressed file ended before the end-of-stream marker`, a checksum mismatch. Keys or sizes that
do not match the model are `checkpoint-mismatch`; a class that `weights_only=True` rejects is `version-mismatch`.
## What to do
Go back to the previous checkpoint, or download the file again (`git lfs pull`). To prevent it: save on rank 0 only, to
a temporary name, and rename with `os.replace` once everything is written.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Hit, Sign, ended_by, in_last_words, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP802",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the file will still be corrupt"),
)
FRAMES = re.compile(r"/torch/serialization\.py (?:load|_load|_legacy_load|_open_zipfile)")
_POINTERS = (
    "find . -size -2k -exec grep -l '^version https://git-lfs' {} +   # pointers instead of files",
    "git lfs install && git lfs pull",
)
_UNPICKLER = like(r"Unsupported operand (?P<operand>\d{1,9})\b")
SIGNS = meaning(
    like(r"PytorchStreamReader failed [^\n]{0,140}"),
    like(r"invalid load key, '(?P<key>[^']*)'"),
    Sign("pickle data was truncated"),
    Sign("unpickling stack underflow"),
    like(
        r"EOFError: (?:[^\n]{1,200}: )?Ran out of input",
        ("EOFError",),
        cause="{who} loaded a pickle that is empty or truncated{where}",
    ),
    like(
        r"unexpected EOF(?:, expected (?P<more>\d+) more bytes)?\. The file might be corrupted",
        cause="{who} loaded a checkpoint that is truncated{ by at least {more} bytes}{where}",
    ),
    like(r"storage has wrong (?:byte )?size: expected"),
    _UNPICKLER,
    like(
        r"(?P<refused>\[Errno 22\] Invalid argument)$",
        ("OSError",),
        cause="{who} could not read a checkpoint{where}: the file is most likely truncated",
        likely=True,
    ),
    Sign(
        "without having git-lfs installed",
        cause="{who} loaded a git-lfs pointer instead of the weights{where}",
        advice=_POINTERS,
    ),
    like(
        # safetensors up to 0.5, and later
        r"Error while deserializing header: (?=[^\n]{0,100}(?:HeaderTooLarge|header too large))[^\n]{0,120}",
        advice=_POINTERS,
    ),
    like(r"Error while deserializing(?: header)?: [^\n]{0,120}"),  # safetensors
    Sign("does not contain the valid metadata. Make sure you save"),  # transformers, about safetensors
    Sign("BadZipFile: ", types=("BadZipFile",), likely=True),
    Sign("Invalid magic number; corrupt file?"),
    Sign("GGUF magic invalid"),
    Sign("data is not within the file bounds, model is corrupted or incomplete"),  # llama.cpp
    Sign("the model you are trying to load is corrupted"),
    *meaning(  # readers of any format
        like(
            r"^[\w.]{1,200}(?:Error|Exception): [^\n]{0,300}?"
            r"\b(?i:checkpoint|weights|state dict\w{0,10}|file|archive)\b[^\n]{0,200}?"
            r"(?<![/.\-\w])(?<!not )[Cc]orrupt(?:ed)?\b(?![/.\-]\w)"
        ),
        like(r"\b[Cc]heckpoint at \S{1,400} is (?:invalid|corrupt)"),
        Sign("not an sstable", types=("DataLossError",)),  # TensorFlow
        cause="{who} could not read a checkpoint{where}: {line}",
        likely=True,
    ),
    *meaning(  # other files than checkpoints: a reader's guess at the reason, or one damaged sample among many
        Sign("invalid hash value (expected", types=("RuntimeError",)),  # torch.hub
        Sign("File not found or corrupted.", types=("RuntimeError",)),  # torchvision
        Sign("truncated file: eof = "),  # HDF5
        Sign("file signature not found", types=("OSError",)),
        Sign("integrity check failed", types=("FileIntegrityError",)),
        Sign("Parquet magic bytes not found in footer"),
        *("The file must end with PAR1", "database disk image is malformed", "MDB_CORRUPTED"),
        Sign("moov atom not found"),  # FFmpeg
        Sign("Compressed file ended before the end-of-stream marker"),
        like(r"^tarfile\.ReadError: (?:unexpected end of data|file could not be opened)"),
        cause="{who} could not read a data file{where}: {line}",
        likely=True,
    ),
    cause="{who} could not read a checkpoint{where}: {match}",
)
# Python's spawn pickles the program itself: a child whose parent died reads half of it.
_SPAWNED = re.compile(r"multiprocessing/(?:spawn|forkserver|connection|queues)\.py")
_ADVICE = (
    "ls -lt --time-style=full-iso   # in the checkpoint folder: is the newest file smaller than the others?",
    'torch.save(state, "last.pt.tmp"); os.replace("last.pt.tmp", "last.pt")   # on rank 0 only: never partial',
)
_PAGES = ("find . -size -100k -exec grep -lIi '<html' {} +   # HTML saved instead of the file: download again",)
_STARTS = {
    "v": "it starts with `v`, like a git-lfs pointer",
    "<": "it starts with `<`, like an HTML or XML page",
    r"\x00": "it starts with zeros: its blocks were never written",
    r"\x1f": "it starts like a gzip file",
    "{": "it starts with `{`, like JSON",
}


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Find the message with which a reader rejects a file's format."""
    if death.killed_by_another:
        return None
    hit = ended_by(death, SIGNS) or _below_a_blank_line(death)
    if hit is None or not _is_meant(hit) or _SPAWNED.search(hit.traceback):
        return None
    start = _start(hit)
    if start is None:
        return hit.finding(RULE, death, None, _ADVICE)
    why = _STARTS.get(start, f"it starts with {start!r}, which no pickle does")
    cause = f"{death.who} loaded a file that is not a checkpoint{hit.where(death)}: {why}"
    return hit.finding(RULE, death, cause, {"v": _POINTERS, "<": _PAGES}.get(start, _ADVICE))


def _below_a_blank_line(death: Death) -> Hit | None:
    """The unpickler of `weights_only=True` adds this below a blank line, so parsers lose it from the message."""
    refused = death.exception is not None and "Weights only load failed" in death.exception.message
    hit = in_last_words(death, (_UNPICKLER,)) if refused else None
    return replace(hit, confidence="certain") if hit is not None else None


def _is_meant(hit: Hit) -> bool:
    """Whether no pickle has this operand (others are merely unsupported). `Invalid argument`: only from torch's
    reader."""
    if hit["operand"]:
        return int(hit["operand"]) not in _opcodes()
    return hit["refused"] is None or "PyTorchFileReader(" in hit.traceback


def _opcodes() -> frozenset[int]:
    import pickletools

    return frozenset(ord(opcode.code) for opcode in pickletools.opcodes)


def _start(hit: Hit) -> str | None:
    """Return the file's first byte as shown by `invalid load key`."""
    if hit["operand"]:
        byte = int(hit["operand"])
        return chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"
    return hit["key"]
