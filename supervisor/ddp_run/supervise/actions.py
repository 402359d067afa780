"""Orders that an attempt's machine gives (`Action`, imperative); `ddp_run.supervise.attempt` carries them out."""

from __future__ import annotations

from ddp_run.record.events import Rank, RankFailed, Target, Timer
from ddp_run.values.typed_fields import frozen


@frozen
class SendSignal:
    """Send a signal; with `only_if_handled`, to those processes alone that would not die of it."""

    target: Target
    signum: int
    reason: str
    ranks: tuple[Rank, ...] = ()
    """With Target.RANKS: these ranks only; empty means all."""
    only_if_handled: bool = False


@frozen
class SetTimer:
    """Ask for TimerFired of that timer after `after_s` seconds; it is set anew where it was set before."""

    timer: Timer
    after_s: float


@frozen
class AwaitReport:
    """Ask for AgentReported once the agent has written its account of the failure."""


@frozen
class TellRanksEnded:
    """Let the other nodes know that all ranks of this one have ended well (RanksEnded)."""


@frozen
class TellFailed:
    """Say that this rank's program failed, though its process exited with 0, and nobody is ended for that."""

    failed: RankFailed


@frozen
class TellUnfinished:
    """Say that these ranks were to end and have not; they are killed `kill_in_s` seconds from now.

    `why`: what they were to end for; a rank's program failed, and its own process goes on.
    """

    why: str | RankFailed
    ranks: tuple[Rank, ...]
    kill_in_s: float
    stop_signal: int | None = None
    """The signal that told the job to stop: another one kills them."""


@frozen
class SuspendSelf:
    """Stop the whole job and then ddp-run itself (Ctrl-Z); continue the job when ddp-run is continued."""


@frozen
class FinishAttempt:
    """Nothing is left to wait for: end leftovers, gather, judge."""


Action = (
    SendSignal | SetTimer | AwaitReport | TellRanksEnded | TellFailed | TellUnfinished | SuspendSelf | FinishAttempt
)
