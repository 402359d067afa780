"""When an answer for a pasted log is certain: not where the text shows another cause, or that somebody went on."""

from __future__ import annotations

import pytest

from ddp_run import explain

_FRAMES = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    {source}\n'
_STEPS = "".join(f"step {step} loss {9 - step}.5\n" for step in range(20))
_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
_LIMIT = "slurmstepd: error: *** JOB 7 ON node-1 CANCELLED AT 2025-10-01T10:10:20 DUE TO TIME LIMIT ***"
_MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.json'"
_GOES_ON = "".join(f"file {chr(97 + number)} was written\n" for number in range(16))
_FULL = "OSError: [Errno 28] No space left on device: '/tmp/x'\n"
_ENDED_WELL = f"{_LIMIT}\nloading the checkpoint\nJob completed\nbye\n"
_CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"


def raised(said: str, source: str = "main()") -> str:
    """A traceback of the user's own script."""
    return f"{_FRAMES.format(source=source)}{said}\n"


@pytest.mark.parametrize(
    ("text", "cause", "confidence"),
    [
        pytest.param(raised(_OOM), "cuda-oom", "certain", id="one cause"),
        pytest.param(_FULL + raised(_OOM), "cuda-oom", "likely", id="two"),
        pytest.param(raised(_OOM) + raised(_MISSING), "file-not-found", "likely", id="two exceptions"),
        pytest.param(f"{_STEPS}{_LIMIT}\n", "preempted-sigterm", "certain", id="a scheduler's word at the end"),
        pytest.param(_ENDED_WELL, None, "unknown", id="a job that ended well"),
        pytest.param(
            f"{_LIMIT}\n{_GOES_ON}",
            "preempted-sigterm",
            "likely",
            id="somebody went on",
        ),
        pytest.param(raised("KeyError: 'labels'"), "python-exception", "certain", id="a plain mistake"),
        pytest.param(raised("RuntimeError: labels out of order"), "python-exception", "likely", id="an operator's"),
        pytest.param(
            raised("RuntimeError: labels out of order", "raise RuntimeError(why)"),
            "python-exception",
            "certain",
            id="own words",
        ),
        pytest.param(raised("OSError: handle is closed"), "python-exception", "likely", id="the system's"),
        pytest.param(raised("my.own.BuildFailed: bad flag"), "python-exception", "likely", id="a class of one's own"),
        pytest.param(
            raised("KeyError: 'cached'") + _CHAIN + raised("ValueError: bad shard"),
            "python-exception",
            "likely",
            id="a chain",
        ),
        pytest.param(
            raised("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"),
            "dataloader-worker-died",
            "likely",
            id="a worker that somebody ended",
        ),
        pytest.param(
            raised("ValueError: Default process group has not been initialized, please make sure to call it."),
            "process-group-misuse",
            "likely",
            id="a group that something else prevented",
        ),
    ],
)
def test_certainty(text: str, cause: str | None, confidence: str) -> None:
    found = explain(text)
    assert (found.cause, found.confidence) == (cause, confidence), found.title


def test_who_only_lost_a_peer_is_no_other_cause() -> None:
    lost = "torch.distributed.DistBackendError: NCCL error, remote process exited or there was a network error"
    told = "".join(f"[rank{rank}]: {line}\n" for rank in (0, 1) for line in raised(lost).splitlines())
    failed = "".join(f"[rank2]: {line}\n" for line in raised(_OOM).splitlines())
    found = explain(failed + told)
    assert (found.cause, found.confidence) == ("cuda-oom", "certain")
