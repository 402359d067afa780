"""File or folder not found, or of the wrong kind.

## What happened
The program opened a path that does not exist on this host, or a folder where it expected a file (or vice versa).
## How to recognise it
`FileNotFoundError`, `IsADirectoryError`, `NotADirectoryError`; from Hugging Face libraries `Repo id must be in the form
'repo_name' or 'namespace/repo_name'`, `is not a local folder and is not a valid model identifier` and `does not appear
to have a file named config.json`: a local path that does not exist is taken for a name on the Hub. An exception of any
class that says so next to a path (`Data directory not found: ./data`, `/data/x.lmdb: No such file or directory`), or a
client of an object store: `NoSuchKey`, `BlobNotFound`, `No such object`. From the tools around a job: `mount source …
doesn't exist`, `manifest unknown`, `Could not find conda environment`, Lmod's `The following module(s) are unknown`,
and tools that end with `: No such file or directory`.
## What to do
Check the path on the host of the failed rank: relative paths are resolved from the folder where the job was started,
and a node's local disk does not have files written by another node. If only some ranks fail, another rank may write the
file a moment later: write it on rank 0, then `torch.distributed.barrier()`, then read.
"""

from __future__ import annotations

import re
import shlex

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge import missing_text, printed_text, service_text
from ddp_run.judge.signs import QUOTED_PATH, Hit, Sign, ended_by, in_exception, in_last_words, like, meaning, said_last
from ddp_run.judge.start_text import NO_FILE
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP702",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the file will still be missing"),
)
_NOWHERE = "{who} could not find {path}{where}: no such folder, and no such name on the Hugging Face Hub"
_DATASET = like(
    r"Dataset (?P<quote>['\"])(?P<path>[^'\"]{1,300})(?P=quote) doesn't exist on the Hub or cannot be accessed",
    cause=_NOWHERE,
)
_WRAPPED = like(
    r"Can't load (?:the )?[a-z ]{1,40} (?:of|for) '(?P<path>[^'\n]{1,1000})'",
    ("OSError",),
    cause=_NOWHERE,
    likely=True,
)
"""transformers prints this for any earlier failure."""
_ON_HUB = (
    like(r"(?<![^\s:])(?P<path>[^\s:]+) is not a local folder and is not a valid model identifier", cause=_NOWHERE),
    _DATASET,
    _WRAPPED,
)
"""The text may mean a name on the Hub, which can be hidden from this user."""
_ANOTHER = like(r"\[Errno (?!2\])-?\d{1,4}\]")
_WITH_PATH = rf"(?:[^\n]*?(?:: |name = |at |file ){QUOTED_PATH})?"
_IN_WORKER = r"(?!: Caught \w+ in )"
_RAISED: tuple[Sign, ...] = (
    like(rf"^(?:\w+\.)*(?P<class>FileNotFoundError){_IN_WORKER}{_WITH_PATH}", ("FileNotFoundError",)),
    like(  # the worker's own is torn off
        r"^(?:\w+\.)*FileNotFoundError: Caught FileNotFoundError in (?P<said>[^\n.]{1,80})(?![\s\S]*\nOriginal Trace)",
        ("FileNotFoundError",),
        cause="{who} could not find a file, in {said}",
        likely=True,
    ),
    like(
        rf"^(?:\w+\.)*IsADirectoryError{_IN_WORKER}{_WITH_PATH}",
        ("IsADirectoryError",),
        cause="{who} opened {path} as a file, but it is a folder{where}",
    ),
    like(
        rf"^(?:\w+\.)*NotADirectoryError{_IN_WORKER}{_WITH_PATH}",
        ("NotADirectoryError",),
        cause="{who} used {path} as a folder, but part of the path is a file{where}",
    ),
    like(rf"Repo id must be in the form 'repo_name' or 'namespace/repo_name': {QUOTED_PATH}", cause=_NOWHERE),
    like(rf"Incorrect path_or_model_id: {QUOTED_PATH}", cause=_NOWHERE),
    *_ON_HUB,
    like(r"(?<![^\s:])(?P<path>[^\s:]+) does not appear to have a file named (?P<file>[^\s,]*[^\s,.])"),
    # Transformers, Diffusers
    like(r"(?<![^\s:])(?P<path>[^\s:]+) does not appear to have files named (?P<file>\(?[^)\n]*\)?)"),
    like(r"Error no file named (?P<file>[^\n]{1,400}?),? found in directory (?P<path>\S{0,1000}[^\s.])"),
    like(r"Can't find a valid checkpoint at (?P<path>\S{1,1000})"),
    like(r"No valid checkpoint found in output directory \((?P<path>[^)\n]{1,1000})\)"),
    like(r"^In '[^'\n]{1,300}': Could not find '(?P<path>[^'\n]{1,300})'"),  # Hydra
    # sentencepiece, torch, ONNX Runtime, HDF5, pandas
    like(r"Not found: \"(?P<path>[^\"\n]{1,1000})\": No such file or directory Error #2"),
    like(r"on fopen: No such file or directory, file path: (?P<path>\S+)"),
    like(r"NO_SUCHFILE : Load model from (?P<path>\S{1,1000}) failed"),
    like(r"unable to open file: name = '(?P<path>[^']+)', errno = 2, error message"),
    like(rf"Cannot save file into a non-existent directory: {QUOTED_PATH}"),
    Sign("Weights not found: "),  # TEI
    Sign("unable to find backend library for backend"),  # Triton's server
    # torch.save's (caffe2/serialize/inline_container.cc)
    like(r"Parent directory (?P<path>[^\n]{1,1000}) does not exist\.", ("RuntimeError",)),
    like(r"Entry Not Found for url: (?P<path>[^\s?]+[^\s?.])"),
    # Libraries in Rust (tokenizers, safetensors) and C++ (torch's file adapter), and HDF5, raise custom classes.
    like(r"No such file or directory \(os error 2\)"),
    # a shell's, about a file that a script reads or starts
    like(r"^\S{1,400}: line \d{1,9}: (?P<path>(?=[^\s:/]{0,80}/)[^\s:]{1,1000}): No such file or directory$"),
    like(r"Can't find '(?P<file>[^'\n]{1,200})' at '(?P<path>[^'\n]{1,1000})'"),  # peft's
    like(r"unable to open file <(?P<path>[^>\n]{1,1000})> in read-only mode: No such file or directory"),
    like(r"Cannot find any model weights with `(?P<path>[^`\n]{1,1000})`"),  # vLLM
    like(r"\b[Ff]ile not found: (?P<path>/[^\s:]{1,1000})", ("OSError", "IOError", "RuntimeError", "ValueError")),
    like(r"Cannot find primary config '(?P<file>[^'\n]{1,300})'"),  # Hydra; it prints the next two
    like(r"Check that the config directory '(?P<path>[^'\n]{1,1000})' exists and readable"),
    like(r"Expected a string path to an existing deepspeed config[^\n]{0,120}? Received: (?P<path>\S{1,400})"),
    # a library's message for an exception that it caught
    like(
        rf"\[Errno 2\] No such file or directory: {QUOTED_PATH}",
        ("OSError", "RuntimeError", "ValueError", "CheckpointException"),
    ),
    like(r"\[E050\] Can't find model '(?P<path>[^'\n]{1,1000})'"),  # spaCy
    like(r"Resource (?P<path>\S{1,200}) not found\.\s{1,80}Please use the NLTK Downloader to obtain the resource"),
    *meaning(
        *service_text.MISSING,
        like(r"Can't find weights for (?P<path>\S{1,1000}) in \S{1,1000} or in the Hugging Face Hub\. Please"),  # peft
        like(r"Error opening '(?P<path>[^'\n]{1,1000})': System error\."),  # libsndfile
        like(r"any matching files for (?P<path>\S{1,1000})"),  # TensorFlow, like the next
        like(r"SavedModel file does not exist at: (?P<path>[^\s{]{1,1000})"),
        like(r"File not found: filepath=(?P<path>\S{1,400})"),  # Keras
        like(r'kind: NotFound, message: "No such file or directory"'),  # libraries written in Rust
        Sign("You can use download=True to download it"),  # torchvision
        Sign("is not present in the root directory"),
        likely=True,
    ),
)
_OBJECTS = meaning(
    like(r"An error occurred \((?P<path>NoSuchKey|NoSuchBucket)\) when calling"),  # Amazon's command line
    *("fatal error: An error occurred (404)", "NoSuchKey (404)"),
    like(r"No URLs matched: (?P<path>\S{1,1000})"),  # gcloud, gsutil
)
"""From object stores, as their clients print and raise it."""
_IN_WORDS = (*meaning(*missing_text.SIGNS, likely=True), *_OBJECTS)
_PRINTED = (
    *printed_text.errors(("No such file or directory",)),
    like(r"(?i:\berror\b)[^\n]{0,40} [Ff]ile not found: (?P<path>\S{1,1000})"),
    like(r"(?i:\berror\b)[^\n]{0,40} (?:path|file|folder|directory) (?P<path>\S{0,80}/\S{1,1000}) does not exist"),
)
_OF_TOOLS = (*_OBJECTS, *NO_FILE)
SIGNS = (*_RAISED, *_OF_TOOLS)
_STARTED = re.compile(r'subprocess\.py", line \d+, in _execute_child')
_SOCKET = re.compile(r"^\S{1,40}\.connect\(")
"""The address of a process that has ended: a path that the program never named."""
_COMPILERS = re.compile(
    r"(?:^|/)(?:nvcc|ninja|hipcc|icpx|ptxas|ccache|ld|make|cmake|(?:[\w.\-]*-)?(?:gcc|g\+\+|cc|c\+\+|clang(?:\+\+)?)(?:-\d+)?)"
    r"$"
)
_SHARED_MEMORY = re.compile(r"^/dev/shm(?:/|$)|^/torch_\d+|^/psm_")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a missing path that ended the rank. Missing compilers and shared memory are other causes."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = (
        ended_by(death, _RAISED)
        or in_exception(death, _IN_WORDS)
        or said_last(death, _OF_TOOLS)
        or printed_text.at_the_end(death, _PRINTED)
    )
    if hit is None or (hit.sign is _WRAPPED and in_last_words(death, (_ANOTHER,)) is not None):
        return None
    if _SOCKET.search(hit.statement) and hit["path"] is None:
        return None
    path = (hit["path"] or "").rstrip(".") or None
    program = path is not None and hit["class"] is not None and _STARTED.search(hit.traceback) is not None
    if path is not None and (_SHARED_MEMORY.search(path) or (program and _COMPILERS.search(path))):
        return None
    # a missing file may only have triggered another exception
    after = hit.exception is not None and death.exception is not None and hit.exception.type != death.exception.type
    hub = hit.sign in _ON_HUB and not _looks_local(path or "")
    sure: Confidence | None = "likely" if after or hub else None
    advice = _advice(death, attempt, hit, path, program, hub)
    return hit.finding(RULE, death, _cause(death, hit, path, program), advice, confidence=sure)


def _looks_local(path: str) -> bool:
    return path.startswith(("/", ".", "~")) or path.count("/") > 1


def _cause(death: Death, hit: Hit, path: str | None, program: bool) -> str:
    where = hit.where(death)
    if path is None:
        said = hit.message.partition("\n")[0] or (hit.exception.type if hit.exception is not None else "")
        return f"{death.who} could not find a file{where}: {said[:160]}"
    if program:
        return f"{death.who} could not start {path}{where}: program not found"
    file = f"{hit['file']} in {path}" if hit["file"] else path
    return hit.says(death, path=path) or f"{death.who} could not find {file}{where}"


def _advice(death: Death, attempt: Evidence, hit: Hit, path: str | None, program: bool, hub: bool) -> tuple[str, ...]:
    advice: list[str] = []
    if program and path is not None:
        return (f"command -v {shlex.quote(path)}   # is it installed and on PATH?",)
    if path is not None and hub:
        kind = "datasets" if hit.sign is _DATASET else "models"
        advice.append(
            f"curl -sI https://huggingface.co/api/{kind}/{path} | head -n 1   # 200: exists; 401: private or misspelled"
        )
    elif path is not None and "://" not in path:
        on = f"on {death.host}: " if death.host and attempt.nodes > 1 else ""
        base = "" if path.startswith("/") else " (relative to the folder where the job was started)"
        advice.append(f"ls -ld {shlex.quote(path)}   # {on}does it exist{base}?")
    if len(attempt.deaths) + len(attempt.clean_exits) > 1 and not _all_alike(death, attempt):
        advice.append(
            "torch.distributed.barrier()   # after one rank wrote the file, before the others read it:"
            " not all ranks failed"
        )
    return tuple(advice)


def _all_alike(death: Death, attempt: Evidence) -> bool:
    """Whether every rank with an exception has one of this kind."""
    mine = death.exception.type if death.exception is not None else None
    return not attempt.clean_exits and all(
        other.exception is None or other.exception.type == mine for other in attempt.deaths
    )
