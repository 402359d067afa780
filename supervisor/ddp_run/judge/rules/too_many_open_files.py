"""Too many open files.

## What happened
The process, or the whole host, reached its limit of open files, sockets and pipes.
## How to recognise it
`[Errno 24] Too many open files`; torch's store: `name: EMFILE, message: too many open files`; `received 0 items of
ancdata`: a process could not receive a file descriptor from a DataLoader worker. With torch's default sharing strategy
(`file_descriptor`) every tensor passed by a worker holds a descriptor.
## What to do
Raise the limit before the start (`ulimit -n 65536`; in SLURM `LimitNOFILE` of slurmd; in docker `--ulimit
nofile=65536:65536`), or share tensors by file name: `torch.multiprocessing.set_sharing_strategy("file_system")`. If the
number grows during a run, something is leaking open files.
"""

from __future__ import annotations

import signal

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, ended_by
from ddp_run.judge.verdict import Area, Confidence, Finding, Layer, Retry, Rule

RULE = Rule(
    code="DDP903",
    name="too-many-open-files",
    title="Too many open files",
    area=Area.HOST,
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the limit will still be too low"),
    since="0.1",
)
_ANCDATA = "items of ancdata"
_LOOP = "Failed to init uv loop"
"""torch's TCPStore: libuv could not open the files that it waits with (uv_loop_init: epoll, eventfd, a pipe)."""
_SELECT = "filedescriptor out of range in select()"
_OF_HOST = ("cat /proc/sys/fs/file-nr   # open, free, the host's limit; root raises it: sysctl -w fs.file-max=N",)
SIGNS: tuple[Sign, ...] = (
    Sign("Too many open files"),
    Sign("FILE, message: ", r"name: E[MN]FILE, message: "),  # libuv, for torch's store
    Sign(_ANCDATA, r"received 0 items of ancdata"),
    Sign(_LOOP),
    Sign(_SELECT),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the kernel's refusal to open another file, or the failure of a process that should have received one."""
    if death.killed_without_exception and death.code != -signal.SIGABRT:
        return None  # another signal ended it, so earlier output was not the end
    hit = ended_by(death, SIGNS)
    if hit is None:
        return None
    sure: Confidence = hit.confidence
    if hit.sign.words == _ANCDATA:
        sure = "likely"
        cause = f"{death.who} could not receive a file descriptor from a worker: most likely too many are open"
    elif hit.sign.words == _LOOP:
        sure = "likely"
        cause = f"{death.who} could not start torch's store: most likely too many files are open (ulimit -n)"
    elif hit.sign.words == _SELECT:
        cause = f"{death.who} has more than 1024 files open, the maximum for select()"
    elif "Too many open files in system" in hit.text or "ENFILE" in hit.text:
        cause = f"{death.who} could not open a file: the whole host has too many open"
        return hit.finding(RULE, death, cause, _OF_HOST)
    else:
        cause = f"{death.who} reached its limit of open files (ulimit -n)"
    return hit.finding(RULE, death, cause, _advice(hit.sign.words, death), confidence=sure)


def _advice(words: str, death: Death) -> tuple[str, ...]:
    sharing = 'torch.multiprocessing.set_sharing_strategy("file_system")   # at the top of the script'
    if words == _SELECT:
        return ("ls -l /proc/PID/fd | awk '{print $NF}' | sort | uniq -c | sort -n | tail   # what are they?",)
    raised = "ulimit -n 65536   # in the shell or job script, before ddp-run; show it: ulimit -n"
    return (raised, sharing) if death.name is None else (raised,)  # torch's agent has no DataLoader
