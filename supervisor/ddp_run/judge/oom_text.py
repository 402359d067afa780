"""Recognises out-of-memory kills in text: kernel lines, printed counters, scheduler messages. Pure.

Sources: mm/oom_kill.c and Documentation/admin-guide/cgroup-v2.rst (`memory.events`), cgroup-v1/memory.rst
(`memory.oom_control`), cAdvisor's metrics, systemd and systemd-oomd, kubelet's events and `kubectl describe`, `docker
inspect`, SLURM, PBS, LSF, Ray's raylet, earlyoom.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddp_run.evidence.model import LogText, Quote
from ddp_run.judge.signs import Sign, every

_NAMED = (
    Sign("illed process ", r"\bKilled process (?P<pid>\d{1,9}),? \((?P<program>[^)]{0,64})\)"),
    Sign("reaped process ", r"oom_reaper: reaped process (?P<pid>\d{1,9}) \((?P<program>[^)]{0,64})\)"),
    Sign("oom-kill:constraint=", r"oom-kill:constraint=\S{0,400}?,task=(?P<program>[^,]{0,64}),pid=(?P<pid>\d{1,9})"),
    # before Linux 5.1: the process that was chosen; a separate line names the one that was killed
    Sign("ut of memory: Kill process ", r"ut of memory: Kill process (?P<pid>\d{1,9}) \((?P<program>[^)]{0,64})\)"),
)
"""The killed process. The kernel's pids differ from those inside a container."""
_PYTHONS = re.compile(r"python|pt_|\w{1,40}::")
"""The names of Python's processes: its own, torch's (`pt_main_thread`), and Ray's and servers' (`ray::train`)."""
_COUNTS = (
    Sign("oom_kill", r"(?<![\w.])\"?oom_kill\"?[ :=\t]+(?P<count>\d{1,9})\b"),
    Sign("oom_events_total", r"oom_events_total(?:\{[^}]{0,400}\})? (?P<count>\d{1,9})\b"),
)
"""Counters of a cgroup or host. They continue from one job to the next."""
_SCHEDULERS = (
    Sign("exceeded memory limit", r"(?:Step|Job) \S{1,100} exceeded memory limit \([^)]{0,100}\), being killed"),
    Sign("exceeded virtual memory limit", r"(?:Step|Job) \S{1,100} exceeded virtual memory limit"),
    Sign("PBS: job killed: ", r"PBS: job killed: v?mem \d{1,18}\w{0,9} exceeded limit"),
    Sign("TERM_MEMLIMIT"),
    Sign("TERM_SWAP"),
    Sign("exceeds job hard limit ", r"exceeds job hard limit \"[hs]_(?:vmem|rss|data)\""),  # Grid Engine
    Sign("gone over", r"Job has gone over (?:cgroup )?memory limit of "),  # HTCondor
)
"""A scheduler says that it kills a job for its memory use."""
_TOLD = (
    *_SCHEDULERS,
    Sign("invoked oom-killer", r"\w invoked oom-killer: "),
    # not Ray's guess, which is the same for every worker that ends
    Sign("killed by the OOM killer", r"(?<!\(1\) the process was )killed by the OOM killer"),
    Sign("Failed with result 'oom-kill'"),
    Sign(
        "due to memory pressure",
        r"Killed \S+ due to memory pressure|(?<!\d)[1-9]\d* Workers [^\n]{0,40}killed due to memory pressure",
    ),
    Sign("% memory budget", r"exceeded \d{1,3}% memory budget\. (?:Restarting|Terminat|Killing)"),  # Dask
    Sign("failed due to insufficient memory"),  # SageMaker, about an endpoint's container
    Sign("SystemOOM"),
    Sign("System OOM encountered"),
    Sign("oom_kill event", r"Detected \d+ oom_kill events? in"),
    Sign("oom-kill event", r"Detected \d+ oom-kill event(?:\(s\)|s)? in"),
    Sign("killed by the cgroup out-of-memory handler"),
    Sign("OOMKilled", r"\bOOMKilled\b(?!\"?\s*[:=]\s*[\"']?[Ff]alse)"),
    Sign("The node was low on resource: memory"),
    Sign("container init was OOM-killed"),
    Sign("ran out-of-memory", r"replica \S{1,80}(?: \d{1,6})? ran out-of-memory and exited"),  # Vertex AI
    Sign("Replicas low on memory: "),
    Sign("crashed after using all available RAM"),  # Colab, Kaggle
    Sign("tried to allocate more memory than is available"),
    Sign("due to memory used", r"systemd-oomd\S{0,20} Killed \S{1,400} due to memory used"),
    Sign("Memory cgroup out of memory: killed ", r"Memory cgroup out of memory: killed \d{1,9} tasks?"),  # Flux
    Sign("OUT_OF_MEMORY", r"(?<![\w.])OUT_OF_MEMORY\b"),
    Sign("earlyoom[", r"earlyoom\[\d+\]: sending SIG(?:KILL|TERM) to process"),
)
SIGNS: tuple[Sign, ...] = (*_NAMED, *_COUNTS, *_TOLD)


def named(log: LogText, pid: int | None) -> Quote | None:
    """Return the kernel's last line that says it killed this process."""
    if pid is None:
        return None
    found = [hit.quote for sign in _NAMED[:3] for hit in every(log, sign) if hit["pid"] == str(pid)]
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
    for signs in (_TOLD, _NAMED):
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
