"""DataLoader worker died.

## What happened
A worker process of a DataLoader, or of a data preparation pool, died without a Python exception: killed by a signal, or
by `os._exit`. The rank itself was fine and only noticed.
## How to recognise it
`DataLoader worker (pid 3734) is killed by signal: Killed.`, `DataLoader worker (pid(s) 3734) exited unexpectedly`; `A
process in the process pool was terminated abruptly`; `One of the subprocesses has abruptly died during map operation`
(Hugging Face datasets). The signal tells why: `Killed` is usually the out-of-memory killer, `Segmentation fault` and
`Aborted` are a native crash in the worker (a decoder, OpenCV), `Bus error` is a full `/dev/shm`. `Caught ValueError in
DataLoader worker process 0.` is different: the worker raised a Python exception, and that is reported as the cause.
## What to do
For `Killed`: check the kernel log with `dmesg -T | grep -i 'killed process'`, then use fewer workers or a smaller
`prefetch_factor`. For a crash: run once with `num_workers=0`, so that the crash happens in the rank itself and shows
its location.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.rules.preempted_sigterm import BY_AGENT, TOLD
from ddp_run.judge.rules.user_interrupt import TOLD_OF_IT
from ddp_run.judge.signs import Hit, Sign, ended_by, in_last_words, in_whole_log, like
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP701",
    layer=Layer.REPORTED,
    retry=Retry(helps=False, reason="the same data and memory usually kill a worker again"),
    wins_over=(("file-not-found", "the missing file is the socket of the worker that died"),),
)
DATA_WORKER = r"DataLoader (?:worker|process) \(pid(?:\(s\))? (?P<pids>[\d, ]+)\)(?: exited(?= is))?"
"""From torch/utils/data/dataloader.py; group `pids`."""
FRAMES = re.compile(r"/torch/utils/data/dataloader\.py _try_get_data")
_BY_SIGNAL = (like(rf"{DATA_WORKER} is killed by signal: (?P<signal>[\w ]+)"),)
SIGNS: tuple[Sign, ...] = (
    *_BY_SIGNAL,
    # torch before 1.0 and today: with `pid`, with `pid(s)`, with and without an exit code
    like(rf"{DATA_WORKER} exited unexpectedly(?: with exit code (?P<code>\d+))?"),
    Sign("process in the process pool was terminated abruptly"),
    Sign("One of the subprocesses has abruptly died"),
    Sign("A worker process managed by the executor was unexpectedly terminated"),
)
_LOST = frozenset(
    {"ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError"}
)
_SHARING = ("torch/utils/data/dataloader.py", "multiprocessing/resource_sharer.py")
_KILLED = "Killed"
_TERMINATED, _INTERRUPT = "Terminated", "Interrupt"
_BUS = "Bus error"


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match messages of torch and process pools about a missing worker; prefer the line with the signal."""
    if death.killed_by_another:
        return None
    hit = ended_by(death, SIGNS)
    if hit is None:
        return _left_its_batch(death)
    hit = ended_by(death, _BY_SIGNAL) or _same_worker(death, hit) or hit
    if attempt.logs_only and _went_with_the_rank(hit, attempt):
        return None
    cause, also = _cause(death, hit), []
    if hit["signal"] == _KILLED:
        why, proof = _killed_for_memory(hit, attempt)
        cause += why
        also += proof
    # in a text, a worker's end may be the only trace of an out-of-memory kill, Ctrl-C or an outside stop
    sure: Confidence = "likely" if attempt.logs_only or hit["signal"] == _BUS else hit.confidence
    return hit.finding(RULE, death, cause, _advice(hit), confidence=sure, also=also)


def _went_with_the_rank(hit: Hit, attempt: Evidence) -> bool:
    """Whether the rank received the signal, too, which explains both ends: its workers' may be all that follows."""
    ended = (hit["signal"] or "").strip()
    if ended == _INTERRUPT:
        return in_whole_log(attempt, TOLD_OF_IT) is not None
    return ended == _TERMINATED and in_whole_log(attempt, TOLD) is not None and in_whole_log(attempt, BY_AGENT) is None


def _left_its_batch(death: Death) -> Finding | None:
    """Match a rank that needed a tensor shared by file descriptor from a worker that was gone.

    Frames: torch/multiprocessing/reductions.py (rebuild_storage_fd) asks the worker's thread of
    multiprocessing/resource_sharer.py while a DataLoader takes the next batch.
    """
    raised = death.exception
    if raised is None or raised.type.rpartition(".")[2] not in _LOST:
        return None
    if not all(frame in raised.traceback for frame in _SHARING):
        return None
    cause = f"a DataLoader worker of {death.who} was gone before its batch was read ({raised.type})"
    advice = (
        "dmesg -T | grep -iE 'killed process|segfault'   # did the kernel kill it, and why?",
        "torch.multiprocessing.set_sharing_strategy('file_system')   # if workers are meant to exit early",
    )
    return Finding(RULE, cause, line_of(death.stderr, raised), advice, "likely")


def _killed_for_memory(hit: Hit, attempt: Evidence) -> tuple[str, list[Quote]]:
    """Return what the kernel logged about its out-of-memory killer: that it killed this worker, or any process."""
    kills = attempt.cgroup_oom_kills or attempt.host_oom_kills or 0
    pids = [int(pid) for pid in (hit["pids"] or "").split(", ") if pid.isdigit() and len(pid) < 10]
    named = next((line for line in map(attempt.killed_for_memory, pids) if line is not None), None)
    if named is not None:
        return ", by the kernel's out-of-memory killer", [named]
    if not kills or (pids and all(map(attempt.spared_for_memory, pids))):
        return "", []
    counted = Quote("kernel", None, f"out-of-memory kills during this attempt: {kills}")
    return "; the kernel's out-of-memory killer was active", [counted]


def _same_worker(death: Death, hit: Hit) -> Hit | None:
    """Return the line with this worker's signal, if lines of other ranks split its traceback."""
    named = in_last_words(death, _BY_SIGNAL)
    pids = (hit["pids"] or "").split(", ")
    return replace(named, confidence=hit.confidence) if named is not None and named["pids"] in pids else None


def _cause(death: Death, hit: Hit) -> str:
    pids = hit["pids"]
    if pids is None:
        return f"a data worker process of {death.who} died"
    many = "," in pids
    named = f"DataLoader workers (pids {pids})" if many else f"a DataLoader worker (pid {pids})"
    verb = "were" if many else "was"
    if hit["signal"]:
        return f"{named} of {death.who} {verb} killed by a signal: {hit['signal'].strip()}"
    return f"{named} of {death.who} exited unexpectedly" + (f" with exit code {hit['code']}" if hit["code"] else "")


def _advice(hit: Hit) -> tuple[str, ...]:
    ended = (hit["signal"] or "").strip()
    alone = "DataLoader(..., num_workers=0)   # once: then a crash happens in the rank and shows where"
    if ended == _KILLED:
        return (
            "dmesg -T | grep -iE 'killed process|oom'   # SIGKILL of a worker is usually the out-of-memory killer",
            "DataLoader(..., num_workers=2, prefetch_factor=2)   # fewer workers, fewer batches in memory",
        )
    if ended == _BUS:
        return ("df -h /dev/shm   # full, or too small: docker run --shm-size=16g", alone)
    if ended:
        return (alone, "dmesg -T | tail -n 30   # the kernel names the library that crashed")
    return ("dmesg -T | grep -iE 'killed process|segfault'   # did the kernel kill it, and why?", alone)
