"""When there is another attempt, and how long before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tenacity import RetryCallState, Retrying, retry_if_result

from ddp_run.evidence.model import Phase
from ddp_run.judge.retry import Decision, decide
from ddp_run.judge.verdict import Outcome, Retry, Verdict
from ddp_run.supervise.job import back_off


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


def test_the_catalogue_decides() -> None:
    assert decided(verdict()).retry
    assert decided(verdict(helps=False)) == Decision(False, "so says the catalogue")


def test_policies_of_the_user_win_over_the_catalogue() -> None:
    assert decided(verdict(helps=False), policy="always").retry
    assert not decided(verdict(), policy="never").retry


def test_no_retry_without_being_asked_and_none_beyond_what_was_asked() -> None:
    assert not decided(verdict(), asked=0, left=0).retry
    assert not decided(verdict(), left=0).retry
    assert not decided(verdict(), policy="always", left=0).retry


@pytest.mark.parametrize("outcome", ["succeeded", "interrupted"])
def test_only_failures_are_retried(outcome: Outcome) -> None:
    assert not decided(verdict(outcome), policy="always").retry


def test_a_stolen_port_costs_no_retry_but_not_for_ever() -> None:
    stolen = verdict(cause="port-in-use")
    assert decided(stolen, asked=0, left=0) == Decision(True, "port 29500 is taken by another process", free=True)
    assert not decided(stolen, asked=0, left=0, lost=5).retry
    assert not decided(verdict(cause="port-in-use", helps=False), asked=0, left=0).retry


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
    for wait, base in zip(waits, (1, 2, 4, 8), strict=True):
        assert base <= wait <= base + 0.5
    assert [outcome for outcome, _ in announced] == [0, 1, 2, 3]


def test_no_wait_after_success() -> None:
    waits: list[float] = []
    assert attempts(lambda outcome: outcome < 1, waits.append, lambda _: None)(iter([0, 1, 2]).__next__) == 1
    assert len(waits) == 1


def test_attempts_that_get_no_further_are_not_repeated_for_ever() -> None:
    same = replace(verdict(), step=40)
    assert decided(same, asked=9, left=7, earlier=(same,)).retry
    stopped = decided(same, asked=9, left=6, earlier=(same, same))
    assert not stopped.retry
    assert stopped.reason == "3 attempts failed the same way and none got further"
    further = replace(same, step=41)
    assert decided(further, asked=9, left=6, earlier=(same, same)).retry
    assert decided(same, asked=9, left=6, earlier=(verdict(cause="unknown"), same)).retry
    assert decided(same, policy="always", asked=9, left=6, earlier=(same, same)).retry


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
    decision = decided(failed, asked=0, left=0, fallback="gloo")
    assert (decision.retry, decision.free, decision.backend) == (
        (True, True, "gloo") if falls_back else (False, False, None)
    )
    assert not decided(failed, asked=0, left=0).retry
