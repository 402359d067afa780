"""The loop over attempts and the waits between them: tenacity's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_result, wait_exponential, wait_random

_BACK_OFF = wait_exponential(multiplier=1, min=1, max=60) + wait_random(0, 0.5)
"""1, 2, 4 … 60 s, and up to half a second more, so that several jobs of a host do not come back together."""


def attempts(
    again: Callable[[Any], bool],
    sleep: Callable[[float], None],
    before_sleep: Callable[[Any, float], None],
) -> Retrying:
    """tenacity's loop over attempts, with back-off, as long as `again` says so; gives the last attempt's outcome.

    How many there may be is `ddp_run.judge.retry`'s to say, for all nodes of a job. `sleep` is the caller's own, so
    that signals are handled between attempts.
    """

    def announce(state: RetryCallState) -> None:
        if state.outcome is not None and state.next_action is not None:
            before_sleep(state.outcome.result(), state.next_action.sleep)

    return Retrying(
        sleep=sleep,
        wait=_BACK_OFF,
        retry=retry_if_result(again),
        before_sleep=announce,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else None,
    )
