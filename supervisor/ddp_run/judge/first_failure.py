"""The rank that failed first and the ranks that followed, as a verdict stores them. Pure."""

from __future__ import annotations

from ddp_run.evidence.crash_text import crash_of
from ddp_run.evidence.model import UNORDERED, Death
from ddp_run.judge.verdict import Collateral, FirstFailure
from ddp_run.record.events import MonotonicNs
from ddp_run.values.signals import signal_name


def of_death(death: Death) -> FirstFailure:
    """A rank that failed, or that exited with 0 while the others still needed it."""
    crash = crash_of(death) if death.exception is None else None
    return FirstFailure(
        rank=death.rank,
        local_rank=death.local_rank,
        node_rank=death.node_rank,
        host=death.host,
        pid=death.pid,
        exit_code=death.code,
        signal=signal_name(death.code),
        at=None if death.order == UNORDERED else MonotonicNs(death.order),
        exception=death.exception if crash is None else crash.exception,
        log=death.stderr.source or None,
    )


def follower(death: Death, reason: str) -> Collateral:
    """A rank that failed because another had failed."""
    return Collateral(death.rank, death.code, signal_name(death.code), reason)
