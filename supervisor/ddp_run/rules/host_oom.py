"""The host's memory ran out.

## What happened
The kernel's out-of-memory killer ended the rank, or an allocation of CPU memory was refused.
## How to recognise it
SIGKILL while the kernel counted an out-of-memory kill in the job's memory cgroup; or `MemoryError`, `std::bad_alloc`,
`DefaultCPUAllocator: can't allocate memory`, `Cannot allocate memory`. A SIGKILL alone proves nothing.
## What to do
Give the job more memory, or use less: fewer DataLoader workers, smaller prefetch, memory-mapped data, one copy of the
data set per node in place of one per rank.
"""

from __future__ import annotations

import re
import signal

from ddp_run.traceback_text import line_of
from ddp_run.verdict import Area, Confidence, Death, Evidence, Finding, Quote, Retry, Rule

RULE = Rule(
    code="DDP401",
    name="host-oom",
    title="The host's memory ran out",
    area=Area.MEMORY,
    retry=Retry(helps=False, reason="the same job needs the same memory again"),
    since="0.1",
    beats=("native-abort",),
)
_REFUSED = re.compile(
    r"std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory|MemoryError\b"
    r"|Unable to allocate [\d.]+ [KMGTPE]iB for an array"
)
_DEVICE = re.compile(r"CUDA|HIP|XPU|out of memory on device")
_ADVICE = ("free -h; dmesg -T | grep -i 'killed process'", "try fewer DataLoader workers (num_workers) first")


def match(death: Death, run: Evidence) -> Finding | None:
    """A SIGKILL that the kernel counted as an out-of-memory kill, or an allocation of CPU memory that was refused."""
    if death.code == -signal.SIGKILL and signal.SIGKILL not in death.signals_sent:
        return _killed(death, run)
    refused = _refused(death)
    if refused is None:
        return None
    quote, text = refused
    return Finding(
        RULE,
        death.rank,
        f"{death.who} was refused memory: {text[:160]}",
        quote,
        _ADVICE,
        exception=death.exception,
    )


def match_launch(run: Evidence) -> Finding | None:
    """The agent itself was killed for memory."""
    if run.agent.code != -signal.SIGKILL or run.agent.killed_by_us or not run.cgroup_oom_kills:
        return None
    return Finding(RULE, None, "the kernel killed torch's agent: out of memory", (), _ADVICE, "likely")


def _killed(death: Death, run: Evidence) -> Finding | None:
    sure: Confidence = "certain" if run.cgroup_oom_kills else "likely"
    kills = run.cgroup_oom_kills or run.host_oom_kills
    if not kills:
        return None
    where = "this job's memory cgroup" if run.cgroup_oom_kills else "this host"
    times = "once" if kills == 1 else f"{kills} times"
    count = Quote("kernel", None, f"out-of-memory kills in {where} during this attempt: {kills}")
    cause = f"{death.who} was killed by SIGKILL while {where} ran out of memory ({times})"
    return Finding(RULE, death.rank, cause, (count,), _ADVICE, sure)


def _refused(death: Death) -> tuple[tuple[Quote, ...], str] | None:
    raised = death.exception
    if raised is not None:
        text = f"{raised.type}: {raised.message}".partition("\n")[0].removesuffix(": ")
        if not _REFUSED.search(f"{raised.type}: {raised.message}") or _DEVICE.search(raised.message):
            return None
        quote = line_of(death.stderr, raised)
        return ((quote,) if quote else ()), text
    hit = death.stderr.ending(100).last(_REFUSED) if death.code == -signal.SIGABRT else None
    return ((hit[0],), hit[0].text.strip()) if hit is not None else None
