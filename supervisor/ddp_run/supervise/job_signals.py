"""Signals to the agent, the ranks, or all of the job: whom an order reaches."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence, Set
from typing import assert_never, final

from ddp_run.observe import processes
from ddp_run.record.events import Event, Noted, SignalSent, Target
from ddp_run.record.journal import now
from ddp_run.supervise.actions import SendSignal
from ddp_run.supervise.ranks import Ranks


@final
class JobSignals:
    """Of one attempt. `agent` gives its pid, null once it is gone; `others`: pids below us that are not the job's."""

    def __init__(self, ranks: Ranks, agent: Callable[[], int | None], others: Callable[[], Set[int]]) -> None:
        self._ranks = ranks
        self._agent = agent
        self._others = others
        self.killed: set[int] = set()
        """Pids that have had SIGKILL from us."""
        self.agent_killed = False
        """By us."""

    def send(self, order: SendSignal) -> Iterator[Event]:
        """Do it, and tell whom it reached."""
        pids = self._pids(order)
        if order.only_if_handled:
            name = signal.Signals(order.signum).name
            if not pids:
                yield Noted(now(), f"{name} not forwarded: no rank is running")
            deaf = [pid for pid in pids if not processes.outlives(pid, order.signum)]
            pids = [pid for pid in pids if pid not in deaf]
            if deaf:
                yield Noted(now(), f"{name} not forwarded to {deaf}: no handler, it would kill them")
        reached = processes.send_signal(pids, order.signum)
        if order.signum == signal.SIGKILL:
            self.killed.update(reached)
            self.agent_killed |= self._agent() in reached
        yield SignalSent(now(), order.target, order.signum, reached, order.reason)

    def to_job(self, signum: int, reason: str, pids: Sequence[int] | None = None) -> SignalSent:
        """All of the job, or these of it."""
        reached = tuple(processes.descendants(but=self._others()) if pids is None else pids)
        processes.send_signal(reached, signum)
        return SignalSent(now(), Target.JOB, signum, reached, reason)

    def _pids(self, order: SendSignal) -> list[int]:
        match order.target:
            case Target.AGENT:
                agent = self._agent()
                return [] if agent is None else [agent]
            case Target.RANKS:
                return [
                    process.event.pid
                    for process in self._ranks
                    if process.alive and (not order.ranks or process.event.rank in order.ranks)
                ]
            case Target.JOB | Target.LEFTOVERS:
                return processes.descendants(but=self._others())
            case _:
                assert_never(order.target)
