"""A log takes time by its length, whatever it holds: CPU seconds for a log four times as long are compared."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.unchanged import slow_if_unchanged

from ddp_run.evidence.model import LogText
from ddp_run.evidence.pasted import transcript
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge.diagnose import judge
from ddp_run.judge.text_signs import shows
from ddp_run.judge.verdict import Verdict

GROWTH = 10.0
"""Linear time takes 4 times as long, n² 16 times."""
NOTHING_S = 0.15
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 88, in step',
    "    loss.backward()",
    "RuntimeError: Expected all tensors to be on the same device, but found {0}",
)


def tracebacks_of_ranks(n: int) -> list[str]:
    return [f"[rank{rank}]: {line.format(rank)}" for rank in range(n) for line in TRACEBACK]


def interleaved_tracebacks_of_ranks(n: int) -> list[str]:
    return [f"[rank{rank}]: {line.format(rank)}" for line in TRACEBACK for rank in range(n)]


def nameless_tracebacks(n: int) -> list[str]:
    return [line.format(number) for number in range(n) for line in TRACEBACK]


def forms_and_tracebacks(n: int) -> list[str]:
    lines = [f"{'x' * (number % 97)}{chr(97 + number % 26)}{hex(number)} loss 0.1" for number in range(n)]
    return [*lines, *lines, *nameless_tracebacks(n)]


def chained(n: int) -> list[str]:
    between = ("", "During handling of the above exception, another exception occurred:", "")
    return [line for number in range(n) for line in (*nameless_tracebacks(1), *between)]


def frames(n: int) -> list[str]:
    return [TRACEBACK[0], *(line for _ in range(n) for line in TRACEBACK[1:3]), TRACEBACK[3]]


def summary(host: int, rank: int) -> list[str]:
    return [
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : 2026-11-21_11:{host % 60:02}:24",
        f"  host      : node{host}",
        f"  rank      : {rank} (local_rank: 0)",
        "  exitcode  : 1 (pid: 19391)",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "=" * 60,
    ]


def boxes_of_hosts(n: int) -> list[str]:
    return [line for host in range(n) for line in summary(host, host)]


def boxes_of_one_host(n: int) -> list[str]:
    return [line for rank in range(n) for line in summary(0, rank)]


def rich_boxes(n: int) -> list[str]:
    box = ("╭──── Traceback (most recent call last) ────╮", "│ /home/me/train.py:88 in step │", "╰────────╯")
    return [line for number in range(n) for line in (*box, f"RuntimeError: {number}")]


def open_rich_boxes(n: int) -> list[str]:
    return ["╭──── Traceback (most recent call last) ────╮", "│ /home/me/train.py:88 in step │"] * n


def open_rich_boxes_with_other_prefixes(n: int) -> list[str]:
    return [f"{chr(97 + k % 26)}{k} ╭──── Traceback (most recent call last) ────╮" for k in range(n)]


def ranges(n: int) -> list[str]:
    return [f"[rank0-4095]: {TRACEBACK[number % 4]}" for number in range(n)]


def other_ranges(n: int) -> list[str]:
    return [f"[rank{number}-4095]: {TRACEBACK[number % 4]}" for number in range(n)]


def srun_tasks(n: int) -> list[str]:
    return [f"srun: error: node{number}: tasks 0-4095: Exited with exit code 1" for number in range(n)]


def orphans(n: int) -> list[str]:
    return [f"ValueError: {number}" for number in range(n)]


def torn(n: int) -> list[str]:
    return [f"ErrorError: : {'a' * 900}b{number}" for number in range(n)]


def headers(n: int) -> list[str]:
    return [f"{'x' * (number % 7)} {TRACEBACK[0]}" for number in range(n)]


def headers_with_prefixes_of_their_own(n: int) -> list[str]:
    return [f"{hex(number).translate(LETTERS)} {line}" for number in range(n) for line in TRACEBACK]


LETTERS = str.maketrans("0123456789", "ghijklmnop")


def syntax_errors(n: int) -> list[str]:
    return ['  File "a.py", line 1', "    x ="] * n


def ncclwarnings(n: int) -> list[str]:
    return [f"node:1:2 [0] misc/socket.cc:1 NCCL WARN {'[' * 20} {number}" for number in range(n)]


def progress(n: int) -> list[str]:
    said = "last enqueued work: 11, last completed work: 10"
    return [f"[rank{rank}]: [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {said}" for rank in range(n)]


def one_long_line(n: int) -> list[str]:
    return ["Traceback (most recent call last): " * n]


def starts(count: int) -> list[str]:
    raised = ["Traceback (most recent call last):", '  File "/a/fit.py", line 3, in <module>', "ValueError: y"]
    again = (each for k in range(count) for each in ("##### round of fitting begins", f"{'xyz'[k % 3]} is next"))
    return ["##### round of fitting begins", *raised, *again]


def nested_json(n: int) -> list[str]:
    return ['{"log":' + "[" * 15_000] * (n // 100)


SHAPES: tuple[tuple[Callable[[int], list[str]], int], ...] = (
    (tracebacks_of_ranks, 200),
    (interleaved_tracebacks_of_ranks, 100),
    (nameless_tracebacks, 1000),
    (forms_and_tracebacks, 1000),
    (chained, 1000),
    (frames, 2000),
    (boxes_of_hosts, 150),
    (boxes_of_one_host, 150),
    (rich_boxes, 1000),
    (open_rich_boxes, 2000),
    (open_rich_boxes_with_other_prefixes, 1000),
    (ranges, 5),
    (other_ranges, 5),
    (srun_tasks, 2),
    (orphans, 2000),
    (torn, 100),
    (headers, 2000),
    (headers_with_prefixes_of_their_own, 1000),
    (syntax_errors, 2000),
    (ncclwarnings, 2000),
    (progress, 250),
    (one_long_line, 1000),
    (nested_json, 100),
    (starts, 2000),
)
QUICK = (frames, orphans, torn, headers, syntax_errors, ncclwarnings)
slow = slow_if_unchanged(__file__)


def marks(shape: Callable[[int], list[str]]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow_system] if shape is other_ranges else [] if shape in QUICK else [slow]


def verdict_of(lines: list[str]) -> Verdict:
    return judge(transcript.read(SpokenText.of_logs([Log(LogText("log", tuple(lines)))]), shows))


def cpu_s(lines: list[str], rounds: int = 1) -> float:
    spent = []
    for _ in range(rounds):
        before = time.thread_time()
        verdict = verdict_of(lines)
        spent.append(time.thread_time() - before)
        assert not [note for note in verdict.notes if " failed: " in note]
    return min(spent)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        # ranges are like other_ranges, and both take seconds
        pytest.param(*each, id=each[0].__name__, marks=marks(each[0]))
        for each in SHAPES
    ],
)
def test_time_grows_with_the_length_of_a_log(shape: Callable[[int], list[str]], size: int) -> None:
    short, long = shape(size), shape(4 * size)
    longer = cpu_s(long)
    if longer < NOTHING_S:
        return
    shorter = cpu_s(short, 2)
    assert longer < GROWTH * shorter or cpu_s(long, 2) < GROWTH * cpu_s(short, 3), f"{shorter:.2f} s, {longer:.2f} s"
