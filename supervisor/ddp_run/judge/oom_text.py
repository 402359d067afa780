"""Recognises out-of-memory kills in text: kernel lines, printed counters, scheduler messages. Pure.

Sources: mm/oom_kill.c and Documentation/admin-guide/cgroup-v2.rst (`memory.events`), cgroup-v1/memory.rst
(`memory.oom_control`), cAdvisor's metrics, systemd and systemd-oomd, kubelet's events and `kubectl describe`, `docker
inspect`, SLURM, PBS, LSF, Ray's raylet, earlyoom.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddp_run.evidence.model import LogText, Quote
from ddp_run.judge.signs import Sign, every, like, meaning

_NAMED = (
    like(r"\bKilled process (?P<pid>\d{1,9}),? \((?P<program>[^)]{0,64})\)"),
    like(r"ut of memory: Kill process (?P<pid>\d{1,9}) \((?P<program>[^)]{0,64})\)"),  # older kernels
    like(r"oom_reaper: reaped process (?P<pid>\d{1,9}) \((?P<program>[^)]{0,64})\)"),
    like(r"oom-kill:constraint=\S{0,400}?,task=(?P<program>[^,]{0,64}),pid=(?P<pid>\d{1,9})"),
)
"""The killed process. The kernel's pids differ from those inside a container."""
_PYTHONS = re.compile(r"python|pt_|\w{1,40}::")
"""The names of Python's processes: its own, torch's (`pt_main_thread`), and Ray's and servers' (`ray::train`)."""
_COUNTS = (
    like(r"(?<![\w.])\"?oom_kill\"?[ :=\t]+(?P<count>\d{1,9})\b"),
    like(r"oom_events_total(?:\{[^}]{0,400}\})? (?P<count>\d{1,9})\b"),
)
"""Counters of a cgroup or host. They continue from one job to the next."""
_SCHEDULERS = (
    like(r"(?:Step|Job) \S{1,100} exceeded memory limit \([^)]{0,100}\), being killed"),
    like(r"(?:Step|Job) \S{1,100} exceeded virtual memory limit"),
    like(r"PBS: job killed: v?mem \d{1,18}\w{0,9} exceeded limit"),
    Sign("TERM_MEMLIMIT"),
    Sign("TERM_SWAP"),
    like(r"exceeds job hard limit \"[hs]_(?:vmem|rss|data)\""),  # Grid Engine
    like(r"Job has gone over (?:cgroup )?memory limit of "),  # HTCondor
)
"""A scheduler says that it kills a job for its memory use."""
_TOLD = meaning(
    *_SCHEDULERS,
    # not Ray's guess, which is the same for every worker that ends
    like(r"(?<!\(1\) the process was )killed by the OOM killer"),
    Sign("Failed with result 'oom-kill'"),
    Sign(
        "due to memory pressure",
        r"Killed \S+ due to memory pressure|(?<!\d)[1-9]\d* Workers [^\n]{0,40}killed due to memory pressure",
    ),
    *("SystemOOM", "System OOM encountered", "container init was OOM-killed"),
    # SageMaker, Colab and other platforms
    *("failed due to insufficient memory", "Replicas low on memory: "),
    *("crashed after using all available RAM", "tried to allocate more memory than is available"),
    like(r"Memory cgroup out of memory: killed \d{1,9} tasks?"),  # Flux
    like(r"exceeded \d{1,3}% memory budget\. (?:Restarting|Terminat|Killing)"),  # Dask
    like(r"replica \S{1,80}(?: \d{1,6})? ran out-of-memory and exited"),  # Vertex AI
    like(r"Detected \d+ oom_kill events? in"),
    like(r"Detected \d+ oom-kill event(?:\(s\)|s)? in"),
    Sign("killed by the cgroup out-of-memory handler"),
    like(r"\bOOMKilled\b(?!\"?\s*[:=]\s*[\"']?[Ff]alse)"),
    Sign("The node was low on resource: memory"),
    like(r"systemd-oomd\S{0,20} Killed \S{1,400} due to memory used"),
    like(r"(?<![\w.])OUT_OF_MEMORY\b"),
    like(r"earlyoom\[\d+\]: sending SIG(?:KILL|TERM) to process"),
)
_INVOKED = like(r"\w invoked oom-killer: ")
"""The process that asked for memory; another one may be killed."""
SIGNS: tuple[Sign, ...] = (*_NAMED, *_COUNTS, *_TOLD, _INVOKED)


def named(log: LogText, pid: int | None) -> Quote | None:
    """Return the kernel's last line that says it killed this process."""
    if pid is None:
        return None
    found = [hit.quote for sign in _NAMED for hit in every(log, sign) if hit["pid"] == str(pid)]
    return found[0] if found else None


def by_scheduler(log: LogText) -> Quote | None:
    """Return the last line in which a scheduler says that it kills a job for its memory, by any signal."""
    found = [hit.quote for sign in _SCHEDULERS for hit in every(log, sign)]
    return found[-1] if found else None


def told(logs: Iterable[LogText], *, of_python: bool = False) -> Quote | None:
    """Return the best evidence of such a kill: schedulers, then the kernel, then counters.

    `of_python`: the kernel's lines count only for Python's processes, since it names each one that it kills.
    """
    texts = list(logs)
    named = any(every(text, *_NAMED) for text in texts)
    for signs in (_TOLD, _NAMED, () if named else (_INVOKED,)):
        hits = [hit for text in texts for sign in signs for hit in every(text, sign)]
        found = [hit.quote for hit in hits if not of_python or _PYTHONS.match(hit["program"] or "python")]
        if found:
            return found[-1]
    return next((quote for text in texts if (quote := _counted(text)) is not None), None)


def _counted(log: LogText) -> Quote | None:
    """Return the last count above 0; if a counter was printed more than once, only if it rose."""
    for sign in _COUNTS:
        counts = [(int(hit["count"] or 0), hit.quote) for hit in every(log, sign)]
        before = counts[0][0] if len(counts) > 1 else 0
        if counts and counts[-1][0] > before:
            return counts[-1][1]
    return None
