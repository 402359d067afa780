"""Permission denied.

## What happened
The job's user is not allowed to read, write, create or execute something.
## How to recognise it
`PermissionError: [Errno 13] Permission denied: '…'`, `[Errno 1] Operation not permitted`; `Permission denied (os error
13)` from Rust libraries; `can't open file '…': [Errno 13]` for the script itself; shells and container runtimes that
end with `: permission denied`. Typical: a cache folder in `/tmp` or `/root` that another user created, another user's
output folder, a script without `x`, a port below 1024. A rejected web page or token is a different cause (`auth`).
## What to do
Check the owner of the path and its parent folders with `namei -l PATH`. Move caches to your own folder: `HF_HOME`,
`TORCH_HOME`, `TRITON_CACHE_DIR`, `TORCHINDUCTOR_CACHE_DIR`, `MPLCONFIGDIR`.
"""

from __future__ import annotations

import re
import shlex

from ddp_run.evidence.model import TORCHS_AGENT, Death, Evidence
from ddp_run.judge import printed_text
from ddp_run.judge.signs import QUOTED_PATH, Sign, ended_by, every, in_whole_log, like, meaning, said_last
from ddp_run.judge.start_text import DENIED
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP904",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the permissions will still be missing"),
)
_SCRIPT = like(r"can't open file '(?P<path>[^']*)': \[Errno 13\] (?P<what>Permission denied)")
_AGENTS = like(rf"PermissionError: \[Errno \d+\] (?P<what>[^:\n]+): {QUOTED_PATH}")
_AGENTS_FRAME = re.compile(r"torch/distributed/(?:elastic|launcher|run\.py)")
_FRAMES = 16
_RAISED: tuple[Sign, ...] = (
    like(rf"^(?:\w+\.)*PermissionError: \[Errno \d+\] (?P<what>[^:\n]+)(?:: {QUOTED_PATH})?", ("PermissionError",)),
    # a message of the program, not of the system
    like(r"^(?:\w+\.)*PermissionError(?!: Caught \w+ in )", ("PermissionError",), likely=True),
    _SCRIPT,
    like(r"^RuntimeError: Permission denied$", ("RuntimeError",), likely=True),
    like(r"Permission denied \(os error 13\)"),
    like(r"on fopen: Permission denied, file path: (?P<path>\S+)"),  # torch
    like(r"failed to open directory (?P<path>\S{1,1000}): Permission denied"),  # Triton's server
    like(r"Permission denied \(addr='(?P<path>[^'\n]{1,400})'\)"),  # ZeroMQ
    Sign("attempt to write a readonly database"),
    # the words of C and C++ libraries in custom exception classes
    like(r"^[\w.]{1,200}(?:Error|Exception): [^\n]{0,400}?(?P<path>/[^\s:'\"]{1,400})['\"]?: Permission denied\.?$"),
    like(r'kind: PermissionDenied, message: "Permission denied"'),
    *meaning(
        like(r"bind to (?P<address>\S+) \(errno: 13 - Permission denied\)"),
        # libuv, for torch's store
        like(r"failed to bind\. port: (?P<address>\d{1,5}), [^\n]{0,80}name: EACCES, message: permission"),
        cause="{who} cannot listen on {address}: ports below 1024 require root",
        advice=("ddp-run train.py   # without --master-port: picks a free port above 1024",),
    ),
)
_CONTAINER = like(
    r"error: pyxis:\s{1,9}[\w.+\-]{1,40}: (?:cannot [a-z ]{1,40} )?[\u2018'\"]?(?P<path>/[^:\n\u2019'\"]{1,400})"
    r"[\u2019'\"]?: (?P<what>Permission denied)",
)
"""SLURM's container plugin shows messages of enroot, which creates the image before any rank starts."""
_PRINTED = printed_text.errors(("Permission denied",))
SIGNS = (*_RAISED, _CONTAINER, DENIED)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a refusal that ended the rank."""
    if death.killed_without_exception:
        return None  # a signal ended it, so earlier output was not the end
    hit = ended_by(death, _RAISED) or printed_text.at_the_end(death, _PRINTED)
    if hit is None and death.exception is None:
        hit = in_whole_log(attempt, (_CONTAINER,)) or said_last(death, (DENIED,))
    if hit is None:
        return None
    after = hit.exception is not None and death.exception is not None and hit.exception.type != death.exception.type
    sure: Confidence | None = "likely" if after else None
    path = hit["path"] or hit["file"]
    raised = hit.exception
    said = hit.text if raised is None else f"{raised.type}: {raised.message}".partition("\n")[0]
    cause = f"access to {path}{hit.where(death)}" if path is not None else f"access: {said[:160]}"
    advice = (_look(path),) if path is not None else ()
    return hit.finding(RULE, death, hit.says(death) or f"{death.who} was denied {cause}", advice, confidence=sure)


def match_launch(attempt: Evidence) -> Finding | None:
    """Match an agent that may not start the program or write its logs."""
    if attempt.started or attempt.deaths:
        return None
    lines = attempt.agent.log.lines
    for hit in reversed(every(attempt.agent.log, _AGENTS)):
        before = lines[max(0, hit.index - _FRAMES) : hit.index]
        if not any(_AGENTS_FRAME.search(line) for line in before):
            continue
        path = hit["path"] or ""
        start = f"chmod +x {shlex.quote(path)}   # a program must be executable"
        advice = (start, _look(path)) if any("in _execute_child" in line for line in before) else (_look(path),)
        return hit.finding(RULE, TORCHS_AGENT, f"torch's agent was denied access to {path}", advice)
    return None


def _look(path: str) -> str:
    return f"id; namei -l {shlex.quote(path)}   # who owns it and its parent folders?"
