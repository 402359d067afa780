"""Which of several ends came first where the kernel's report alone cannot tell."""

from __future__ import annotations

import signal

import pytest

from ddp_run.evidence.model import Death, Evidence, LogText
from ddp_run.judge.catalogue import NAMELESS
from ddp_run.judge.diagnose import judge
from ddp_run.judge.findings import Judged
from ddp_run.judge.first_end import first_end
from ddp_run.judge.verdict import Finding
from ddp_run.record.events import ExceptionInfo, MonotonicNs, Rank

MS = 1_000_000


def death(
    rank: int,
    code: int,
    died_ms: float,
    *,
    failed_ms: float | None = None,
    raised: str | None = None,
    sent: tuple[int, ...] = (),
) -> Death:
    return Death(
        rank=Rank(rank),
        code=code,
        failed_at=None if failed_ms is None else MonotonicNs(round(failed_ms * MS)),
        died_at=MonotonicNs(round(died_ms * MS)),
        exception=ExceptionInfo(raised, "", "train.py", 3) if raised else None,
        signals_sent=sent,
        stderr=LogText("stderr.log", ()),
    )


EXITS = death(0, 1, 109, failed_ms=100)
RAISES = death(0, 1, 900, failed_ms=100, raised="ValueError")


@pytest.mark.parametrize(
    ("deaths", "first", "rivals"),
    [
        ([EXITS, death(1, -9, 112)], 1, (0,)),
        ([RAISES, death(1, -11, 149)], 1, (0,)),
        ([RAISES, death(1, -11, 151)], 0, ()),
        ([RAISES, death(1, 7, 112)], 0, (1,)),
        ([death(0, 7, 100), death(1, -9, 108)], 1, (0,)),
        ([death(0, 7, 100), death(1, 8, 108)], 0, (1,)),
        ([death(0, -9, 100), death(1, 1, 900, failed_ms=101, raised="ValueError")], 0, ()),
        ([EXITS, death(1, 1, 900, failed_ms=101, raised="ValueError")], 0, ()),
        ([EXITS, death(1, -15, 112, sent=(15,))], 0, (1,)),
        ([EXITS, death(1, -9, 112), death(2, -9, 114)], 1, (0, 2)),
        ([death(0, 7, 100), death(1, -9, 150)], 1, (0,)),
        ([death(0, 7, 100), death(1, 1, 108, raised="ValueError")], 1, (0,)),
        ([EXITS], 0, ()),
        ([Death(Rank(0), code=1), Death(Rank(1), code=-9)], 0, ()),
        ([Death(Rank(0), code=1), Death(Rank(1), code=1, exception=ExceptionInfo("ValueError", "x"))], 1, ()),
        ([Death(Rank(0), code=7), Death(Rank(1), code=1, exception=ExceptionInfo("ValueError", "x"))], 0, ()),
    ],
    ids=[
        "a signal within 50 ms of a stamped exit",
        "and of an exception",
        "later it is later",
        "a silent code is no stronger than an exception",
        "a signal among ends without stamps",
        "the earlier of equal ones",
        "a stamp after the kernel's report is later",
        "both stamped: their order is known",
        "a signal that was sent to it is no cause",
        "of two signals the earlier",
        "50 ms after an end without a stamp",
        "an exception without a stamp is stronger than a silent code",
        "alone",
        "nobody saw when",
        "and the first shows no exception for its code",
        "and the first has a code of its own",
    ],
)
def test_which_end_came_first(deaths: list[Death], first: int, rivals: tuple[int, ...]) -> None:
    own = [Judged(each, Finding(NAMELESS, ""), "") for each in deaths]
    end = first_end(own, in_text=False)
    assert (own.index(end.item), tuple(map(own.index, end.rivals))) == (first, rivals)


def test_the_verdict_says_how_close_they_were() -> None:
    verdict = judge(Evidence(deaths=(EXITS, death(1, -signal.SIGSEGV, 112)), started=2, world_size=2))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.exit_code, verdict.confidence) == (1, 139, "likely")
    assert any("ranks 0-1 exited within 12 ms" in note for note in verdict.notes), verdict.notes


def test_of_ends_of_one_kind_the_cause_is_certain_and_the_rank_is_not() -> None:
    verdict = judge(Evidence(deaths=(death(0, -11, 100), death(1, -11, 104)), started=2, world_size=2))
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.confidence) == (0, "certain")
    assert any("ranks 0-1 exited within 4 ms" in note for note in verdict.notes), verdict.notes


def test_close_ends_by_other_exceptions_make_it_likely() -> None:
    for raised, confidence in (("KeyError", "likely"), ("ValueError", "certain")):
        verdict = judge(Evidence(deaths=(RAISES, death(1, 1, 112, raised=raised)), started=2, world_size=2))
        assert verdict.first_failure is not None
        assert (verdict.first_failure.rank, verdict.confidence) == (0, confidence)
