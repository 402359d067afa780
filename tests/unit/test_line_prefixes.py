"""Who wrote a line, by what launchers and collectors put before it."""

from __future__ import annotations

import json

import pytest

from ddp_run.evidence.pasted.json_lines import key_of, unfolded
from ddp_run.evidence.pasted.line_prefixes import assign, without_colour

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/user/train.py", line 5, in step',
    "    loss.backward()",
    "RuntimeError: no",
)


@pytest.mark.parametrize(
    ("line", "ranks", "words"),
    [
        ("[rank3]: KeyError: 'x'", (3,), "KeyError: 'x'"),
        ("[default1]:[rank9]: KeyError: 'x'", (9,), "KeyError: 'x'"),
        ("[default1]:KeyError: 'x'", (1,), "KeyError: 'x'"),
        ("[rank0-2,7]: step 1", (0, 1, 2, 7), "step 1"),
        ("[pod/trainer-worker-0/pytorch] [rank3]: no", (3,), "no"),
        ("worker-1  | [rank3]: no", (3,), "no"),
        ("2026-11-21T08:15:07.123456789Z stderr F [rank3]: no", (3,), "no"),
        ("Rank 4: no", (4,), " no"),
        ("[E ProcessGroupNCCL.cpp:456] [Rank 5] Watchdog caught collective operation timeout", (5,), None),
        ("step 3 of 9: loss 0.1", (), "step 3 of 9: loss 0.1"),
        ("tensor([1, 2]): 3", (), "tensor([1, 2]): 3"),
    ],
)
def test_names_of_ranks(line: str, ranks: tuple[int, ...], words: str | None) -> None:
    (text,), (writer,) = assign([line])
    assert writer.ranks == ranks
    assert words is None or text[writer.start :] == words


def test_srun_labels_are_ranks() -> None:
    texts, writers = assign([f"{task}: {line}" for line in TRACEBACK for task in (3, 12)])
    assert texts[::2] == list(TRACEBACK)
    assert {each.ranks for each in writers[::2]} == {(3,)}
    assert {each.ranks for each in writers[1::2]} == {(12,)}


@pytest.mark.parametrize("line", ["1: from torch.distributed.elastic.agent", "1: [rank9]: KeyError: 'x'"])
def test_srun_labels_of_agents_are_no_ranks(line: str) -> None:
    _, writers = assign([*(f"1: {line}" for line in TRACEBACK), line])
    assert writers[0].ranks == ()
    assert writers[0].place == "1"


def test_srun_labels_behind_a_host() -> None:
    lines = [f"gpu{host}: {host}: {line}" for line in TRACEBACK for host in (4, 5)]
    texts, writers = assign([*lines, *(["srun: error: gpu4: task 4: Exited with exit code 1"] * 5)])
    assert texts[: len(lines) : 2] == list(TRACEBACK)
    assert {each.ranks for each in writers[1 : len(lines) : 2]} == {(5,)}
    numbered = assign([f"gpu4: {line}" for line in (*TRACEBACK, "12: the answer")])
    assert (numbered[0][-1], numbered[1][-1].ranks) == ("12: the answer", ())


def test_a_number_before_a_colon_is_no_task_where_few_lines_have_one() -> None:
    assert {each.ranks for each in assign([*TRACEBACK, "12: the answer", "13: another"])[1]} == {()}


@pytest.mark.parametrize("gap", ["", " "])
def test_mpirun_tags(gap: str) -> None:
    """Open MPI 4 puts the words right behind the tag, 5 a blank between; a frame's own two blanks stay."""
    texts, writers = assign([f"[1,{rank}]<stderr>:{gap}{line}" for line in TRACEBACK for rank in (0, 1)])
    assert texts[1::2] == list(TRACEBACK)
    assert {each.ranks for each in writers[1::2]} == {(1,)}


def test_what_stands_before_every_line_is_taken_off() -> None:
    hosts = [f"{host}: 2026-11-21T08:15:07Z > {line}" for line in TRACEBACK for host in ("node-a", "node-b")]
    assert assign(hosts)[0][::2] == list(TRACEBACK)
    assert [each.place for each in assign(hosts)[1][:2]] == ["node-a", "node-b"]


def test_what_the_program_itself_writes_stays() -> None:
    """A time before some lines is the program's own; so is what tells of the kernel or the agent."""
    logged = [f"2026-11-21 08:15:0{second},123 INFO train: step" for second in range(9)]
    assert assign([*logged, *TRACEBACK])[0] == [*logged, *TRACEBACK]
    kernel = [f"Nov 21 08:15:0{second} node-a kernel: oom-kill: task=python" for second in range(9)]
    assert assign(kernel)[0] == kernel
    group = ["  + Exception Group Traceback (most recent call last):", '  |   File "/a.py", line 3, in f', "  | E: two"]
    assert assign(group)[0] == group


def test_the_agents_lines() -> None:
    lines = [
        "E1121 08:31:03.813000 958 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1)",
        "WARNING:torch.distributed.run:",
        "W1121 08:34:10.582000 3118 torch/distributed/run.py:803] *****************************************",
        "from torch.distributed.elastic import agent",
    ]
    assert [each.agent for each in assign(lines)[1]] == [True, True, True, False]


def test_lines_within_json() -> None:
    assert unfolded('{"log": "KeyError: 1\\n", "stream": "stderr", "time": "2026"}') == ["KeyError: 1"]
    record = '{"event": "failed", "exception": "Traceback (most recent call last):\\n  File \\"a.py\\", line 3, in f"}'
    assert unfolded(record)[1:] == ["Traceback (most recent call last):", '  File "a.py", line 3, in f']
    for line in ('{"loss": 0.1}', '{"log": 3', "Traceback (most recent call last):", '{"log": "x"}'):
        assert unfolded(line) == [line]


def test_colours_and_line_ends() -> None:
    assert without_colour("\x1b[31mno\x1b[0m\x00\r") == "no"


def test_a_collectors_records_are_the_lines_that_they_hold() -> None:
    said = ["step 1", "Traceback (most recent call last):", '  File "a.py", line 3, in f', "    f()", "KeyError: 1"]
    records = [json.dumps({"ts": 7, "message": line}) for line in said]
    key = key_of(records)
    assert key == "message"
    assert [part for record in records for part in unfolded(record, key)] == said
    logged = '{"level": "info", "ts": 1766000010.5, "message": "step", "loss": 0.5, "ok": true, "rank": 3}'
    assert unfolded(logged, key) == ["[rank3]: step loss=0.5"]
    assert unfolded('{"message": "failed", "error": {"why": "KeyError: 1", "at": "noon"}}', key) == [
        "failed",
        "KeyError: 1",
    ]
    for others in (said, records[:3], [*said, *records], ['{"step": 1}'] * 9, ['{"message": 1}'] * 9, ["{"] * 9):
        assert key_of(others) is None


def test_numbers_before_all_lines_are_no_part_of_them() -> None:
    said = ["step 1", "Traceback (most recent call last):", '  File "a.py", line 3, in f', "    f()", "", "KeyError: 1"]
    for form in ("{:6d}\t{}", "{:4d}  {}", "{}:{}", "{} {}"):
        numbered = [form.format(number, line) for number, line in enumerate(said * 3, 8)]
        assert assign(numbered)[0] == said * 3
    tasks = [f"{k % 4}: {line}" for k, line in enumerate(said * 4)]
    assert [each.task for each in assign(tasks)[1]][:3] == [0, 1, 2]
