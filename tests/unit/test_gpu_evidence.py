"""From samples of the GPUs to what a verdict says of a GPU whose memory ran out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_run.evidence.gather import gather
from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.rules import cuda_oom
from ddp_run.judge.verdict import Finding
from ddp_run.record.events import (
    AttemptStarted,
    Event,
    ExceptionInfo,
    GpuSampled,
    LocalRank,
    MonotonicNs,
    Rank,
    RankExited,
    RankFailed,
    RankStarted,
    RunStarted,
)

GIB = 1 << 30
SECOND = 10**9
PIDS = {0: 40, 1: 41}
# (pid, GPU, GiB, rank)
Process = tuple[int, int, float, int | None]
OURS: tuple[Process, ...] = ((40, 0, 25.0, 0), (41, 0, 14.0, 1))
APART: tuple[Process, ...] = ((40, 0, 25.0, 0), (41, 1, 78.5, 1))
STRANGER: tuple[Process, ...] = ((41, 1, 50.0, 1), (4242, 1, 29.0, None))


def numbers(free: str, own: str | None, others: str = "", *, gpu: int = 0, idle: str = "98.41 MiB") -> str:
    """As torch 2.4 and newer words it."""
    own = f"Including non-PyTorch memory, this process has {own} memory in use. " if own else ""
    return (
        f"CUDA out of memory. Tried to allocate 512.00 MiB. GPU {gpu} has a total capacity of 80.00 GiB of which "
        f"{free} is free. {others}{own}Of the allocated memory 13.00 GiB is allocated by PyTorch, with 1.00 GiB "
        f"allocated in private pools (e.g., CUDA Graphs), and {idle} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )


def sampled(
    at_s: float,
    processes: Sequence[Process],
    *,
    free: Sequence[float] = (41.0, 0.2),
    own_pids: bool = True,
    visible: tuple[int, ...] | None = (0, 1),
) -> GpuSampled:
    return GpuSampled(
        at=MonotonicNs(round(at_s * SECOND)),
        gpus=(0, 1),
        uuids=("GPU-aaaa1111-2222", "GPU-bbbb1111-2222"),
        used=tuple(round((80 - each) * GIB) for each in free),
        free=tuple(round(each * GIB) for each in free),
        total=(80 * GIB, 80 * GIB),
        busy=(0, 0),
        pids=tuple(pid for pid, *_ in processes),
        on=tuple(on for _, on, *_ in processes),
        held=tuple(round(held * GIB) for _, _, held, _ in processes),
        names=tuple("python" if own_pids else "" for _ in processes),
        members=tuple(Rank(rank) if rank is not None and own_pids else None for *_, rank in processes),
        own_pids=own_pids,
        ranks=(Rank(0), Rank(1)),
        visible=(visible, visible),
    )


def events(message: str, *samples: GpuSampled) -> list[Event]:
    """Rank 1 fails 100 s after its start and is gone 2 s later; rank 0 follows."""
    raised = ExceptionInfo("torch.OutOfMemoryError", message, "train.py", 9, "step", "")
    run = RunStarted(MonotonicNs(1), SECOND, "id", "here", 0, 1, ("train.py",), 0, "by-cause", 30.0, 0, "0")
    begun: list[Event] = [run, AttemptStarted(MonotonicNs(2), 0, (), None)]
    begun += [
        RankStarted(MonotonicNs(3), Rank(rank), LocalRank(rank), 0, pid, 2, 2, f"attempt_0/rank_{rank}")
        for rank, pid in PIDS.items()
    ]
    ended: list[Event] = [
        RankFailed(MonotonicNs(100 * SECOND), Rank(1), 0, 1, raised),
        RankExited(MonotonicNs(102 * SECOND), Rank(1), 0, 1),
        RankExited(MonotonicNs(103 * SECOND), Rank(0), 0, -15),
    ]
    return [*begun, *samples, *ended]


def found(folder: Path, message: str, *samples: GpuSampled) -> tuple[Finding, Death, Evidence]:
    evidence = gather(folder, events(message, *samples), 0)
    death = evidence.deaths[0]
    assert death.rank == 1
    finding = cuda_oom.match(death, evidence)
    assert finding is not None
    return finding, death, evidence


def test_the_look_that_still_shows_the_rank(tmp_path: Path) -> None:
    before, after = sampled(92, APART), sampled(101, APART[:1])
    _finding, death, _evidence = found(tmp_path, numbers("0.20 GiB", "78.50 GiB", gpu=1), before, after)
    assert death.gpus is not None
    assert (death.gpus.at, death.gpus.age_s) == (92 * SECOND, 8.0)
    _finding, death, _evidence = found(tmp_path, numbers("0.20 GiB", "78.50 GiB", gpu=1), after)
    assert death.gpus is not None
    assert death.gpus.age_s == -1.0


def test_no_look_at_all(tmp_path: Path) -> None:
    finding, death, _evidence = found(tmp_path, numbers("0.20 GiB", "78.50 GiB", gpu=1))
    assert death.gpus is None
    assert finding.cause == "rank 1 ran out of GPU memory allocating 512.00 MiB on GPU 1: 204.8 MiB of 80 GiB were free"
    assert not any(quote.source == "gpu" for quote in finding.evidence)


def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    text = numbers("41.00 GiB", "14.00 GiB", "Process 40 has 25.00 GiB memory in use. ")
    for samples in ((sampled(100.1, OURS),), ()):  # torch names the process; whose it is the journal knows
        finding, _death, _evidence = found(tmp_path, text, *samples)
        assert finding.cause.endswith("on GPU 0: 41 GiB of 80 GiB were free, rank 0 held 25 GiB")
        assert 'set_device(int(os.environ["LOCAL_RANK"]))   # one GPU per rank: ranks 0-1 share' in finding.advice[0]
        assert finding.retry is not None
        assert not finding.retry.helps
        shown = [quote.text for quote in finding.evidence if quote.source == "gpu"]
        assert shown == [
            "GPU 0 (GPU-aaaa1111): 41.0 GiB of 80.0 GiB free 0.1 s after it failed; rank 0 25.0 GiB; rank 1 14.0 GiB"
        ] * len(samples)


def test_a_process_that_is_no_rank(tmp_path: Path) -> None:
    text = numbers("0.20 GiB", "50.00 GiB", "Process 4242 has 29.00 GiB memory in use. ", gpu=1)
    finding, _death, _evidence = found(tmp_path, text, sampled(99, STRANGER))
    assert finding.cause.endswith("204.8 MiB of 80 GiB were free, process 4242 (python) held 29 GiB")
    assert finding.advice[0].startswith("ps -o pid,user,lstart,args -p 4242 ")
    assert finding.retry is not None
    assert finding.retry.helps
    without, _death, _evidence = found(tmp_path, text)
    assert without.cause.endswith("process 4242 held 29 GiB")


def test_an_error_without_numbers_takes_those_of_the_gpu(tmp_path: Path) -> None:
    text = "CUDA error: out of memory"
    finding, _death, _evidence = found(tmp_path, text, sampled(99, STRANGER))
    assert finding.cause == (
        "rank 1 ran out of GPU memory: 204.8 MiB of 80 GiB were free, process 4242 (python) held 29 GiB"
    )
    early, _death, _evidence = found(tmp_path, text, sampled(90, STRANGER))  # as it was then, not when it failed
    assert (early.cause, early.retry) == ("rank 1 ran out of GPU memory", None)
    assert "10.0 s before it failed; rank 1 50.0 GiB; process 4242 (python) 29.0 GiB" in early.evidence[-1].text
    # on two GPUs, and torch does not say which
    both, _death, _evidence = found(tmp_path, text, sampled(99, (*STRANGER, (41, 0, 9.0, 1))))
    assert (both.cause, both.evidence) == ("rank 1 ran out of GPU memory", ())
    hidden, _death, _evidence = found(tmp_path, text, sampled(99, (), own_pids=False))
    assert hidden.cause == "rank 1 ran out of GPU memory"
    assert hidden.evidence[-1].text.endswith("(this rank's GPU according to its environment)")


def test_the_numbers_of_another_pid_namespace_name_nobody(tmp_path: Path) -> None:
    """The process that torch names is this very rank, under the number that it has on the host."""
    text = numbers("0.20 GiB", None, "Process 917744 has 79.50 GiB memory in use. ", gpu=1)
    hidden = sampled(100, ((917744, 1, 79.5, None),), own_pids=False)
    finding, _death, _evidence = found(tmp_path, text, hidden)
    assert "917744" not in finding.cause + str(finding.advice)
    shown = finding.evidence[-1].text
    assert "917744" not in shown
    assert "1 process on it (pids of another pid namespace)" in shown
    assert shown.endswith("(this rank's GPU according to its environment)")


def test_which_gpu_torch_means(tmp_path: Path) -> None:
    """Torch numbers what the process sees, and a program may change what that is; where it holds memory is certain."""

    def shown(number: int, processes: Sequence[Process], visible: tuple[int, ...] | None) -> str:
        text = numbers("0.20 GiB", "50.00 GiB", gpu=number)
        finding, _death, _evidence = found(tmp_path, text, sampled(100, processes, visible=visible))
        return finding.evidence[-1].text if finding.evidence else ""

    both: tuple[Process, ...] = ((41, 0, 0.5, 1), (41, 1, 50.0, 1))
    assert shown(0, STRANGER, (0, 1)).startswith("GPU 1 ")
    assert shown(0, both, (1, 0)).startswith("GPU 1 ")
    assert shown(0, both, None) == ""
    assert shown(0, (), (1,)).startswith("GPU 1 ")
    assert shown(1, (), (1,)) == ""


def test_memory_that_nvml_does_not_know(tmp_path: Path) -> None:
    text = numbers("0.20 GiB", "50.00 GiB", "Process 4242 has 17179869184.00 GiB memory in use. ", gpu=1)
    finding, _death, _evidence = found(tmp_path, text)
    assert finding.cause.endswith("204.8 MiB of 80 GiB were free, other processes held 29.8 GiB")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (numbers("5.00 GiB", "75.00 GiB", idle="7.61 GiB"), "5 GiB of 80 GiB were free, torch held 7.61 GiB unused"),
        (
            numbers("40.00 GiB", "40.00 GiB").replace("is free. ", "is free. 40.00 GiB allowed; "),
            "40 GiB of 80 GiB were free, 40 GiB allowed",
        ),
        (numbers("5.00 GiB", "75.00 GiB").replace("CUDA out", "Out"), "5 GiB of 80 GiB were free"),
        (
            numbers("5.00 GiB", None).replace("CUDA out", "HIP out").replace("13.00", "70.00"),
            "5 GiB of 80 GiB were free",
        ),
    ],
    ids=["fragmented", "fraction", "newest", "rocm"],
)
def test_torchs_words(tmp_path: Path, text: str, said: str) -> None:
    finding, _death, _evidence = found(tmp_path, text)
    assert finding.cause.startswith("rank 1 ran out of GPU memory allocating 512.00 MiB on GPU 0")
    assert finding.cause.endswith(said)


def test_a_pid_of_another_host_is_nobody_here() -> None:
    text = numbers("0.20 GiB", "50.00 GiB", "Process 40 has 29.00 GiB memory in use. ")
    raised = ExceptionInfo("torch.OutOfMemoryError", text)
    death, other = Death(Rank(1), pid=41, host="a", code=1, exception=raised), Death(Rank(0), pid=40, host="b", code=1)
    finding = cuda_oom.match(death, Evidence(deaths=(death, other), logs_only=True))
    assert finding is not None
    assert "process 40 held 29 GiB" in finding.cause
    here = cuda_oom.match(death, Evidence(deaths=(death, replace(other, host="a")), logs_only=True))
    assert here is not None
    assert "rank 0 held 29 GiB" in here.cause
