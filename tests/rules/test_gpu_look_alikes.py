"""Texts that hold a GPU cause's words for another reason, and those that hold two causes' words at once."""

from __future__ import annotations

import pytest

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted import transcript
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.diagnose import judge
from ddp_run.judge.text_signs import shows
from ddp_run.judge.verdict import Verdict

TRACEBACK = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 8, in <module>\n    main()\n'
ENDED = "E0914 10:05:42.218000 4121 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 4188) of binary: /usr/bin/python"  # noqa: E501
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free."
)
TOO_OLD = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
ASSERTED = (
    "Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [5,0,0] "
    "Assertion `t >= 0 && t < n_classes` failed."
)
FELL_OFF = "[Sun Sep 14 10:05:38 2025] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=python, GPU has fallen off the bus."


def verdict_of(text: str) -> Verdict:
    return judge(transcript.read(SpokenText.of_logs([_log(text)]), shows))


@pytest.mark.parametrize(
    ("before", "frames", "raised", "cause"),
    [
        (
            "",
            "",
            "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit "
            "the quantized model.",
            "python-exception",
        ),
        (f"batch size 64: {OOM} Trying 32.", "", "ValueError: 3 channels, expected 1", "python-exception"),
        (TOO_OLD, "", "AssertionError", "python-exception"),
        (TOO_OLD, "", "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "driver-mismatch"),
        (
            "",
            "",
            "subprocess.CalledProcessError: Command '['/usr/bin/accelerate', 'launch', 'a.py']' returned non-zero exit "
            "status 1.",
            "unknown",
        ),
        (
            "",
            "",
            "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/a.c']' returned non-zero exit status 1.",
            "compile-failure",
        ),
        (FELL_OFF, "", "ValueError: 3 channels, expected 1", "python-exception"),
        (FELL_OFF.replace("79", "63"), "", "RuntimeError: CUDA error: misaligned address", "illegal-memory-access"),
        (
            f"{FELL_OFF.replace('79', '63')}\n{FELL_OFF.replace('79', '48')}",
            "",
            "RuntimeError: CUDA error: unspecified launch failure",
            "gpu-hardware",
        ),
        (
            FELL_OFF.replace("79", "31"),
            "",
            "RuntimeError: CUDA error: unspecified launch failure",
            "illegal-memory-access",
        ),
        (
            ASSERTED,
            "",
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `f`",
            "device-side-assert",
        ),
        (ASSERTED, "", "ValueError: 3 channels, expected 1", "python-exception"),
        (
            "",
            "",
            f"torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nOutOfMemoryError: {OOM}",
            "cuda-oom",
        ),
        (
            "",
            "",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuda-oom",
        ),
        (
            "",
            '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n    sl = f(\n',
            "OSError: [Errno 28] No space left on device",
            "shm-exhausted",
        ),
        (
            "",
            "",
            "ImportError: /root/.cache/torch_extensions/py311_cu124/fused_adam/fused_adam.so: cannot open shared "
            "object file: No such file or directory",
            "compile-failure",
        ),
        (
            "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch "
            "installation.",
            "",
            "ValueError: 3 channels, expected 1",
            "python-exception",
        ),
        (
            "",
            "",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
            "NumCudaDevices() that might have already set an error? Error 101: invalid device ordinal",
            "cuda-unavailable",
        ),
    ],
)
def test_cause(before: str, frames: str, raised: str, cause: str) -> None:
    assert verdict_of("\n".join([before, TRACEBACK + frames + raised, ENDED])).cause == cause


def test_a_file_on_disk_is_not_in_shared_memory() -> None:
    verdict = verdict_of(TRACEBACK + "OSError: [Errno 28] No space left on device: '/data/step_9.pt'\n" + ENDED)
    assert verdict.cause not in (None, "shm-exhausted")


def test_memory_of_other_processes_is_told_from_ones_own() -> None:
    mine = OOM + " Of the allocated memory 70.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but"
    mine += " unallocated."
    theirs = mine.replace("70.00 GiB", "30.00 GiB").replace("7.00 GiB", "0.10 GiB")
    own = verdict_of(TRACEBACK + f"torch.OutOfMemoryError: {mine}\n" + ENDED)
    others = verdict_of(TRACEBACK + f"torch.OutOfMemoryError: {theirs}\n" + ENDED)
    assert own.retry is not None and others.retry is not None
    assert (own.retry.helps, others.retry.helps) == (False, True)
    assert "expandable_segments" in own.advice[0] and "compute-apps" in others.advice[0]


def test_a_warning_of_another_process_is_not_this_ranks() -> None:
    failed = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, {}, NCCL version 2.21.5"
    own = failed.format("unhandled cuda error (run with NCCL_DEBUG=INFO for details)")
    system = failed.format("unhandled system error (run with NCCL_DEBUG=INFO for details)")
    entry = "  host      : n\n  rank      : {0} (local_rank: {0})\n  exitcode  : 1 (pid: {1})\n  error_file: <N/A>"
    text = [
        "n:4189:4260 [1] transport/p2p.cc:218 NCCL WARN Cuda failure 2 'out of memory'",
        *(f"[rank0]: {line}" for line in (TRACEBACK + system).split("\n")),
        *(f"[rank1]: {line}" for line in (TRACEBACK + own).split("\n")),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Failures:\n[1]:\n  time      : 2025-09-14_10:05:42",
        entry.format(1, 4189),
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-09-14_10:05:42",
        entry.format(0, 4188),
    ]
    causes = {
        found.rank: found.pid for found in transcript.read(SpokenText.of_logs([_log("\n".join(text))]), shows).deaths
    }
    assert causes == {0: 4188, 1: 4189}
    verdict = verdict_of("\n".join(text))
    assert (verdict.cause == "cuda-oom", verdict.first_failure and verdict.first_failure.rank) != (True, 0)


def _log(text: str) -> Log:
    return Log(LogText("log", tuple(text.split("\n"))))
