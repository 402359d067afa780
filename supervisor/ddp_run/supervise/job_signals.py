"""Signals to the agent, the ranks, or all of the job: whom an order reaches."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import assert_never, final

from ddp_run.observe import processes
from ddp_run.record.events import Event, Noted, SignalSent, Target
from ddp_run.record.journal import now
from ddp_run.supervise.actions import SendSignal
from ddp_run.supervise.ranks import Ranks
from ddp_run.values.process_table import send, send_one


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
        whom = self._whom(order)
        deaf = [pid for pid in whom if order.only_if_handled and not processes.outlives(pid, order.signum)]
        if order.only_if_handled:
            name = signal.Signals(order.signum).name
            if not whom:
                yield Noted(now(), f"{name} not forwarded: no rank is running")
            if deaf:
                yield Noted(now(), f"{name} not forwarded to {deaf}: no handler, it would kill them")
        reached = tuple(pid for pid, tell in whom.items() if pid not in deaf and tell(order.signum))
        if order.signum == signal.SIGKILL:
            self.killed.update(reached)
            self.agent_killed |= self._agent() in reached
        yield SignalSent(now(), order.target, order.signum, reached, order.reason)

    def to_job(self, signum: int, reason: str) -> SignalSent:
        """All of the job."""
        reached = send(processes.descendants(but=self._others()), signum)
        return SignalSent(now(), Target.JOB, signum, reached, reason)

    def _whom(self, order: SendSignal) -> Mapping[int, Callable[[int], object]]:
        """By pid what signals it, and says whether it was reached."""
        match order.target:
            case Target.AGENT:
                agent = self._agent()  # our child, which only we wait for: its number is still its own
                return {} if agent is None else {agent: partial(send_one, agent)}
            case Target.RANKS:
                return {
                    each.event.pid: partial(send_one, each.event.pid, pidfd=each.pidfd)
                    for each in self._ranks
                    if each.alive and (not order.ranks or each.event.rank in order.ranks)
                }
            case Target.JOB | Target.LEFTOVERS:
                job = processes.descendants(but=self._others())
                return {pid: partial(send, {pid: began}) for pid, began in job.items()}
            case _:
                assert_never(order.target)
