"""What is made of what NVML says: which GPU a process sees, what is worth a line, how busy whose GPU is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_run.observe.close_look import CloseLook, GpuUse, ProcessState
from ddp_run.observe.gpus import differs, use_of, visible_gpus, wanted
from ddp_run.observe.progress import explain
from ddp_run.observe.stack_text import dumps
from ddp_run.record.events import GpuSampled, LocalRank, MonotonicNs, Rank

NUMBERS = {"GPU-aa11": 0, "GPU-aa22": 1, "GPU-bb33": 2}
GIB = 1 << 30
SAMPLE = GpuSampled(
    at=MonotonicNs(0),
    gpus=(0, 1),
    uuids=("GPU-aa11", "GPU-aa22"),
    used=(10 * GIB, 20 * GIB),
    free=(70 * GIB, 60 * GIB),
    total=(80 * GIB, 80 * GIB),
    busy=(100, 0),
    pids=(41, 42),
    on=(0, 1),
    held=(10 * GIB, 20 * GIB),
    names=("python", "python"),
    members=(Rank(4), Rank(5)),
    own_pids=True,
    ranks=(Rank(4), Rank(5)),
    visible=((0, 1), (0, 1)),
)
HIDDEN = replace(SAMPLE, members=(None, None), own_pids=False, names=("", ""))


@pytest.mark.parametrize(
    ("value", "ordered", "seen"),
    [
        (None, True, (0, 1, 2)),
        (None, False, None),
        ("2,0", True, (2, 0)),
        (" 2 , 0 ", True, (2, 0)),
        ("2,0", False, None),
        ("1,-1,0", True, (1,)),
        ("1,9,0", True, (1,)),
        ("", True, ()),
        ("GPU-bb,GPU-aa11", False, (2, 0)),
        ("GPU-aa", False, None),
        ("GPU-cc", False, None),
        ("MIG-5f1a", True, None),
    ],
)
def test_what_a_process_sees(value: str | None, ordered: bool, seen: tuple[int, ...] | None) -> None:
    assert visible_gpus(value, NUMBERS, ordered=ordered) == seen


@pytest.mark.parametrize(("value", "looked"), [("0", True), ("GPU-aa", True), ("", False), ("-1", False)])
def test_hidden_gpus_are_not_looked_at(value: str, looked: bool) -> None:
    assert wanted({"CUDA_VISIBLE_DEVICES": value}) is looked


@pytest.mark.parametrize(
    ("new", "worth"),
    [
        (SAMPLE, False),
        (replace(SAMPLE, at=MonotonicNs(299 * 10**9)), False),
        (replace(SAMPLE, at=MonotonicNs(300 * 10**9)), True),
        (replace(SAMPLE, busy=(0, 100)), False),
        (replace(SAMPLE, used=(10 * GIB + (500 << 20), 20 * GIB)), False),
        (replace(SAMPLE, used=(12 * GIB, 20 * GIB)), True),
        (replace(SAMPLE, pids=(41, 43)), True),
        (replace(SAMPLE, on=(0, 0)), True),
        (replace(SAMPLE, ranks=(Rank(4),), visible=((0, 1),)), True),
    ],
)
def test_what_is_worth_a_line(new: GpuSampled, worth: bool) -> None:
    assert differs(SAMPLE, new) is worth


def test_how_busy_a_ranks_gpu_is() -> None:
    assert use_of(SAMPLE, Rank(5), LocalRank(0)) == (GpuUse(Rank(5), 1, 0),)
    assert use_of(HIDDEN, Rank(5), LocalRank(1)) == (GpuUse(Rank(5), 1, 0, sure=False),)
    assert use_of(HIDDEN, Rank(5), LocalRank(2)) == ()
    assert use_of(replace(HIDDEN, visible=(None, None)), Rank(5), LocalRank(1)) == ()
    assert use_of(replace(SAMPLE, busy=(None, None)), Rank(5), LocalRank(1)) == ()


def _look(rank: int, function: str) -> CloseLook:
    text = (
        f'Current thread 0x0000000000000001 (most recent call first):\n  File "/job/train.py", line 9 in {function}\n'
    )
    stack = dumps(text, 1)[-1]
    return CloseLook(Rank(rank), ProcessState.SLEEPING, stack, stack, on_lock=True, still_s=300.0)


def test_a_stall_says_how_busy_the_gpus_are() -> None:
    use = (GpuUse(Rank(0), 0, 100), GpuUse(Rank(1), 3, 0), GpuUse(Rank(2), 3, 0))
    looks = [_look(0, "step"), _look(1, "step")]
    at = MonotonicNs(300 * 10**9)
    stall = explain(looks, {}, MonotonicNs(0), at, gpus=use)
    assert stall is not None
    assert stall.quotes[-1] == "GPU 0 at 100 % (rank 0), GPU 3 at 0 % (ranks 1-2)"
    unsure = explain(looks, {}, MonotonicNs(0), at, gpus=(replace(use[0], sure=False),))
    assert unsure is not None
    assert unsure.quotes[-1] == "GPU 0 at 100 % (rank 0) (GPUs assumed from local ranks)"
    silent = explain(looks, {}, MonotonicNs(0), at)
    assert silent is not None
    assert not any("GPU" in quote for quote in silent.quotes)
