"""Whether there is another attempt, and after how long. Pure; the waits are tenacity's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential, wait_random

from ddp_run.verdict import Verdict

_BACK_OFF = wait_exponential(multiplier=1, min=1, max=60) + wait_random(0, 0.5)
"""1, 2, 4 … 60 s, and up to half a second more, so that several jobs of a host do not come back together."""
_SAME_ENDS = 3
"""Attempts that end alike without getting further before the next one is not made."""
_PORT_ROUNDS = 5
"""How many ports may be stolen between our test of them and the agent's bind before it counts as a failure."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows an attempt. `free`: it does not count against --max-retries.

    `backend`: the process-group backend of all ranks from the next attempt on, null: as before.
    """

    retry: bool
    reason: str
    free: bool = False
    backend: str | None = None


def decide(
    verdict: Verdict,
    *,
    policy: str,
    retries_left: int,
    asked: int,
    ports_lost: int,
    port: int | None,
    earlier: Sequence[Verdict] = (),
    fallback: str | None = None,
) -> Decision:
    """Retry or stop.

    `port` is the master port that the attempt was given, `ports_lost` how often it was taken; `earlier` are the
    attempts' verdicts before this one; `fallback` is the backend to try where the program's fails to initialise.
    """
    if verdict.outcome not in ("failed", "hung"):
        outcome = verdict.outcome or "nothing known"
        return Decision(False, _END_REASONS.get(outcome, outcome))
    if _port_stolen(verdict, port) and ports_lost < _PORT_ROUNDS:
        return Decision(True, f"port {port} was taken meanwhile: another port", free=True)
    if fallback is not None and _failed_to_initialise(verdict):
        reason = f"the process group failed to initialise: all ranks use backend {fallback} from here on"
        return Decision(True, reason, free=True, backend=fallback)
    if asked == 0:
        return Decision(False, _with_catalogue("no retry was asked for (--max-retries)", verdict))
    if policy == "never":
        return Decision(False, "--retry never")
    if policy == "by-cause" and verdict.retry is not None and not verdict.retry.helps:
        return Decision(False, verdict.retry.reason)
    if retries_left <= 0:
        return Decision(False, f"all {asked} retries of --max-retries are used up")
    if policy == "by-cause" and _stands_still([*earlier, verdict]):
        return Decision(False, f"{_SAME_ENDS} attempts ended in the same way and none got any further")
    if policy == "always":
        return Decision(True, "--retry always")
    return Decision(True, verdict.retry.reason if verdict.retry is not None else "the cause is not known")


def _failed_to_initialise(verdict: Verdict) -> bool:
    """A communicator that could not be made, or no device for the backend; NCCL makes one at the first collective."""
    return verdict.cause == "nccl-init" or (
        verdict.phase == "init" and verdict.cause in ("nccl-network", "cuda-unavailable", "driver-mismatch")
    )


def _stands_still(verdicts: Sequence[Verdict]) -> bool:
    """Whether the last attempts ended alike, at the same place, and none made more steps than the first of them."""
    last = verdicts[-_SAME_ENDS:]
    if len(last) < _SAME_ENDS or len({_end(verdict) for verdict in last}) > 1:
        return False
    return all((verdict.step or 0) <= (last[0].step or 0) for verdict in last)


def _end(verdict: Verdict) -> tuple[object, ...]:
    first = verdict.first_failure
    raised = first.exception if first is not None else None
    place = (raised.type, raised.file, raised.line) if raised is not None else ()
    return verdict.cause, first.rank if first is not None else None, verdict.phase, place


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
