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

from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, ended_by, like, meaning
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP903",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the limit will still be too low"),
)
_RAISE = "ulimit -n 65536   # in the shell or job script, before ddp-run; show it: ulimit -n"
_SHARE = 'torch.multiprocessing.set_sharing_strategy("file_system")   # at the top of the script'
SIGNS = meaning(
    *meaning(
        Sign("Too many open files in system"),
        Sign("name: ENFILE, message: "),  # libuv, for torch's store
        cause="{who} could not open a file: the whole host has too many open",
        advice=("cat /proc/sys/fs/file-nr   # open, free, the host's limit; root raises it: sysctl -w fs.file-max=N",),
    ),
    Sign("Too many open files"),
    Sign("name: EMFILE, message: "),  # libuv
    Sign(
        "received 0 items of ancdata",
        cause="{who} could not receive a file descriptor from a worker: most likely too many are open",
        likely=True,
    ),
    like(
        r"unable to open shared memory object </torch_\w{1,80}> in read-write mode$",  # older torch gives no number
        cause="{who} could not open shared memory to pass a tensor: most likely too many files are open (ulimit -n)",
        likely=True,
    ),
    Sign(
        "Failed to init uv loop",  # torch's TCPStore: libuv could not open what it waits with (epoll, eventfd, a pipe)
        cause="{who} could not start torch's store: most likely too many files are open (ulimit -n)",
        likely=True,
    ),
    Sign(
        "filedescriptor out of range in select()",
        cause="{who} has more than 1024 files open, the maximum for select()",
        advice=("ls -l /proc/PID/fd | awk '{print $NF}' | sort | uniq -c | sort -n | tail   # what are they?",),
    ),
    cause="{who} reached its limit of open files (ulimit -n)",
    advice=(_RAISE, _SHARE),
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match the kernel's refusal to open another file, or the failure of a process that should have received one."""
    hit = None if death.killed_by_another else ended_by(death, SIGNS)
    if hit is None:
        return None
    finding = hit.finding(RULE, death)
    if death.name is None:
        return finding
    return replace(finding, advice=tuple(each for each in finding.advice if each != _SHARE))  # it has no DataLoader
