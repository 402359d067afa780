"""What a run knows about its attempts so far, and what follows the last one: how many more, which port and backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from ddp_run.plan.launch_plan import LaunchPlan

if TYPE_CHECKING:
    from tenacity.wait import wait_base

    from ddp_run.judge.retry import Decision
    from ddp_run.judge.verdict import Verdict

_NEAR = 32
"""How far from the first port to look for the next one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended and what follows."""

    verdict: Verdict
    decision: Decision


@final
@dataclass(slots=True)
class Retries:
    """A run's count of attempts. With several nodes each has one, and node 0 decides for all."""

    plan: LaunchPlan
    is_connected: Callable[[], bool]
    """To the other nodes."""
    started: int = 0
    """Attempts whose agent was started, so also the next one's number (from 0)."""
    counted: int = 0
    """Attempts that count against --max-retries."""
    port: int | None = None
    """The last attempt's master port; None if torch takes a free one."""
    backend: str | None = None
    """The next attempt's process-group backend, if it differs from the program's."""
    verdicts: list[Verdict] = field(default_factory=list)
    _ports_lost: int = 0
    _agreed_port: int | None = None
    """The next attempt's master port, if the nodes have agreed on one."""
    _used_ports: set[int] = field(default_factory=set)

    @property
    def are_used_up(self) -> bool:
        """Whether no further attempt may count."""
        return self.counted >= self.plan.options.max_retries

    def choose_port(self) -> int | None:
        """Choose the next attempt's master port. Returns the one to use in place of the user's, if any."""
        chosen, override = self.plan.chosen_port, self._agreed_port
        if override is None:
            fixed = chosen is None or self.started == 0 or self.plan.options.max_nodes > 1
            if not fixed or self.plan.options.needs_port:
                from ddp_run.plan.net import free_port

                override = free_port(self.plan.master or "127.0.0.1", avoid=self._used_ports)
        self.port = override or chosen
        if self.port is not None:
            self._used_ports.add(self.port)
        return override

    def decide(self, verdict: Verdict) -> Decision:
        """Decide what follows an attempt. With several nodes, node 0 is asked for all."""
        from ddp_run.judge import retry

        options = self.plan.options
        decision = retry.decide(
            verdict,
            policy=options.retry,
            asked=options.max_retries,
            retries_left=options.max_retries - self.counted,
            ports_lost=self._ports_lost,
            port=self.port,
            earlier=self.verdicts,
            fallback=options.fallback_backend if self.backend is None else None,
        )
        lost_its_port = decision.free and decision.backend is None
        if not decision.retry or (options.max_nodes == 1 and not lost_its_port):
            return decision
        if options.max_nodes > 1 and not self.is_connected():
            return retry.ALONE
        try:
            port = self._another_port()
        except OSError as error:
            return retry.not_started(self.started + 1, error)
        then = f"; starting again on port {port} (this does not count as a retry)" if lost_its_port else ""
        return replace(decision, port=port, reason=decision.reason + then)

    def begin_at(self, attempt: int, decision: Decision | None) -> None:
        """Take part from this attempt on, which the nodes have decided on without this one."""
        self.started = attempt
        if decision is not None:
            self._agreed_port, self.backend = decision.port, decision.backend

    def count(self, verdict: Verdict, decision: Decision) -> None:
        """Count an attempt that is over, and keep what was decided for the next one."""
        self.verdicts.append(verdict)
        self._agreed_port = decision.port
        if not decision.free:
            self.counted += 1
            return
        self.backend = decision.backend or self.backend
        self._ports_lost += decision.backend is None

    def _another_port(self) -> int:
        """A free port on this host for the next attempt, if possible just after the first. Raises OSError.

        Rented machines often have a range of open ports, if any.
        """
        from ddp_run.plan.net import free_port, port_is_free

        ip, first = self.plan.master, self.plan.chosen_port or 0
        for port in range(first + 1, min(first + _NEAR, 65536)) if first else ():
            if port not in self._used_ports and port_is_free(port, ip):
                return port
        return free_port(ip, avoid=self._used_ports)


def back_off() -> wait_base:
    """Seconds between attempts: none before the first retry, then 1, 2, 4 … 60.

    These plus up to half a second, so that a host's jobs don't start together.
    """
    from tenacity import wait_chain, wait_exponential, wait_none, wait_random

    return wait_chain(wait_none(), wait_exponential(multiplier=0.5, min=1, max=60) + wait_random(0, 0.5))
