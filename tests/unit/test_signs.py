"""Where a sign counts: in what ended a rank, never in what it survived."""

from __future__ import annotations

import signal

import pytest

from ddp_run.evidence.model import Death, LogText
from ddp_run.evidence.traceback_text import from_text
from ddp_run.judge.signs import Sign, anywhere, ended_by, every, in_exception, in_last_words, words
from ddp_run.record.events import ExceptionInfo, Rank

FULL = Sign("No space left", r"\[Errno (?P<number>\d+)\] No space left on device")
ONLY_OS = Sign("No space left", types=frozenset({"OSError"}))
CHAINED = """Traceback (most recent call last):
  File "/home/user/save.py", line 3, in save
    write()
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/user/train.py", line 9, in <module>
    save()
RuntimeError: could not save"""


def death(*lines: str, code: int | None = 1, exception: ExceptionInfo | None = None) -> Death:
    return Death(rank=Rank(0), code=code, exception=exception, stderr=LogText("stderr.log", lines))


def test_a_sign_needs_its_words_and_its_pattern() -> None:
    assert FULL.search("OSError: [Errno 28] No space left on device")
    assert FULL.search("No space left on device") is None
    assert FULL.search("[Errno 28] no space") is None
    assert Sign("a.b").search("a.b") and not Sign("a.b").search("axb")


def test_what_an_exception_was_raised_from_counts() -> None:
    hit = in_exception(death(*CHAINED.split("\n"), exception=from_text(CHAINED)), [FULL])
    assert hit is not None
    assert (hit["number"], hit.confidence, hit["absent"]) == ("28", "likely", None)  # the program handled it
    assert hit.exception is not None and hit.exception.type == "OSError"
    assert hit.quote is not None and hit.quote.line == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "During handling of the above exception, another exception occurred",
            "The above exception was the direct cause of the following exception",
        ),
        ("/home/user/train.py", "/usr/lib/python3.11/queue.py"),
    ],
)
def test_what_it_was_raised_from_is_certain_if_nobody_handled_it(old: str, new: str) -> None:
    text = CHAINED.replace(old, new)
    assert text != CHAINED
    hit = in_exception(death(exception=from_text(text)), [FULL])
    assert hit is not None
    assert hit.confidence == "certain"


def test_a_type_is_asked_of_each_link() -> None:
    assert in_exception(death(exception=from_text(CHAINED)), [ONLY_OS]) is not None
    other = CHAINED.replace("OSError: ", "ValueError: ")
    assert in_exception(death(exception=from_text(other)), [ONLY_OS]) is None


def test_last_words_do_not_count_beside_an_exception() -> None:
    raised = ExceptionInfo("KeyError", "'x'", None, None, None, "KeyError: 'x'")
    said = "[Errno 28] No space left on device"
    assert ended_by(death(said, exception=raised), [FULL]) is None
    assert ended_by(death(said), [FULL]) is not None


def test_last_words_are_certain_only_before_a_crash() -> None:
    said = "[Errno 28] No space left on device"
    for code, confidence in ((1, "likely"), (-signal.SIGKILL, "likely"), (-signal.SIGBUS, "certain")):
        hit = in_last_words(death(said, code=code), [FULL])
        assert hit is not None and hit.confidence == confidence
    assert in_last_words(death(said), [ONLY_OS]) is None
    assert in_last_words(death(said, *["step"] * 400), [FULL]) is None


def test_the_last_line_of_several_is_quoted() -> None:
    log = LogText("log", ("[Errno 1] No space left on device", "x", "[Errno 2] No space left on device"))
    hit = anywhere(log, [FULL])
    assert hit is not None and hit["number"] == "2" and hit.text == "[Errno 2] No space left on device"
    assert [each["number"] for each in every(log, FULL)] == ["1", "2"]
    assert every(log, Sign("absent")) == []


def test_words_are_named_once() -> None:
    assert list(words([FULL, ONLY_OS, Sign("a")])) == ["No space left", "a"]
