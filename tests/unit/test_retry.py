"""When there is another attempt, and how long before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tenacity import RetryCallState, Retrying, retry_if_result

from ddp_run.evidence.model import Phase
from ddp_run.judge.retry import Decision, decide, ended, not_started
from ddp_run.judge.verdict import FirstFailure, Outcome, Retry, Verdict
from ddp_run.record.events import ExceptionInfo, LocalRank, MonotonicNs, PeerFailed, Rank, SignalReceived
from ddp_run.supervise.retries import back_off


def verdict(outcome: Outcome = "failed", cause: str | None = "peer-died", helps: bool = True) -> Verdict:
    return Verdict(outcome, 1, cause=cause, retry=Retry(helps, "so says the catalogue"))


def decided(
    given: Verdict,
    *,
    policy: str = "by-cause",
    asked: int = 2,
    left: int = 2,
    lost: int = 0,
    earlier: tuple[Verdict, ...] = (),
    fallback: str | None = None,
) -> Decision:
    return decide(
        given,
        policy=policy,
        retries_left=left,
        asked=asked,
        ports_lost=lost,
        port=29500,
        earlier=earlier,
        fallback=fallback,
    )


CATALOGUE = "so says the catalogue"
UNASKED = f"no retries requested (--max-retries); {CATALOGUE}"


@pytest.mark.parametrize(
    ("given", "asked", "left", "policy", "expected"),
    [
        (verdict(), 2, 2, "by-cause", Decision(True, CATALOGUE)),
        (verdict(), 1, 1, "by-cause", Decision(True, CATALOGUE)),
        (verdict("hung"), 2, 1, "by-cause", Decision(True, CATALOGUE)),
        (replace(verdict(), retry=None), 2, 2, "by-cause", Decision(True, "the cause is unknown")),
        (verdict(helps=False), 2, 2, "by-cause", Decision(False, CATALOGUE)),
        (verdict(helps=False), 2, 2, "always", Decision(True, "--retry always")),
        (verdict(), 2, 2, "never", Decision(False, "--retry never")),
        (verdict(), 0, 0, "by-cause", Decision(False, UNASKED)),
        (verdict(), 0, 0, "always", Decision(False, UNASKED)),
        (replace(verdict(), retry=None), 0, 0, "by-cause", Decision(False, "no retries requested (--max-retries)")),
        (verdict(), 1, 0, "by-cause", Decision(False, "the only retry is used (--max-retries)")),
        (verdict(), 2, 0, "by-cause", Decision(False, "all 2 retries are used (--max-retries)")),
        (verdict(), 2, 0, "always", Decision(False, "all 2 retries are used (--max-retries)")),
        (verdict("succeeded"), 2, 2, "always", Decision(False, "the job succeeded")),
        (verdict("interrupted"), 2, 2, "always", Decision(False, "ddp-run was stopped")),
        (replace(verdict(), outcome=None), 2, 2, "always", Decision(False, "unknown outcome")),
        (verdict("refused"), 2, 2, "always", Decision(False, CATALOGUE)),
        (replace(verdict("refused"), retry=None), 2, 2, "always", Decision(False, "refused")),
    ],
)
def test_what_follows_and_why(given: Verdict, asked: int, left: int, policy: str, expected: Decision) -> None:
    assert decided(given, policy=policy, asked=asked, left=left) == expected


def test_a_stolen_port_costs_no_retry_but_not_endlessly() -> None:
    stolen = verdict(cause="port-in-use")
    assert decided(stolen, asked=0, left=0) == Decision(True, "port 29500 is taken by another process", free=True)
    assert decided(stolen, asked=0, left=0, lost=4).free
    assert decided(stolen, asked=0, left=0, lost=5) == Decision(False, UNASKED)
    assert decided(verdict(cause="port-in-use", helps=False), asked=0, left=0) == Decision(False, UNASKED)
    assert decided(verdict(cause="peer-died"), asked=0, left=0) == Decision(False, UNASKED)
    assert not decide(stolen, policy="by-cause", retries_left=0, asked=0, ports_lost=0, port=None).retry


def test_no_other_attempt_where_something_else_ended_the_run() -> None:
    stopped = SignalReceived(MonotonicNs(1), 15)
    assert ended(stopped) == Decision(False, "ddp-run was stopped by SIGTERM before the next attempt")
    left = PeerFailed(MonotonicNs(1), 2, "host2", "lost")
    assert ended(left) == Decision(False, "node 2 (host2) ended the job before the next attempt: lost")
    assert not_started(3, OSError("no processes left")) == Decision(
        False, "attempt 3 could not be started: no processes left"
    )


def attempts(
    again: Callable[[int], bool], sleep: Callable[[float], None], announce: Callable[[RetryCallState], None]
) -> Retrying:
    """As `ddp_run.supervise.job` has them made."""
    return Retrying(retry=retry_if_result(again), wait=back_off(), sleep=sleep, before_sleep=announce)


def test_waits_grow_and_the_last_outcome_comes_back() -> None:
    waits: list[float] = []
    calls: list[int] = []
    announced: list[tuple[int, float]] = []

    def attempt() -> int:
        calls.append(len(calls))
        return calls[-1]

    def announce(state: RetryCallState) -> None:
        assert state.next_action is not None
        announced.append((calls[-1], state.next_action.sleep))

    retrying = attempts(lambda outcome: outcome < 4, waits.append, announce)
    assert retrying(attempt) == 4
    assert calls == [0, 1, 2, 3, 4]
    assert waits[0] == 0
    for wait, base in zip(waits[1:], (1, 2, 4), strict=True):
        assert base <= wait <= base + 0.5
    assert [outcome for outcome, _ in announced] == [0, 1, 2, 3]


def test_no_wait_after_success() -> None:
    waits: list[float] = []
    assert attempts(lambda outcome: outcome < 1, waits.append, lambda _: None)(iter([0, 1, 2]).__next__) == 1
    assert len(waits) == 1


def at(line: int = 7, rank: int = 1, raised: str = "ValueError", file: str = "train.py") -> FirstFailure:
    """A first failure at this place."""
    exception = ExceptionInfo(raised, "", file, line)
    return FirstFailure(Rank(rank), LocalRank(0), 0, "host", 1, 1, None, MonotonicNs(1), exception, "log")


SAME = replace(verdict(), step=40, phase="training", first_failure=at())


def test_attempts_that_get_no_further_are_not_repeated_endlessly() -> None:
    stands_still = Decision(False, "3 attempts failed the same way and none got further")
    again = Decision(True, CATALOGUE)
    assert decided(SAME, asked=9, earlier=(SAME,)) == again
    assert decided(SAME, asked=9, earlier=(SAME, SAME)) == stands_still
    assert decided(replace(SAME, step=39), asked=9, earlier=(SAME, SAME)) == stands_still
    assert decided(replace(SAME, step=41), asked=9, earlier=(SAME, SAME)) == again
    assert decided(SAME, asked=9, earlier=(SAME, replace(SAME, step=41))) == again
    assert decided(SAME, asked=9, earlier=(replace(SAME, step=41), SAME)) == stands_still
    assert decided(SAME, policy="always", asked=9, earlier=(SAME, SAME)) == Decision(True, "--retry always")


def test_a_step_that_nobody_knows_is_none_made() -> None:
    unknown, none_made = replace(SAME, step=None), replace(SAME, step=0)
    assert not decided(unknown, asked=9, earlier=(none_made, none_made)).retry
    assert not decided(none_made, asked=9, earlier=(unknown, unknown)).retry
    assert decided(replace(SAME, step=1), asked=9, earlier=(unknown, unknown)).retry


@pytest.mark.parametrize(
    "other",
    [
        replace(SAME, cause="unknown"),
        replace(SAME, phase="init"),
        replace(SAME, first_failure=None),
        replace(SAME, first_failure=at(rank=0)),
        replace(SAME, first_failure=at(line=8)),
        replace(SAME, first_failure=at(raised="KeyError")),
        replace(SAME, first_failure=at(file="data.py")),
        replace(SAME, first_failure=replace(at(), exception=None)),
    ],
)
def test_attempts_that_end_in_another_way_or_place_are_repeated(other: Verdict) -> None:
    assert decided(SAME, asked=9, earlier=(other, SAME)).retry
    assert decided(SAME, asked=9, earlier=(SAME, other)).retry
    assert decided(other, asked=9, earlier=(SAME, SAME)).retry
    assert not decided(other, asked=9, earlier=(other, other)).retry


@pytest.mark.parametrize(
    ("cause", "phase", "falls_back"),
    [
        ("nccl-init", None, True),
        ("cuda-unavailable", "init", True),
        ("cuda-unavailable", "before-init", False),
        ("cuda-oom", "init", False),
        ("nccl-network", "training", False),
    ],
)
def test_another_backend_where_the_first_failed_to_initialise(
    cause: str, phase: Phase | None, falls_back: bool
) -> None:
    failed = replace(verdict(cause=cause, helps=False), phase=phase)
    why = "the process group failed to initialise: all ranks fall back to backend gloo"
    falls = Decision(True, why, free=True, backend="gloo")
    assert decided(failed, asked=0, left=0, fallback="gloo") == (falls if falls_back else Decision(False, UNASKED))
    assert decided(failed, asked=0, left=0) == Decision(False, UNASKED)
