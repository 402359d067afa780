"""A traceback in the block: the user's own frames, the innermost one, the message; libraries' frames are counted."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.test_console_verdict import FAILED, FIRST, LOG, block

from ddp_run.evidence.model import Quote
from ddp_run.record.events import ExceptionInfo
from ddp_run.tell.quotation import short


def frame(file: str, line: int, source: str) -> list[str]:
    return [f'  File "{file}", line {line}, in f', f"    {source}", "    ^^^^"]


def library(name: str, count: int) -> list[str]:
    return [each for line in range(count) for each in frame(f"/env/lib/python3.11/site-packages/{name}", line, "g()")]


LONG = [
    "Traceback (most recent call last):",
    *frame("/home/me/train.py", 9, "main()"),
    *frame("/home/me/train.py", 88, "trainer.fit()"),
    *library("lightning/trainer.py", 20),
    *library("torch/nn/module.py", 5),
    *frame("/home/me/model.py", 12, "self.layer(x)"),
    *library("torch/nn/linear.py", 3),
    "ValueError: bad sample",
]


def test_frames_of_libraries_are_counted() -> None:
    shown = short(LONG, 30)
    assert shown == [
        "Traceback (most recent call last):",
        *frame("/home/me/train.py", 9, "main()"),
        *frame("/home/me/train.py", 88, "trainer.fit()"),
        "  … 25 frames of lightning, torch",
        *frame("/home/me/model.py", 12, "self.layer(x)"),
        "  … 2 frames of torch",
        *library("torch/nn/linear.py", 3)[-3:],
        "ValueError: bad sample",
    ]


def test_what_is_short_stays_as_it_is() -> None:
    few = ["Traceback (most recent call last):", *frame("/home/me/train.py", 9, "main()"), "ValueError: bad"]
    assert short(few, 30) == few
    assert short(["no traceback"], 30) == ["no traceback"]
    assert short([], 30) == []


def test_a_long_message_is_cut() -> None:
    message = ["RuntimeError: Error(s) in loading state_dict:", *(f"\tsize mismatch for layer {n}" for n in range(300))]
    shown = short([*LONG[:4], *message], 30)
    assert shown[-1] == "  … 293 lines"
    assert len(shown) < 16


def test_what_there_is_no_room_for_goes_from_the_outside() -> None:
    header, *frames = [line for line in short(LONG, 30) if line.strip("^ ")]
    assert short(LONG, 12) == [header, *frames]
    assert short(LONG, 11) == frames
    assert short(LONG, 9) == ["  … 4 lines", *frames[4:]]
    assert short(LONG, 8) == ["  … 4 lines", *frames[4:]]
    assert short(LONG, 7) == ["  … 5 lines", *frames[5:]]
    assert short(LONG, 2) == ["  … 10 lines", frames[-1]]


def test_no_block_is_longer_than_a_screen() -> None:
    traceback = "\n".join([*LONG[:-1], "During handling of the above exception, another exception occurred:", *LONG])
    raised = ExceptionInfo("ValueError", "bad sample", "/home/me/train.py", 88, "f", traceback)
    quotes = (Quote(LOG, 18, "ValueError: bad sample"),)
    text = block(replace(FAILED, first_failure=replace(FIRST, exception=raised), evidence=quotes))
    assert len(text.splitlines()) <= 17  # 15, had FAILED fewer hints: the innermost frames are shown all the same
    assert "torch/nn/linear.py" in text
    assert "frames of" in text
