"""What a run knows of its attempts so far, and what follows from the last one: the count, the port, the backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from ddp_run.plan.launch_plan import LaunchPlan
from ddp_run.supervise.agent_start import MasterPorts

if TYPE_CHECKING:
    from ddp_run.judge.retry import Decision
    from ddp_run.judge.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended and what follows."""

    verdict: Verdict
    decision: Decision


@final
@dataclass(slots=True)
class Retries:
    """Of one run. With several nodes each has its own, and node 0 decides for all."""

    plan: LaunchPlan
    is_connected: Callable[[], bool]
    """To the other nodes."""
    started: int = 0
    """Attempts whose agent was started; so also the number, from 0, of the next one."""
    counted: int = 0
    """Attempts that count against --max-retries."""
    port: int | None = None
    """The last attempt's master port."""
    backend: str | None = None
    """The process-group backend of the next attempt, where it is another than the program's."""
    verdicts: list[Verdict] = field(default_factory=list)
    _ports_lost: int = 0
    _agreed_port: int | None = None
    """The next attempt's, where several nodes have agreed on it."""
    _ports: MasterPorts = field(init=False)

    def __post_init__(self) -> None:
        self._ports = MasterPorts(self.plan)

    @property
    def are_used_up(self) -> bool:
        """Whether no attempt may follow that counts."""
        return self.counted >= self.plan.options.max_retries

    def choose_port(self) -> int | None:
        """Choose the next attempt's port; gives the one to put in the user's place."""
        self.port, override = self._ports.choose(self.started, self._agreed_port)
        return override

    def decide(self, verdict: Verdict) -> Decision:
        """What follows an attempt; with several nodes, node 0 is asked for all."""
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
            port = self._ports.another()
        except OSError as error:
            return retry.not_started(self.started + 1, error)
        then = f"; starting again on port {port} (this does not count as a retry)" if lost_its_port else ""
        return replace(decision, port=port, reason=decision.reason + then)

    def count(self, verdict: Verdict, decision: Decision) -> None:
        """An attempt is over, and this follows."""
        self.verdicts.append(verdict)
        self._agreed_port = decision.port
        if not decision.free:
            self.counted += 1
            return
        self.backend = decision.backend or self.backend
        self._ports_lost += decision.backend is None
