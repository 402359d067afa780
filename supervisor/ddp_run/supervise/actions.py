"""The orders of an attempt's machine (`Action`); `ddp_run.supervise.attempt` carries them out."""

from __future__ import annotations

from ddp_run.record.events import Rank, RankFailed, Target, Timer
from ddp_run.values.typed_fields import frozen


@frozen
class SendSignal:
    """Send a signal. With `only_if_handled`, only to processes that it wouldn't kill."""

    target: Target
    signum: int
    reason: str
    ranks: tuple[Rank, ...] = ()
    """With Target.RANKS: only these; empty means all."""
    only_if_handled: bool = False


@frozen
class SetTimer:
    """Ask for this timer's TimerFired in `after_s` seconds. Setting a timer again replaces it."""

    timer: Timer
    after_s: float


@frozen
class AwaitReport:
    """Ask for AgentReported once the agent has written its report of the failure."""


@frozen
class TellRanksEnded:
    """Tell the other nodes that all ranks of this one have ended well (RanksEnded)."""


@frozen
class TellFailed:
    """Say that this rank's program failed although its process exited with 0; the other ranks go on."""

    failed: RankFailed


@frozen
class TellUnfinished:
    """Say that these ranks should have ended and haven't; they are killed in `kill_in_s` seconds.

    `why`: the reason, or the rank's own failure if only its process has to end.
    """

    why: str | RankFailed
    ranks: tuple[Rank, ...]
    kill_in_s: float
    stop_signal: int | None = None
    """The signal that stopped the job: another one kills them."""


@frozen
class FinishAttempt:
    """There's nothing left to wait for: end leftovers, then judge."""


Action = SendSignal | SetTimer | AwaitReport | TellRanksEnded | TellFailed | TellUnfinished | FinishAttempt
