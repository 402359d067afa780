"""Host out of memory.

## What happened
The kernel's out-of-memory killer killed the rank, or an allocation of CPU memory failed.
## How to recognise it
SIGKILL, plus a record that memory was the reason: the kernel log (`Out of memory: Killed process 123 (python)`), the
kill count of the job's memory cgroup (`oom_kill 1` in `memory.events`), SLURM (`Detected 1 oom_kill event`, `task 3:
Out Of Memory`), Kubernetes (`OOMKilled`), systemd, PBS, LSF, HTCondor, a notebook's server; in a pasted log these may
be anywhere. Or `MemoryError`, `std::bad_alloc`, `DefaultCPUAllocator: can't allocate memory`, `Unable to allocate … for
an array`, `[Errno 12] Cannot allocate memory`. A SIGKILL alone proves nothing.
## What to do
Give the job more memory, or use less: fewer DataLoader workers, smaller prefetch, memory-mapped data, one copy of the
dataset per node instead of one per rank.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.judge import oom_text
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.rules.dataloader_worker_died import DATA_WORKER
from ddp_run.judge.signs import Sign, ended_by, in_whole_log, like, meaning
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named
from ddp_run.values.words import size_in_words

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP401",
    layer=Layer.REFUSED,
    retry=Retry(helps=False, reason="the same job will need the same memory again"),
    wins_over=(("cuda-unavailable", "the warning that there is no GPU did not end the rank; the lack of memory did"),),
    host="repeated",
    end="crashed",
)
_MEMORY_ERRORS = frozenset({"MemoryError", "_ArrayMemoryError", "ArrowMemoryError"})
_REFUSED = meaning(
    like(
        r"DefaultCPUAllocator: [^\n]{0,40}tried to allocate (?P<bytes>\d{16,20})",
        cause="{who} could not allocate {size} of memory, more than any host has: a wrong shape or length{where}",
        advice=("print the shape and length of that allocation: one of them is wrong",),
    ),
    *meaning(
        like(r"DefaultCPUAllocator: [^\n]{0,40}tried to allocate (?P<bytes>\d{1,20})"),
        like(r"Unable to allocate (?P<size>[\d.]+ [KMGTPE]iB) for an array"),
        like(r"(?:re|m)alloc of size (?P<bytes>\d{1,20}) failed"),
        like(r"memory allocation of (?P<bytes>\d{1,20}) bytes failed"),
        cause="{who} could not allocate {size} of memory{where}",
    ),
    like(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
    Sign("due to the node running low on memory"),  # Ray's memory monitor
    Sign("C error: out of memory"),  # pandas
    like(r"OOM when allocating tensor[^\n]{0,400}/device:CPU:"),  # TensorFlow
    Sign("std::bad_alloc"),
    Sign("(state: OUT_OF_MEMORY)", types=("UncompletedJobError",)),  # submitit's
    like(r"killed by YARN for exceeding [a-z ]{0,20}memory limits"),  # Spark
    Sign("Please use an instance type with more memory", types=("UnexpectedStatusException",)),  # SageMaker
    Sign("Not enough host memory available", types=("RuntimeError", "ValueError")),  # SGLang
    Sign("The local object store is full of objects", types=("ObjectStoreFullError",)),  # Ray
    like(r"(?<!error )Cannot allocate memory"),
    like(r"MemoryError\b", _MEMORY_ERRORS),
    cause="{who} could not allocate memory: {line}",
)
_TASK = like(r"srun: error: \S+ tasks? (?P<tasks>[\d,\-]+): Out Of Memory")
_WORKER = like(rf"{DATA_WORKER} is killed by signal: Killed")
_PYTHON = like(r" of binary: \S{0,400}\bpython")
"""torch's agent, about what ran as a rank."""
SIGNS: tuple[Sign, ...] = (*_REFUSED, _WORKER, *oom_text.SIGNS, _TASK)
_DEVICE = re.compile(r"CUDA|cuda|HIP|XPU|out of memory on device|ibv_|NCCL|</torch_")
_ASKED_TO_END = (-signal.SIGTERM, -signal.SIGINT, 137, 143)
_CANCELLED = (Sign("CANCELLED AT "),)
"""From SLURM."""
_AT_A_BROKEN_PIPE = frozenset({"BrokenPipeError", "ConnectionResetError", "EOFError"})
_KILLED = "was killed by SIGKILL"
_OF_THE_JOB = "a process of the job was killed for memory"
_ADVICE = ("free -h; dmesg -T | grep -i 'killed process'", "try fewer DataLoader workers (num_workers) first")


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a SIGKILL recorded as an out-of-memory kill, or a failed allocation of CPU memory."""
    if death.code == -signal.SIGKILL and signal.SIGKILL not in death.signals_sent:
        return _named_by_the_kernel(death, attempt) or _counted(death, attempt) or _told(death, attempt)
    if death.code in _ASKED_TO_END and death.exception is None and attempt.logs_only:
        quote = oom_text.by_scheduler(attempt.agent.log)
        cause = f"the scheduler killed the job for its memory: {quote.text.strip()[:120]}" if quote is not None else ""
        return None if quote is None else Finding(RULE, cause, (quote,), _ADVICE)
    if death.exception is None and death.code not in (None, -signal.SIGABRT):
        return None
    if ended_by(death, (_WORKER,)) is not None:
        return _told(death, attempt, "lost a DataLoader worker to SIGKILL")
    hit = ended_by(death, _REFUSED)
    if hit is None and death.exception is not None and death.exception.type in _AT_A_BROKEN_PIPE:
        return _lost_another(death, attempt)
    if hit is None or _DEVICE.search(hit.message):
        return None
    if hit.statement.startswith("raise MemoryError"):
        return None  # Python raises its own without a statement
    size = size_in_words(int(hit["bytes"])) if hit["bytes"] else hit["size"]
    return hit.finding(RULE, death, hit.says(death, size=size), _ADVICE)


def match_launch(attempt: Evidence) -> Finding | None:
    """Match an agent that was killed for memory, or a log in which only the scheduler reports an end."""
    if attempt.logs_only and not attempt.deaths:
        if in_whole_log(attempt, _CANCELLED) is None:
            return None
        quote = oom_text.told((attempt.agent.log, attempt.kernel))
        return None if quote is None else Finding(RULE, _OF_THE_JOB, (quote,), _ADVICE, "likely")
    if attempt.agent.code != -signal.SIGKILL or attempt.agent.killed_by_us or not attempt.cgroup_oom_kills:
        return None
    return Finding(RULE, "the kernel killed torch's agent: out of memory", (), _ADVICE, "likely")


def _named_by_the_kernel(death: Death, attempt: Evidence) -> Finding | None:
    """Match the kernel's own line. In a container its pid differs from ours."""
    line = oom_text.named(attempt.kernel, death.pid) if attempt.logs_only else attempt.killed_for_memory(death.pid)
    if line is None:
        return None
    cause = f"the kernel killed {death.who} (pid {death.pid}): out of memory"
    return Finding(RULE, cause, (line, *death.trend), _ADVICE)


def _lost_another(death: Death, attempt: Evidence) -> Finding | None:
    """Match a rank whose pipe or socket ended while a process of its job was killed for memory: maybe the one there."""
    what = "lost the process at the other end of a pipe"
    found = _told(death, attempt, what) if attempt.logs_only else None
    found = _counted(death, attempt, what) if attempt.cgroup_oom_kills else found  # others' kills say nothing of it
    if found is None or death.exception is None:
        return None
    return replace(found, confidence="likely", evidence=(*line_of(death.stderr, death.exception), *found.evidence))


def _counted(death: Death, attempt: Evidence, what: str = _KILLED) -> Finding | None:
    sure: Confidence = "certain" if attempt.cgroup_oom_kills else "likely"
    kills = attempt.cgroup_oom_kills or attempt.host_oom_kills
    if not kills or attempt.spared_for_memory(death.pid):
        return None
    where = "this job's memory cgroup" if attempt.cgroup_oom_kills else "this host"
    times = "once" if kills == 1 else f"{kills} times"
    count = Quote("kernel", None, f"out-of-memory kills in {where} during this attempt: {kills}")
    cause = f"{death.who} {what} while {where} ran out of memory ({times})"
    return Finding(RULE, cause, (count, *death.trend), _ADVICE, sure)


def _told(death: Death, attempt: Evidence, what: str = _KILLED) -> Finding | None:
    """Match a message or counter that shows such a kill in the job, container or host; srun names the task."""
    task = in_whole_log(attempt, (_TASK,))
    kernel = () if attempt.spared_for_memory(death.pid) else (attempt.kernel,)
    of_python = attempt.logs_only and in_whole_log(attempt, (_PYTHON,)) is not None
    quote = task.quote if task is not None else oom_text.told((attempt.agent.log, *kernel), of_python=of_python)
    if quote is None:
        return None
    sure: Confidence = "certain" if task is not None else "likely"
    said = quote.text.strip()
    cause = f"{death.who} {what}, and its job ran out of memory: {said[:120]}"
    advice = (
        "sacct -j $SLURM_JOB_ID -o JobID,MaxRSS,ReqMem,State,NodeList   # memory used and requested",
        _ADVICE[1],
    )
    shown = advice if "slurm" in said or "srun" in said else _ADVICE
    return Finding(RULE, cause, (quote,), shown, sure)
