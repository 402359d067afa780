"""Whether there is another attempt, and after how long. Pure; the waits are tenacity's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential, wait_random

from ddp_run.verdict import Verdict

_BACK_OFF = wait_exponential(multiplier=1, min=1, max=60) + wait_random(0, 0.5)
"""1, 2, 4 … 60 s, and up to half a second more, so that several jobs of a host do not come back together."""
_PORT_ROUNDS = 5
"""How many ports may be stolen between our test of them and the agent's bind before it counts as a failure."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows an attempt. `free`: it does not count against --max-retries."""

    retry: bool
    reason: str
    free: bool = False


def decide(
    verdict: Verdict, *, policy: str, retries_left: int, asked: int, ports_lost: int, port: int | None
) -> Decision:
    """Retry or stop. `port` is the master port that the attempt was given, `ports_lost` how often it was taken."""
    if verdict.outcome not in ("failed", "hung"):
        outcome = verdict.outcome or "nothing known"
        return Decision(False, _END_REASONS.get(outcome, outcome))
    if _port_stolen(verdict, port) and ports_lost < _PORT_ROUNDS:
        return Decision(True, f"port {port} was taken meanwhile: another port", free=True)
    if asked == 0:
        return Decision(False, _with_catalogue("no retry was asked for (--max-retries)", verdict))
    if policy == "never":
        return Decision(False, "--retry never")
    if policy == "by-cause" and verdict.retry is not None and not verdict.retry.helps:
        return Decision(False, verdict.retry.reason)
    if retries_left <= 0:
        return Decision(False, f"all {asked} retries of --max-retries are used up")
    if policy == "always":
        return Decision(True, "--retry always")
    return Decision(True, verdict.retry.reason if verdict.retry is not None else "the cause is not known")


def _port_stolen(verdict: Verdict, port: int | None) -> bool:
    cured = verdict.retry is not None and verdict.retry.helps
    return verdict.cause == "port-in-use" and port is not None and cured


_END_REASONS = {"succeeded": "the job succeeded", "interrupted": "ddp-run was told to stop"}


def _with_catalogue(reason: str, verdict: Verdict) -> str:
    return f"{reason}; {verdict.retry.reason}" if verdict.retry is not None else reason


def attempts(
    max_retries: int,
    again: Callable[[Any], bool],
    sleep: Callable[[float], None],
    before_sleep: Callable[[Any, float], None],
) -> Retrying:
    """tenacity's loop over attempts: at most `max_retries` + 1, with back-off; gives the last attempt's outcome.

    `sleep` is the caller's own, so that signals are handled between attempts.
    """

    def announce(state: RetryCallState) -> None:
        if state.outcome is not None and state.next_action is not None:
            before_sleep(state.outcome.result(), state.next_action.sleep)

    return Retrying(
        sleep=sleep,
        stop=stop_after_attempt(max_retries + 1),
        wait=_BACK_OFF,
        retry=retry_if_result(again),
        before_sleep=announce,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else None,
    )
