"""Shared memory (/dev/shm) exhausted.

## What happened
`/dev/shm` is full. DataLoader workers pass batches through files there, and NCCL and Python's `shared_memory` use it to
communicate between ranks on one host. Containers get 64 MiB by default.
## How to recognise it
`DataLoader worker (pid N) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared
memory`, `Unexpected bus error encountered in worker`, `unable to write to file </torch_…>: No space left on device`,
`unable to allocate shared memory(shm) for file </torch_…>`, NCCL's `Error while creating shared memory segment
/dev/shm/nccl-…`; or no message at all: the rank itself was killed by SIGBUS (exit code -7) while `/dev/shm` was full,
which ddp-run checks. `No space left on device` with any other path is [disk-full](disk-full.md); a worker killed by
SIGKILL is [dataloader-worker-died](dataloader-worker-died.md).
## What to do
- `df -h /dev/shm` in the container while the job runs; also `ls -la /dev/shm`: files of killed jobs remain there.
- Docker: `--shm-size=16g` or `--ipc=host`. Kubernetes: an `emptyDir` with `medium: Memory` mounted on `/dev/shm`.
- Usage grows with `num_workers` x `prefetch_factor` x batch size x ranks on the host: reduce these.
- If you cannot change the container: `torch.multiprocessing.set_sharing_strategy("file_system")` only helps with a
  limit on open files, not here; `num_workers=0` does.
"""

from __future__ import annotations

import re
import signal

from ddp_run.evidence.model import Death, Evidence, Quote
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.gpu_text import behind_nccl, ended_by_gpu
from ddp_run.judge.rules.dataloader_worker_died import DATA_WORKER
from ddp_run.judge.signs import Hit, Sign, anywhere, in_exception, in_last_words, like, meaning, quotes
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP403",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the shared memory will still be too small"),
)
_SHM = "/dev/shm"  # noqa: S108
_NONE_LEFT = "{who} had no shared memory left for "
_THERE = f"{_NONE_LEFT}{_SHM}/{{file}}"
_BUS_ERROR = "{who} lost a DataLoader worker{ (pid {pids})} to a bus error: /dev/shm is too small"
_WORKER = like(rf"{DATA_WORKER} is killed by signal: Bus error", cause=_BUS_ERROR, likely=True)
_SIGNALLED = like(rf"{DATA_WORKER} is killed by signal: (?P<signal>[\w ]+)")
_LEFT = like(rf"{DATA_WORKER} exited unexpectedly")
_HANDLER = Sign("Unexpected bus error encountered in worker", cause=_BUS_ERROR, likely=True)
_FULL = r"(?:No space left on device|Cannot allocate memory|Resource temporarily unavailable)"
_TORCHS = meaning(
    like(r"unable to write to file </?(?P<file>torch_\w+)>"),
    like(rf"unable to allocate shared memory\(shm\) for file </?(?P<file>[^>]{{1,300}})>: (?:Success|{_FULL})"),
    like(r"unable to resize file </?(?P<file>torch_\w+)>"),
    like(rf"unable to mmap \d+ bytes from file </?(?P<file>torch_\w+)>: {_FULL}"),
    like(r"No space left on device: '(?:/dev/shm/?|/(?=psm_))(?P<file>[^']*)'"),
    cause=_THERE,
)
_NCCLS = meaning(
    like(
        r"Error while creating shared memory segment (?P<file>/dev/shm/nccl-\w+) \(size (?P<size>\d+)\)"
        r"(?!.*(?:Permission denied|No such file))"
    ),
    like(r"failed to extend (?P<file>/dev/shm/nccl-\w+) to (?P<size>\d+) bytes"),
    Sign("Call to posix_fallocate failed : No space left on device", cause=f"{_NONE_LEFT}NCCL's segment"),
    cause=f"{_NONE_LEFT}{{file}} of {{size}} bytes",
)
_TRITONS = like(  # Triton's Python backend
    r"Unable to initialize shared memory key '(?P<file>[^'\n]{1,200})' to requested size \((?P<size>\d+)",
    cause=f"{_NONE_LEFT}{{file}} of {{size}} bytes",
)
_SPACE = Sign("No space left on device", types=("OSError",), cause=f"{_NONE_LEFT}a lock of Python's multiprocessing")
_SHARED = re.compile(r"/multiprocessing/(?:synchronize|shared_memory|heap|context)\.py")
_EVICTED = like(
    r"Usage of EmptyDir volume \"(?P<file>\w{0,40}shm\w{0,40})\" exceeds the limit",
    cause=f"{_NONE_LEFT}{{file}}",
)
"""From kubelet: the volume mounted as /dev/shm."""
_OWN = (*_TORCHS, *_NCCLS, _TRITONS, _WORKER, _HANDLER, _EVICTED)
SIGNS = (*_OWN, _SIGNALLED, _LEFT, _SPACE)
_WITHOUT_WORKERS = "DataLoader(…, num_workers=0)   # to confirm: without workers nothing goes through /dev/shm"
_ON_A_FULL_SHM = (
    "df -h /dev/shm; ls -la /dev/shm   # in the job's container; files of killed jobs remain there",
    "docker run --shm-size=16g …   # or --ipc=host; Kubernetes: emptyDir {medium: Memory} on /dev/shm",
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a message that ended the rank; likely for a bus error of a worker, or of a rank that mentions /dev/shm."""
    hit = ended_by_gpu(death, _OWN) or behind_nccl(death, _NCCLS) or _semaphore(death)
    if hit is None:
        hit = _workers_bus_error(death)
    if hit is None and death.code == -signal.SIGBUS:  # of the rank itself, whose log mentions shared memory
        hit = anywhere(death.stderr.ending(LAST_WORDS), _OWN)
    if hit is None:
        return _bus_error_without_a_word(death, attempt)
    clear = anywhere(death.stderr, (*_TORCHS, *_NCCLS)) if hit.sign.likely else None
    sure: Confidence | None = hit.confidence if clear is not None else None
    advice = _ON_A_FULL_SHM if hit.sign in _NCCLS else (*_ON_A_FULL_SHM, _WITHOUT_WORKERS)
    return hit.finding(RULE, death, advice=advice, confidence=sure, also=quotes(clear))


def _workers_bus_error(death: Death) -> Hit | None:
    """Match a worker's bus error if other ranks' lines separate its exception from this rank's.

    The worker's own line names no process. It counts if torch says only that this worker left.
    """
    left = in_exception(death, (_LEFT,))
    if left is None:
        return None
    pids = (left["pids"] or "").split(", ")
    named = in_last_words(death, (_SIGNALLED,))
    if named is not None and any(pid in pids for pid in (named["pids"] or "").split(", ")):
        return in_last_words(death, (_WORKER,)) if named["signal"] == "Bus error" else None
    return in_last_words(death, (_HANDLER,))


def _semaphore(death: Death) -> Hit | None:
    """`[Errno 28]` without a path, raised inside multiprocessing: its locks and buffers are files in /dev/shm."""
    hit = in_exception(death, (_SPACE,))
    if hit is None or hit.exception is None or "'" in hit.exception.message:
        return None
    frames = re.findall(r'File "([^"]+)"', hit.exception.traceback)
    return hit if frames and _SHARED.search(frames[-1]) else None


def _bus_error_without_a_word(death: Death, attempt: Evidence) -> Finding | None:
    """Match SIGBUS of the rank itself while /dev/shm was full: the kernel could not allocate a page of a file there.

    A truncated file or a disk error in a mapped file causes the same signal, so this is only likely.
    """
    space = attempt.space_of(_SHM) if death.code == -signal.SIGBUS else None
    if space is None or not space.nearly_full:
        return None
    cause = f"{death.who} was killed by SIGBUS (bus error) while /dev/shm was full"
    free = Quote("statvfs", None, space.words)
    return Finding(RULE, cause, (free,), _ON_A_FULL_SHM, "likely")
