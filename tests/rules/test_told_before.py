"""A pasted log that has ddp-run's own answer below it gets that answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_run import explain
from ddp_run.evidence.model import Quote
from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.record.events import Rank
from ddp_run.tell.verdict_file import verdict_line
from ddp_run.tell.verdict_text import verdict_block

OUTPUT = "[rank0]: step 3 loss 0.21\n[rank1]: step 3 loss 0.20\n"
STOOD = Quote("stacks", None, '  File "/home/me/fit.py", line 438 in <module>')


def answer(outcome: str, cause: str, title: str, exit_code: int, rank: int | None = 1, **more: object) -> Verdict:
    rule = rule_named(cause)
    assert rule is not None
    first = None if rank is None else FirstFailure(Rank(rank), host="node7")
    found = Verdict(outcome, exit_code, cause, rule.code, title, "certain", first_failure=first, retry=rule.retry)  # type: ignore[arg-type]
    return Verdict(**{name: getattr(found, name) for name in found.__dataclass_fields__} | more)


HUNG = answer("hung", "hang", "rank 1 waits for data at fit.py:12, 18 s", 124, evidence=(STOOD,))
STOPPED = answer("interrupted", "preempted-sigterm", "the job was stopped by SIGTERM", 143, None)
KILLED = answer("failed", "unknown", "rank 1 was killed by SIGKILL; sender unknown", 137, confidence="unknown")
LIKELY = answer("failed", "host-oom", "rank 1 was killed by SIGKILL while memory was short", 137, confidence="likely")


def printed(verdict: Verdict) -> str:
    block = verdict_block(verdict, folder=Path("/runs/7"), attempts=1, decision="not retried: no retries requested")
    return f"{OUTPUT}{block}\n{verdict_line(verdict, attempts=1, folder=Path('/runs/7'))}\n"


@pytest.mark.parametrize("told", [HUNG, STOPPED, KILLED, LIKELY], ids=lambda told: told.outcome)
@pytest.mark.parametrize("prefix", ["", "2026-11-27T14:02:05.1Z stderr F ", "> "])
def test_its_answer_is_the_answer(told: Verdict, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in printed(told).splitlines())
    found = explain(text)
    assert (found.outcome, found.exit_code, found.cause, found.code) == (
        *(told.outcome, told.exit_code, told.cause, told.code),
    )
    assert (found.title, found.confidence) == (told.title, told.confidence)
    assert found.first_failure == told.first_failure
    assert found.retry == told.retry
    if found.cause != "preempted-sigterm":  # that one is also read from the text
        assert [quote.text.removeprefix("> ") for quote in found.evidence] == [
            verdict_block(told, folder=Path("/runs/7"), attempts=1).splitlines()[0]
        ]


def test_its_last_line_alone() -> None:
    found = explain(f"{verdict_line(HUNG, attempts=1, folder=Path('/runs/7'))}\n")
    assert (found.outcome, found.cause, found.title, found.confidence) == ("hung", "hang", None, "likely")
    assert found.first_failure == HUNG.first_failure
    block = verdict_block(HUNG, folder=Path("/runs/7"), attempts=1).splitlines()[0]
    other = block.replace(f"[{HUNG.code}]", "[DDP402]")  # of another answer
    assert explain(f"{other}\n{verdict_line(HUNG, attempts=1, folder=None)}\n").title is None
    assert explain(f"{block}\n{verdict_line(HUNG, attempts=1, folder=None)}\n").title == HUNG.title


def test_what_the_log_itself_shows_of_that_cause_stays() -> None:
    raised = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/me/fit.py", line 12, in step\n'
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    told = answer("failed", "cuda-oom", "rank 1 ran out of GPU memory allocating 2.00 GiB", 3)
    found = explain(f"{raised}{printed(told)}")
    assert (found.cause, found.exit_code) == ("cuda-oom", 3)
    assert found.first_failure is not None
    assert found.first_failure.exception is not None
    assert found.first_failure.exception.line == 12


def test_not_if_something_failed_after_it() -> None:
    later = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/upload.py", line 3, in <module>\n'
        "PermissionError: [Errno 13] Permission denied: '/data/out'\n"
    )
    assert explain(f"{printed(KILLED)}{later}").cause == "permission-denied"
    steps = "".join(f"[rank0]: step {step} loss 0.{step}\n" for step in range(4, 30))
    assert explain(f"{printed(KILLED)}{steps}").cause is None


def test_an_answer_that_is_only_quoted_is_none() -> None:
    assert (
        explain(
            f"{OUTPUT}see the line `{verdict_line(HUNG, attempts=1, folder=Path('/runs/7'))}` of the manual\n"
        ).cause
        is None
    )
