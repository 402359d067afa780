"""Lines that a terminal, a mail or a web form has wrapped: joined where single ones give nothing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest

from ddp_run import explain

STEPS = "\n".join(f"step {number} loss {5 / (number + 1):.4f}" for number in range(12))
WATCHDOG = (
    "[rank1]:[E1122 10:00:00.303797152 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=20, NumelOut=20, Timeout(ms)=600000) ran for 600026 milliseconds "
    "before timing out."
)
BARRIER = (
    "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
    "(world_size=4, worker_count=8, timeout=0:30:00)"
)
SHARED = (
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_2_0>: No space left on device (28) while "
    "the batch was handed over"
)


def hard(text: str, width: int) -> str:
    """As a terminal cuts: at the column, wherever that is."""
    return "\n".join(text[start : start + width] for start in range(0, len(text), width))


def filled(text: str, width: int) -> str:
    """As a mail or a web form does: between words."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def quoted(text: str, width: int) -> str:
    return "\n".join(f"> {line}" for line in filled(text, width).split("\n"))


@pytest.mark.parametrize("width", [48, 60, 72, 80])
@pytest.mark.parametrize("wrap", [hard, filled, quoted])
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (WATCHDOG, "nccl-timeout-hang"),
        (BARRIER, "store-reused"),
        (SHARED, "shm-exhausted"),
    ],
)
def test_a_wrapped_line(text: str, cause: str, wrap: object, width: int) -> None:
    assert callable(wrap)
    assert explain(f"{wrap(text, width)}\n").cause == cause


@pytest.mark.parametrize("joined", [" ", "\n", "   \n  "])
def test_a_shortened_summary(joined: str) -> None:
    found = explain(f"{STEPS}\nRoot Cause{joined}[0]: rank 1{joined}exitcode: -6 (SIGABRT)\n")
    first = found.first_failure
    assert (found.outcome, found.cause) == ("failed", "native-abort")
    assert (first and first.rank, first and first.exit_code) == (1, -6)


def test_whole_lines_are_not_joined() -> None:
    for text in (STEPS, "CUDA out\nof memory is what we feared, but\nall went well", "a\nb\nc"):
        assert explain(text).cause is None


OWN_CLASS = """\
Traceback (most recent call last):
  File "/home/me/serving/scheduler.py", line 212, in main_loop
    self.pool.allocate(request.blocks)
  File "/home/me/serving/block_pool.py", line 88, in allocate
    raise OutOfMemoryError(f'cannot give {wanted} blocks to request {name}: only {self.free} of {self.total} are free')
"""


@pytest.mark.parametrize(
    ("last", "cause"),
    [("serving.errors.OutOfMemoryError: cannot give 12 blocks to request a7\n", "python-exception"), ("", "unknown")],
)
def test_joining_does_not_take_a_class_of_ones_own_for_torchs(last: str, cause: str) -> None:
    """The longest line looks cut: joined with the next one, only its `raise` would be left."""
    assert explain(f"{STEPS}\n{OWN_CLASS}{last}").cause == cause


def test_a_quoted_traceback_with_a_reply() -> None:
    frame = '  File "/home/me/fit.py", line {0}, in {1}\n    {1}()\n'
    log = frame.format(3, "main") + frame.format(9, "send") + "TypeError: cannot send a lock\n"
    quotation = "".join(f"> {line}\n" for line in log.splitlines())
    assert explain(f"{quotation}\nwe see this, too\n") == explain(f"{log}\nwe see this, too\n")
    assert explain(f"{quotation}\nwe see this, too\n").cause == "python-exception"


def test_marks_at_a_few_lines_are_no_quotation() -> None:
    """loguru's mark says which frame caught it."""
    frames = '  File "fit.py", line 3, in <module>\n    go()\n> File "fit.py", line 2, in go\n    {}["lr"]\n'
    found = explain(f"Traceback (most recent call last):\n\n{frames}KeyError: 'lr'\n")
    assert found.first_failure is not None
    assert found.first_failure.exception is not None
    assert found.first_failure.exception.traceback is not None
    assert "> File" in found.first_failure.exception.traceback


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(lambda line: line.strip(), id="HTML"),
        pytest.param(lambda line: line.strip().replace("<module>", ""), id="a tag"),
        pytest.param(lambda line: f"[rank1]: {line.strip()}", id="behind a rank"),
        pytest.param(lambda line: f"{line.strip()}\n", id="lines apart"),
        pytest.param(lambda line: re.sub('"(.*?)"', "\u201c\\1\u201d", line), id="quotation marks"),
    ],
)
def test_frames_without_their_indentation_are_still_frames(lost: Callable[[str], str]) -> None:
    lines = (
        *("Traceback (most recent call last):", '  File "/home/u/train.py", line 40, in <module>', "    main()"),
        *('  File "/home/u/train.py", line 31, in main', "    rate = rates[step]", "           ~~~~~^^^^^^"),
        *('  File "<frozen os>", line 679, in __getitem__', "KeyError: 'late'"),
    )
    found = explain("\n".join(map(lost, lines))).first_failure
    assert found is not None
    assert found.exception is not None
    assert (found.exception.type, found.exception.file, found.exception.line) == ("KeyError", "/home/u/train.py", 31)
