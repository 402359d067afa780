"""Where a sign counts: in what ended a rank, never in what it survived."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

import pytest

from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.evidence.traceback_text import from_text
from ddp_run.judge.catalogue import catalogue
from ddp_run.judge.signs import (
    Sign,
    anywhere,
    ended_by,
    every,
    in_exception,
    in_last_words,
    like,
    matcher,
    meaning,
)
from ddp_run.judge.verdict import Layer, Retry, Rule
from ddp_run.record.events import ExceptionInfo, MonotonicNs, Rank

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
        ("/home/user/", "/usr/lib/python3.11/"),
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


def test_a_line_that_says_what_is_done_instead_explains_no_crash() -> None:
    warned = "/home/me/fit.py:69: UserWarning: falling back to the CPU: Torch not compiled with CUDA enabled"
    signs = (Sign("Torch not compiled with CUDA enabled"),)
    for code, found in ((-signal.SIGSEGV, False), (-signal.SIGKILL, False), (1, True), (None, True)):
        hit = in_last_words(death(warned, code=code), signs)
        assert (hit is not None) is found, code
    alone = replace(death("[Errno 28] No space left on device", "step 40", code=-signal.SIGBUS), died_at=MonotonicNs(9))
    went_on = in_last_words(alone, [FULL])
    assert went_on is not None and went_on.confidence == "likely"
    plain = in_last_words(death(warned.replace("falling back to the CPU", "no"), code=-signal.SIGSEGV), signs)
    assert plain is not None
    assert plain.confidence == "likely"  # Python warns of it


def test_the_last_line_of_several_is_quoted() -> None:
    log = LogText("log", ("[Errno 1] No space left on device", "x", "[Errno 2] No space left on device"))
    hit = anywhere(log, [FULL])
    assert hit is not None and hit["number"] == "2" and hit.text == "[Errno 2] No space left on device"
    assert [each["number"] for each in every(log, FULL)] == ["1", "2"]
    assert every(log, Sign("absent")) == []


# ---------------------------------------------------------------------------------------------- what signs mean

RULE = Rule("full", "Full", "DDP905", Layer.CHANGEABLE, Retry(helps=False, reason="still full"))
LATER = Retry(helps=True, reason="somebody may tidy up")
SIGNS = meaning(
    like(
        r"quota of (?P<whose>\w+)(?: on (?P<disk>\w+))? exceeded",
        cause="{who} used up {whose}'s quota{ on {disk}}{where}",
    ),
    *meaning(Sign("may be full", advice=("df {disk}",)), likely=True, retry=LATER),
    Sign("No space left"),
    cause="{who} has no space{ on {host}}: {line}",
    advice=("df -h | awk '{print $NF}'", "du ${HOME} # {whose}"),
)


def said(*lines: str, host: str | None = None) -> tuple[str, tuple[str, ...], str, Retry | None]:
    found = matcher(RULE, SIGNS)(Death(Rank(0), host=host, code=1, stderr=LogText("log", lines)), Evidence())
    assert found is not None and found.rule is RULE and len(found.evidence) == 1
    return found.cause, found.advice, found.confidence, found.retry


def test_a_sign_says_what_its_groups_hold() -> None:
    cause, advice, _, retry = said("quota of me on data exceeded")
    assert (cause, retry) == ("rank 0 used up me's quota on data", None)
    assert advice == ("df -h | awk '{print $NF}'", "du ${HOME} # me")  # a shell's braces stay
    assert said("quota of me exceeded")[0] == "rank 0 used up me's quota"


def test_what_signs_have_in_common_does_not_replace_what_one_says() -> None:
    assert said("x", " No space left ")[0] == "rank 0 has no space: No space left"
    assert said("the disk may be full", host="n1") == (
        "rank 0 has no space on n1: the disk may be full",
        ("df {disk}",),
        "likely",
        LATER,
    )


def test_a_text_of_the_log_is_not_read_as_a_sign_s_text() -> None:
    assert said("No space left for {who} in {host}")[0] == "rank 0 has no space: No space left for {who} in {host}"


def test_where_is_that_of_the_exception_with_the_sign() -> None:
    signs = (Sign("No space left", cause="full{where}"),)
    raised = from_text(CHAINED)
    found = matcher(RULE, signs)(death(exception=raised), Evidence())
    assert found is not None and (found.cause, found.confidence) == ("full (save.py:3)", "likely")


def test_a_signal_of_another_is_no_abort_and_nothing_beside_an_exception() -> None:
    for code, found in ((1, False), (-signal.SIGABRT, False), (-signal.SIGTERM, True), (-signal.SIGSEGV, True)):
        assert death("No space left", code=code).killed_by_another == found
    assert not death(code=-signal.SIGTERM, exception=from_text(CHAINED)).killed_by_another


OF_EVERY_HIT = frozenset({"who", "where", "host", "line", "match"})
OF_RULES = frozenset({"agent", "asked", "by", "got", "path", "said", "size", "time", "to", "whom"})
"""What rules compute and hand over."""


def test_each_field_of_a_sign_s_text_is_known() -> None:
    for cause in catalogue():
        for sign in cause.signs:
            known = {*sign.compiled.groupindex, *OF_EVERY_HIT, *OF_RULES}
            texts = "\n".join([sign.cause or "", *(sign.advice or ())])
            fields = re.findall(r"\{(\w+)\}", re.sub(r"\{[^{}]*(?:\{\w+\}[^{}]*)+\}", "", texts))
            assert {*fields} <= known, (cause.rule.name, sign.words)
