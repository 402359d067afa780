"""What shows that a program went on after an error in its text, and what does not."""

from __future__ import annotations

import pytest

from ddp_run.evidence.went_on import WentOn, form_of, shows_life
from ddp_run.evidence.windows import LEAVING, VERY_LAST

ERROR = "disk quota exceeded on /data"
STEPS = [f"iteration {number} took {number / 7:.2f} s" for number in range(12)]
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 7, in main',
    "    read(name)",
    "ValueError: no such sample",
]


def bars(count: int, of: int = 90) -> list[str]:
    return [f"epoch 3:  {number}%|##   | {number}/{of} [00:0{number}<01:11, 1.2it/s]" for number in range(count)]


def new(count: int) -> list[str]:
    """Lines of different forms, without numbers."""
    words = ("alpha", "beta", "gamma", "delta", "theta", "kappa")
    return [f"reading {words[number % 6]}{'-' * (number // 6)}" for number in range(count)]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(STEPS[:3], id="steps"),
        pytest.param(bars(3), id="a bar"),
        pytest.param([*bars(3), *bars(3)], id="a bar of the next epoch"),
        pytest.param(["falling back to /tmp", "writing"], id="words for another way"),
        pytest.param(["writing to /scratch instead", "writing"], id="instead"),
        pytest.param(["checkpoint 7 saved"], id="work that was done"),
        pytest.param(new(VERY_LAST), id="much new text"),
    ],
)
def test_a_line_that_was_survived(after: list[str]) -> None:
    assert WentOn([ERROR, *after]).after_line(0)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([], id="nothing"),
        pytest.param(STEPS[:2], id="other ranks may still write two steps"),
        pytest.param(bars(2), id="a bar drawn again at the end"),
        pytest.param(["loaded the model"] * 4, id="a line that all ranks print"),
        pytest.param([f"[rank0]:[W1122 store.cpp:12] try {number}" for number in range(9)], id="torch's own log"),
        pytest.param([f"W1122 10:00:0{number} 71 api.py:9] signal" for number in range(9)], id="the agent's"),
        pytest.param([f"/lib/libx.so(+0x1f{number}0) [0x7f0a12{number}4c0]" for number in range(9)], id="frames"),
        pytest.param([f"rank {number}: cleanup done" for number in range(9)], id="leaving"),
        pytest.param(["trying again"], id="a last attempt"),
        pytest.param(["cannot continue", "writing"], id="no way"),
        pytest.param(["cleaning up", "done"], id="done, but not what"),
        pytest.param(["expected 3 files but found 2 instead", "writing"], id="what was found instead"),
        pytest.param(["Job finished at Mon May 3"], id="what a script prints in any case"),
        pytest.param(["srun: error: node-a: task 0: Exited", *new(VERY_LAST - 1)], id="few new lines"),
    ],
)
def test_a_line_that_may_be_the_last(after: list[str]) -> None:
    assert not WentOn([ERROR, *after]).after_line(0)


def test_what_others_wrote_does_not_count() -> None:
    lines = [ERROR, *STEPS[:6], *bars(4)]
    assert WentOn(lines).after_line(0)
    silent = WentOn(lines, silent=set(range(1, len(lines))))
    assert not silent.after_line(0) and silent.progress == -1


def test_where_the_last_progress_is() -> None:
    assert WentOn([*STEPS[:5], ERROR]).progress == 4
    assert WentOn([*STEPS[:2], ERROR]).progress == -1
    assert WentOn([*bars(5), ERROR]).progress == 1  # the end draws the last ones again


@pytest.mark.parametrize(
    ("before", "after", "went_on"),
    [
        ([], [], False),
        (["batch 1 read", "batch 1 sent"], ["batch 2 read", "batch 2 sent", "batch 3 read"], True),
        (["batch 1 read", "batch 1 sent"], ["batch 2 read", "batch 2 sent"], False),
        (["batch 1 read", "skipping a bad batch"], ["batch 2 read"], True),
        (["skipping a bad batch"], ["batch 2 read"], False),
        ([], STEPS[:5], True),
        ([], STEPS[:4], False),
        ([], bars(3), True),
        ([], [f"INFO {line}" for line in new(VERY_LAST)], True),
        ([], [f"INFO {line}" for line in new(VERY_LAST - 1)], False),
        (TRACEBACK, TRACEBACK, False),
    ],
)
def test_an_exception(before: list[str], after: list[str], went_on: bool) -> None:
    start = len(before)
    lines = [*before, *TRACEBACK, *after]
    assert WentOn(lines).after(start, start + 3, start + 4) is went_on


def test_a_job_that_was_told_to_stop_may_write_for_a_while() -> None:
    assert not WentOn([ERROR, *new(LEAVING - 1)]).after_stop(0)
    assert WentOn([ERROR, *new(LEAVING)]).after_stop(0)
    assert not WentOn([ERROR, "checkpoint saved"]).after_stop(0)
    assert WentOn([ERROR, "Training has finished"]).after_stop(0)
    assert not WentOn(["Training has finished", ERROR]).after_stop(1)


def test_an_abort_with_its_own_reason() -> None:
    own = ["terminate called after throwing an instance of 'std::out_of_range'", "  what():  vocabulary"]
    assert WentOn([ERROR, "reading", *own]).before_abort(0)
    assert not WentOn([ERROR, *own]).before_abort(0)
    assert not WentOn([ERROR, *own, "reading"]).before_abort(0)
    assert WentOn([ERROR, *own]).may_be_over(0)
    assert not WentOn([*own, ERROR]).may_be_over(2)
    assert WentOn([f"WARNING {ERROR}"]).may_be_over(0)


def test_forms() -> None:
    assert form_of(STEPS[1]) == form_of(STEPS[2]) == "iteration 0 took 0 s"
    assert shows_life(STEPS[1])
    assert not any(map(shows_life, ["", "  indented", "ERROR: no", "W1122 10:00:00 x", "frame #1: main", TRACEBACK[0]]))


@pytest.mark.parametrize(
    "lines",
    [pytest.param(STEPS[:5], id="steps"), pytest.param(bars(5), id="bars")],
)
def test_between_two_lines(lines: list[str]) -> None:
    """Three lines that differ show progress; those at the two places don't count."""
    went_on = WentOn([ERROR, *lines, ERROR])
    assert went_on.between(0, 6)
    assert went_on.between(2, 6)
    assert went_on.between(0, 4)
    assert not went_on.between(3, 6)
    assert not went_on.between(0, 3)
    assert not went_on.between(6, 9)
    assert not WentOn([ERROR, ERROR]).between(0, 1)
