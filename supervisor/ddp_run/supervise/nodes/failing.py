"""Which events of a node concern the others: that its attempt fails, in a line for people; that it pauses. Pure."""

from __future__ import annotations

from signal import Signals

from ddp_run.record.events import (
    AgentExited,
    Event,
    HangTimedOut,
    RankExited,
    RankFailed,
    SignalReceived,
    SignalSent,
    Target,
)
from ddp_run.values.signals import STOP_SIGNALS, in_words


def paused_by(event: Event) -> bool | None:
    """Whether ddp-run is about to stop with its job (Ctrl-Z), or has gone on; null for any other event."""
    match event:
        case SignalSent(target=Target.JOB, signum=Signals.SIGSTOP):
            return True
        case SignalSent(target=Target.JOB, signum=Signals.SIGCONT):
            return False
        case _:
            return None


def line_of(event: Event, *, agent_restarts: bool, agent_needed: bool = True) -> str | None:
    """The line; null for an event that means no failure. With `agent_restarts` the agents start failed ranks again."""
    match event:
        case RankFailed() | RankExited() if agent_restarts:
            return None
        case RankFailed(rank=rank, exception=raised):
            return f"rank {rank} raised {raised.type}" if raised is not None else f"rank {rank} failed"
        case RankExited(rank=rank, code=code) if code != 0:
            return f"rank {rank} ended ({in_words(code)})"
        case AgentExited(code=code) if code != 0 and agent_needed:
            return f"torch's agent ended ({in_words(code)})"
        case HangTimedOut(after_s=after_s):
            return f"no progress for {after_s:.0f} s (--hang-timeout)"
        case SignalReceived(signum=signum) if signum in STOP_SIGNALS:
            return f"stopped by {in_words(-signum)}"
        case _:
            return None
