"""Copies of logs without secrets: what of a long log is kept, where its lines stand, and that no secret is cut."""

from __future__ import annotations

import io
import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planted_secrets import BY_FORM, KEY_LINES, PRIVATE_KEY
from tests.waiting import limit

from ddp_run.commands.bundle import cleaned_copy
from ddp_run.commands.bundle.cleaned_copy import Cleaner, Copy, Removed
from ddp_run.values.redaction import REDACTED

CLEANER = Cleaner({})
NEVER = math.inf
TOKEN = BY_FORM["Hugging Face"]


def whole(text: str, most: int = 50 << 20, deadline: float = NEVER) -> tuple[str, Copy]:
    copy = cleaned_copy.whole(io.BytesIO(text.encode()), most, deadline, CLEANER)
    return copy.text, copy


def steps(count: int, first: int = 0) -> str:
    return "".join(f"step {number} loss 2.3451 lr 3.00e-04 tokens 1048576\n" for number in range(first, first + count))


@pytest.mark.parametrize("lines", [0, 1, 7, 40_000])
def test_a_log_that_fits_is_whole(lines: int) -> None:
    text = steps(lines) + "the end"
    shown, copy = whole(text)
    assert (shown, copy.left_out) == (text, None)


def test_of_a_long_log_the_start_and_the_end() -> None:
    text = steps(60_000)
    shown, copy = whole(text, 500_000)
    start, mark, end = shown.partition("[ddp-run bundle: ")
    left_out, _, end = end.partition("\n")
    assert text.startswith(start) and text.endswith(end)
    assert len(end) > 4 * len(start) > 100_000
    assert len(shown) <= 500_100
    assert (mark, left_out.endswith(" were left out here]")) == ("[ddp-run bundle: ", True)
    assert copy.left_out is not None and "MiB of " in copy.left_out


def test_secrets_are_told_by_their_lines_in_the_copy() -> None:
    lines = steps(60_000).splitlines()
    for at in (3, 30_000, 59_990):
        lines[at] = f"token {TOKEN}"
    shown, copy = whole("\n".join(lines), 500_000)
    copied = shown.splitlines()
    assert [(copied[line - 1], kind) for line, kind in copy.removed.lines] == [
        (f"token {REDACTED}", "token: Hugging Face")
    ] * 2
    assert copy.removed.kinds == {"token: Hugging Face": 2}


def test_a_deadline_leaves_the_end() -> None:
    text = steps(60_000)
    shown, copy = whole(text, deadline=time.monotonic())
    assert copy.left_out is not None
    assert shown.endswith(text[-100_000:])


@pytest.mark.timeout(limit(60))
def test_a_log_of_one_line_is_left_out() -> None:
    shown, _copy = whole("x" * (3 << 20) + "\nValueError: bad sample\n")
    assert shown == "[ddp-run bundle: a line of 3.0 MiB was left out here]\nValueError: bad sample\n"
    assert whole(steps(2) + "x" * (3 << 20))[0].startswith(steps(2) + "[ddp-run bundle: a line of 3.0 MiB")
    bars = "".join(f"{count}/100000 [00:01]\r" for count in range(100_000))
    assert whole(bars)[0] == bars


@given(
    st.lists(st.sampled_from(["a\n", "\n", "\r", "bc" * 20 + " ", f"{TOKEN}\n", "é", PRIVATE_KEY + "\n"]), max_size=60),
    st.integers(4_000, 6_000),
    st.integers(8_000, 30_000),
)
def test_pieces_are_in_order_and_hold_no_secret(words: list[str], piece: int, most: int) -> None:
    text = "".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaned_copy, "_PIECE", piece)
        patch.setattr(cleaned_copy, "_AT_ONCE", piece)
        shown, copy = whole(text, most)
    assert TOKEN not in shown
    assert not any(line in shown for line in KEY_LINES)
    rest = iter(text.splitlines())
    kept = [line for line in shown.splitlines() if "ddp-run bundle" not in line and REDACTED not in line and line]
    assert all(any(line.endswith(each) or each.endswith(line) for each in rest) for line in kept)
    assert all(line <= shown.count("\n") + 1 for line, _kind in copy.removed.lines)


def test_the_last_lines() -> None:
    text = f"api_key={TOKEN}\n" + steps(500)
    copy = cleaned_copy.last_lines(io.BytesIO(text.encode()), 100, CLEANER)
    mark, *lines = copy.text.splitlines()
    assert lines == text.splitlines()[-100:]
    assert mark == "[ddp-run bundle: the lines before these were left out]"
    assert copy.left_out == f"the last 100 lines, of {len(text) // 1024} KiB"
    assert copy.removed == Removed()
    few = cleaned_copy.last_lines(io.BytesIO(b"one\ntwo"), 100, CLEANER)
    assert (few.text, few.left_out) == ("one\ntwo", None)


def test_last_lines_within_a_key() -> None:
    """The mark that tells what they are stands before them."""
    body = "\n".join(KEY_LINES * 30)
    text = f"-----BEGIN PRIVATE KEY-----\n{body}\n"
    shown = cleaned_copy.last_lines(io.BytesIO(text.encode()), 100, CLEANER).text
    assert not any(line in shown for line in KEY_LINES)


def test_what_the_environment_knows_to_be_secret_is_hidden_anywhere() -> None:
    key = "".join(random.Random(5).choices("0123456789abcdef", k=40))
    cleaner = Cleaner({"WANDB_API_KEY": key, "DB_PASSWORD": "a/b c+d&e", "HOME": "/home/someone", "PWD": "/home/me/x"})
    text, removed = cleaner.clean(f"logged in: {key}\nhttps://h/?p=a%2Fb%20c%2Bd%26e\n/home/someone /home/me/x\n")
    assert text == f"logged in: {REDACTED}\nhttps://h/?p={REDACTED}\n/home/someone /home/me/x\n"
    assert removed.lines == [(1, "value of $WANDB_API_KEY"), (2, "value of $DB_PASSWORD")]


def test_a_value_in_the_next_line_has_its_kind() -> None:
    text, removed = CLEANER.clean('[\n  "--api-key",\n  "Qx81kdl0"\n]')
    assert REDACTED in text
    assert removed.lines == [(3, "value of --api-key")]


@pytest.mark.timeout(limit(60))
def test_many_secrets_cost_no_more_than_few() -> None:
    shown, copy = whole(f"{TOKEN}\n" * 100_000)
    assert TOKEN not in shown
    assert sum(copy.removed.kinds.values()) == 100_000
    assert len(copy.removed.lines) < 10_000
