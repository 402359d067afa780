"""The screen of `ddp-run watch`, made of snapshots."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from ddp_run.tell.snapshot import Gpu, Progress, RankRow, Slowest, Snapshot, Told
from ddp_run.tell.watch_frame import Frame, rows_that_fit

JOB = Snapshot(
    time="2026-11-27T20:33:42.332198Z",
    run="20261127-203318-ea86",
    folder="/data/ddp-run-logs/20261127-203318-ea86",
    host="node-a",
    command="train.py --epochs 3",
    state="running",
    attempt=1,
    attempts_allowed=3,
    elapsed_s=248.0,
    world_size=2,
    steps_per_s=2.1,
    slowest=None,
    progress=None,
    ranks=(),
    told=(),
)


def rank(number: int, step: int = 120, line: str = "", phase: str = "training", **known: object) -> RankRow:
    return replace(RankRow((number,), phase, step, 2.1, 0, 240, 5 << 30, (), 0.4, line), **known)  # type: ignore[arg-type]


def shown(job: Snapshot, width: int = 80, height: int = 24, rows: int | None = None) -> list[str]:
    """The lines on a terminal of that size, without the blanks at their ends."""
    file = io.StringIO()
    Console(file=file, width=width, height=height, color_system=None, highlight=False).print(Frame(job, rows))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_whole_screen() -> None:
    job = replace(
        JOB,
        ranks=(rank(0, line="step 120 loss 0.2"), rank(1, 118, "step 118 loss 0.2", behind=2, line_age_s=75.0)),
        slowest=Slowest(1, "2 steps behind"),
        progress=Progress(120, 500, 181.0),
        told=(Told(61.0, "progress resumed after 31 s"),),
    )
    assert shown(job, 100) == [
        "20261127-203318-ea86 on node-a: running, attempt 2 of 3, 4m08s   train.py --epochs 3",
        "2 ranks, step 118, 2.1 steps/s, slowest: rank 1 (2 steps behind), printed: 120/500, 3m01s left",
        "",
        "RANK  PHASE     STEP   RATE  BEHIND  MEMORY    AGE  LAST LINE",
        "0     training   120  2.1/s            5.0G   0.4s  step 120 loss 0.2",
        "1     training   118  2.1/s       2    5.0G  1m15s  step 118 loss 0.2",
        "",
        "1m01s ago: progress resumed after 31 s",
    ]


def test_before_any_rank() -> None:
    waiting = replace(JOB, ranks=(), world_size=None, steps_per_s=None, attempt=None, note="from here only files")
    assert shown(waiting)[1:] == ["no rank has started", "from here only files"]


def test_ranks_that_show_the_same_share_a_row() -> None:
    alike = [rank(number, line="epoch 1") for number in range(8)]
    alike[3] = replace(alike[3], memory_bytes=7 << 30, steps_per_s=1.9, line_age_s=9.0)
    alike[5] = replace(alike[5], line="epoch 1, validation")
    assert shown(replace(JOB, ranks=tuple(alike)))[4:] == [
        "0-4,6-7  training   120  1.9/s    7.0G  0.4s  epoch 1",
        "5        training   120  2.1/s    5.0G  0.4s  epoch 1, validation",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 12), (40, 6), (200, 60), (20, 3)])
def test_512_ranks_fit_any_screen(width: int, height: int) -> None:
    """Each with its own line, one behind, and a long text of ddp-run: nothing is wrapped or pushed out."""
    ranks = [rank(number, 100 + number % 3, f"sample {number}") for number in range(512)]
    ranks[77] = replace(ranks[77], step=90, behind=12)
    told = tuple(Told(3.0, f"{number} no progress: " + "words " * 30) for number in range(9))
    job = replace(JOB, world_size=512, ranks=tuple(ranks), told=told, command="train.py " * 90)
    lines = shown(job, width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 6)
    if height > 6:
        assert [line.split()[0] for line in lines if " 90 " in line] == ["77"], "the slowest stands alone"


def test_the_last_row_has_those_in_front() -> None:
    rows = rows_that_fit([rank(number, 1000 - number, f"{number}") for number in range(512)], 10)
    assert len(rows) == 10
    assert [row.ranks for row in rows[:3]] == [(511,), (510,), (509,)]
    assert rows[-1].ranks == tuple(range(503))
    assert rows[-1].step == 498
    apart = rows_that_fit([rank(0, phase="init"), rank(1), rank(2, phase="exit 1")], 2)
    assert [row.phase for row in apart] == ["init", "2 phases"]


def test_narrow_terminals_give_up_columns() -> None:
    busy = rank(0, line="step 120 loss 0.123456789", gpus=(Gpu(0, 71 << 30, 98), Gpu(1, None, None)), behind=3)
    columns = {width: shown(replace(JOB, ranks=(busy,)), width)[3].split() for width in (120, 80, 64, 52)}
    assert columns[120] == ["RANK", "PHASE", "STEP", "RATE", "BEHIND", "MEMORY", "GPU", "AGE", "LAST", "LINE"]
    assert columns[80] == [name for name in columns[120] if name != "GPU"]
    assert columns[64] == [name for name in columns[80] if name != "MEMORY"]
    assert columns[52] == ["RANK", "PHASE", "STEP", "RATE", "LAST", "LINE"]
    assert "0:71.0G 98%, 1:" in shown(replace(JOB, ranks=(busy,)), 120)[4]


def test_lines_of_programs_are_no_markup() -> None:
    job = replace(JOB, ranks=(rank(0, line="[red]a[/red] :smile: [link=x]b"),), command="[bold]t.py")
    assert "[red]a[/red] :smile: [link=x]b" in shown(job, 120)[4]
    assert shown(job)[0].endswith("[bold]t.py")


def test_json_has_each_rank() -> None:
    found = replace(JOB, ranks=(rank(0), rank(1))).as_json()
    ranks = found["ranks"]
    assert isinstance(ranks, list)
    assert [each["rank"] for each in ranks] == [0, 1]
    assert not {"ranks"} & {*ranks[0]}
