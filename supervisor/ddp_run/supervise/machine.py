"""The state machine of one attempt: events in, orders out. It reads no clock, opens no file and touches no process.

The agent starts the ranks, and ends the others when one fails. The machine supervises that: every path to the end has a
deadline, so an agent or a rank that doesn't end can't hold up the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from signal import Signals
from typing import assert_never, final

from ddp_run.plan.launch_plan import AgentNeeded
from ddp_run.record.events import (
    AgentExited,
    AgentReported,
    AgentStarted,
    AllRanksEnded,
    Event,
    HangTimedOut,
    PeerFailed,
    Rank,
    RankExited,
    RankFailed,
    RankStarted,
    SignalReceived,
    Target,
    Timer,
    TimerFired,
    TimerKind,
)
from ddp_run.supervise.actions import (
    Action,
    AwaitReport,
    FinishAttempt,
    SendSignal,
    SetTimer,
    TellFailed,
    TellRanksEnded,
    TellUnfinished,
)
from ddp_run.values.signals import NOTICE_SIGNALS, STOP_SIGNALS, in_words
from ddp_run.values.words import node_name

# After the grace period everything left gets SIGKILL. The kernel and the verdict share what remains of "grace + 1 s"; a
# process that even SIGKILL doesn't end (state D) isn't waited for.
_AGENT_WINDS_UP_S = 0.3
_GIVE_UP_S = 0.3
# An agent whose ranks have all ended only has to say so. On a loaded host that can take seconds.
_AGENT_AFTER_RANKS_S = 5.0
_UNFINISHED_S = 2.0
"""How long ranks may take to end before ddp-run says so."""
_STILL_UNFINISHED_S = 10.0
"""Between two such lines."""
_GRACE_OF_HUNG_S = 5.0
"""A rank that hangs usually can't hear SIGTERM either."""

_GRACE, _AGENT, _GIVE_UP = (Timer(kind, None, None) for kind in (TimerKind.GRACE, TimerKind.AGENT, TimerKind.GIVE_UP))
_END_AGENT = SendSignal(
    Target.AGENT, Signals.SIGKILL, "all ranks have exited; the teardown of the agent itself is slow"
)
_WHEN_ENDED_WELL: dict[AgentNeeded, list[Action]] = {
    AgentNeeded.FOR_ITS_RANKS: [_END_AGENT],
    AgentNeeded.FOR_OTHER_AGENTS: [TellRanksEnded()],
    AgentNeeded.FOR_ALL_RANKS: [TellRanksEnded()],
    AgentNeeded.TO_ITS_END: [],
}


class _State(Enum):
    RUNNING = auto()
    FAILING = auto()
    """A rank has failed for good: the agent ends the others."""
    STOPPING = auto()
    """ddp-run was told to stop: the agent has the signal and hands it to the ranks."""
    KILLING = auto()
    """Everything has SIGKILL."""
    DONE = auto()


@dataclass(slots=True)
class _Member:
    restart: int
    of: int = 0
    """How many ranks started with it on this node."""
    alive: bool = True
    program_failed: RankFailed | None = None
    """Its own report that its program failed."""
    failed: bool = False
    """It ended badly."""
    known: bool = False
    """Its exit code was read."""


@final
@dataclass
class AttemptMachine:
    """One attempt. `grace_s`: seconds between being asked to end and SIGKILL."""

    grace_s: float
    restarts: int | None = 0
    """How often the agent restarts its ranks after a failure. None: it decides with other nodes' agents, which may end
    and start ranks for reasons that can't be seen here."""
    agent_signals: frozenset[int] = STOP_SIGNALS
    """Signals that the agent itself hands to the ranks."""
    agent_needed: AgentNeeded = AgentNeeded.TO_ITS_END
    _state: _State = _State.RUNNING
    _ranks: dict[Rank, _Member] = field(default_factory=dict)
    _agent_alive: bool = False
    stop_signal: int | None = None
    _ended_by_peer: bool = False
    """Our ranks were asked to end because of another node."""
    _grace_over: bool = False
    _why: str = ""
    """Why the ranks have to end."""
    _left_s: dict[tuple[Rank | None, int | None], float] = field(default_factory=dict)
    """By rank and restart, as in `Timer`: seconds from the next line about unfinished ranks to the kill."""

    def on(self, event: Event) -> list[Action]:
        """Returns what to do about an event."""
        match event:
            case AgentStarted():
                self._agent_alive = True
                return []
            case RankStarted():
                self._ranks[event.rank] = _Member(event.restart, event.local_world_size)
                return []
            case RankFailed():
                return self._on_rank_failed(event)
            case RankExited():
                return self._on_rank_exited(event)
            case AgentReported():
                return [_END_AGENT] if self._agent_alive else []
            case AgentExited():
                self._agent_alive = False
                return self._finish()
            case SignalReceived():
                return self._on_signal(event.signum)
            case TimerFired():
                return self._on_timer(event.timer)
            case AllRanksEnded():
                return self._on_all_ranks_ended()
            case HangTimedOut():
                return self._on_hang(event)
            case PeerFailed():
                return self._on_peer_failed(event)
            case _:
                return []

    @property
    def is_running(self) -> bool:
        """Whether nothing has failed and nobody has stopped the job."""
        return self._state is _State.RUNNING

    @property
    def _anyone_alive(self) -> bool:
        return any(member.alive for member in self._ranks.values())

    def _on_rank_failed(self, event: RankFailed) -> list[Action]:
        # A rank can hang in its own teardown (atexit, NCCL's drain). Then the agent never sees it die.
        if self._state in (_State.KILLING, _State.DONE):
            return []
        member = self._ranks.get(event.rank)
        if member is None or member.restart != event.restart:
            return []
        member.program_failed = event
        return self._bound(Timer(TimerKind.TEARDOWN, event.rank, event.restart))

    def _on_rank_exited(self, event: RankExited) -> list[Action]:
        member = self._ranks.get(event.rank)
        if member is None or member.restart != event.restart:
            return []
        member.alive = False
        member.known = event.code is not None
        # An exit code that couldn't be read must not end a job: the agent knows it and will act.
        member.failed = member.program_failed is not None if event.code is None else event.code != 0
        if self._state is _State.RUNNING and event.code == 0 and member.program_failed and self._anyone_alive:
            return [TellFailed(member.program_failed)]
        if self._state is _State.RUNNING and member.failed:
            self._why = f"rank {event.rank} ended with {in_words(event.code)}"
            if self.restarts is None or event.restart < self.restarts:
                return self._bound(Timer(TimerKind.SURVIVORS, None, event.restart))
            self._state = _State.FAILING
            return [*self._bound(_GRACE), *self._when_all_ended()]
        return self._when_all_ended()

    def _on_all_ranks_ended(self) -> list[Action]:
        if self.agent_needed is AgentNeeded.TO_ITS_END:
            return []
        self.agent_needed = AgentNeeded.FOR_ITS_RANKS
        return self._when_all_ended()

    def _when_all_ended(self) -> list[Action]:
        if self._anyone_alive or not self._agent_alive:
            return []
        if self._state is _State.FAILING:
            within_s = min(_AGENT_AFTER_RANKS_S, self.grace_s + _AGENT_WINDS_UP_S)
            return [SetTimer(_AGENT, within_s), *([AwaitReport()] if self._ends_agent else [])]
        if self._state is _State.STOPPING:
            if self.agent_needed is AgentNeeded.FOR_ALL_RANKS:
                return []  # the other nodes' ranks have the grace period too
            ends_agent = self._ends_agent and self._all_known
            return [SetTimer(_AGENT, _AGENT_AFTER_RANKS_S), *([_END_AGENT] if ends_agent else [])]
        failed = any(member.failed for member in self._ranks.values())
        if self._state is _State.RUNNING and self._all_known and not failed:
            return _WHEN_ENDED_WELL[self.agent_needed]
        return []

    @property
    def _ends_agent(self) -> bool:
        """Whether to end the agent of a failed or stopped job once its ranks have ended, without waiting for it."""
        return self.agent_needed in (AgentNeeded.FOR_ITS_RANKS, AgentNeeded.FOR_OTHER_AGENTS)

    @property
    def _all_known(self) -> bool:
        """All ranks of the latest restart have ended, and their exit codes are known."""
        latest = max((member.restart for member in self._ranks.values()), default=0)
        ranks = [member for member in self._ranks.values() if member.restart == latest]
        complete = bool(ranks) and len(ranks) >= ranks[0].of and not any(member.alive for member in ranks)
        return complete and all(member.known for member in ranks)

    def _on_signal(self, signum: int) -> list[Action]:
        # The agent's handler hands the signal to each rank once; no rank may get it twice.
        target = Target.AGENT if signum in self.agent_signals else Target.RANKS
        if signum in NOTICE_SIGNALS:
            return [SendSignal(target, signum, "forwarded", only_if_handled=True)]
        if signum not in STOP_SIGNALS or self._state is _State.DONE:
            return []
        first = self.stop_signal is None
        self.stop_signal = self.stop_signal or signum
        if first and self._ended_by_peer and self._state is _State.STOPPING:
            return []  # the same stop came through another node first: the ranks were asked and have the grace period
        if self._state is not _State.RUNNING:
            why = "second stop signal" if not first else "stop signal while the job was shutting down"
            return self._kill(why)
        return self._stop("stopping", SendSignal(target, signum, "forwarded"))

    def _on_hang(self, event: HangTimedOut) -> list[Action]:
        if self._state is not _State.RUNNING:
            return []
        self.grace_s = min(self.grace_s, _GRACE_OF_HUNG_S)
        return self._end_ranks(f"no progress for {event.after_s:.0f} s (--hang-timeout)")

    def _on_peer_failed(self, event: PeerFailed) -> list[Action]:
        if self._state is not _State.RUNNING:
            return []
        reason = f"{node_name(event.node_rank, event.host)}: {event.said}"
        self._ended_by_peer = True
        # An agent without ranks still waits for the other nodes' agents.
        return self._end_ranks(reason) if self._ranks else self._kill(reason)

    def _end_ranks(self, reason: str) -> list[Action]:
        # Not through the agent: it would wait for ranks that can't hear it.
        return self._stop(reason, SendSignal(Target.RANKS, Signals.SIGTERM, reason))

    def _stop(self, why: str, order: SendSignal) -> list[Action]:
        self._state, self._why = _State.STOPPING, why
        return [order, *self._bound(_GRACE), *self._when_all_ended()]

    def _bound(self, timer: Timer) -> list[Action]:
        """Give ranks the grace period to end; before it's over, lines name those that haven't."""
        self._left_s[timer.rank, timer.restart] = self.grace_s
        return [*self._told_after(timer.rank, timer.restart, _UNFINISHED_S), SetTimer(timer, self.grace_s)]

    def _told_after(self, rank: Rank | None, restart: int | None, after_s: float) -> list[Action]:
        self._left_s[rank, restart] -= after_s
        told = SetTimer(Timer(TimerKind.UNFINISHED, rank, restart), after_s)
        return [told] if self._left_s[rank, restart] > 0 else []

    def _on_timer(self, timer: Timer) -> list[Action]:
        if self._state is _State.DONE:
            return []
        match timer.kind:
            case TimerKind.GRACE | TimerKind.AGENT if self._state is _State.RUNNING:
                return []
            case TimerKind.GRACE:
                self._grace_over = True
                if self._anyone_alive or not self._ranks:
                    return self._kill(f"still running {self.grace_s:g} s after the stop request")
                return [SetTimer(_AGENT, _AGENT_WINDS_UP_S)]
            case TimerKind.AGENT if self._anyone_alive and not self._grace_over:
                return []  # a rank has said hello since: it has the rest of the grace period
            case TimerKind.AGENT:
                return self._kill("no rank is running, but the agent has not exited")
            case TimerKind.GIVE_UP:
                return self._finish()
            case TimerKind.UNFINISHED:
                return self._tell_unfinished(timer)
            case TimerKind.TEARDOWN:
                return self._kill_ranks(timer, "its program failed {} s ago but the process has not exited")
            case TimerKind.SURVIVORS:
                return self._kill_ranks(
                    timer, "still running {} s after another rank failed; the agent will restart it"
                )
            case _:
                assert_never(timer.kind)

    def _kill(self, reason: str) -> list[Action]:
        if self._state is _State.KILLING:
            return []
        self._state = _State.KILLING
        return [SendSignal(Target.JOB, Signals.SIGKILL, reason), SetTimer(_GIVE_UP, _GIVE_UP_S)]

    def _due(self, timer: Timer) -> tuple[Rank, ...]:
        """The ranks whose deadline this is and that haven't ended."""
        alive = ((rank, each.restart) for rank, each in self._ranks.items() if each.alive)
        return tuple(rank for rank, at in alive if timer.rank in (None, rank) and timer.restart in (None, at))

    def _tell_unfinished(self, timer: Timer) -> list[Action]:
        ranks = self._due(timer)
        if not ranks or self._state is _State.KILLING:
            return []
        why = self._why if timer.rank is None else self._ranks[timer.rank].program_failed
        if not why:
            return []
        told = TellUnfinished(why, ranks, self._left_s.get((timer.rank, timer.restart), 0), self.stop_signal)
        return [told, *(self._told_after(None, timer.restart, _STILL_UNFINISHED_S) if timer.rank is None else ())]

    def _kill_ranks(self, timer: Timer, reason: str) -> list[Action]:
        ranks = self._due(timer)
        said = reason.format(f"{self.grace_s:g}")
        return [SendSignal(Target.RANKS, Signals.SIGKILL, said, ranks=ranks)] if ranks else []

    def _finish(self) -> list[Action]:
        if self._state is _State.DONE:
            return []
        self._state = _State.DONE
        return [FinishAttempt()]
