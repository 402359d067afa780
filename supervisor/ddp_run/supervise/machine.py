"""The state machine of one attempt: facts in, orders out. Reads no clock, opens no file, touches no process.

The agent starts ranks, and ends the others when one fails. This machine watches over that: every way to the end has a
deadline, so that an agent or a rank that does not end by itself cannot hold the attempt.
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
    Kept,
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
    SuspendSelf,
    TellFailed,
    TellRanksEnded,
    TellUnfinished,
)
from ddp_run.values.signals import NOTICE_SIGNALS, STOP_SIGNALS, in_words

HANDLED_SIGNALS = STOP_SIGNALS | NOTICE_SIGNALS | {Signals.SIGTSTP, Signals.SIGCHLD}

# After the grace everything left gets SIGKILL. What is left of "grace + 1 s" is for the kernel to end it and for the
# verdict; a process that even SIGKILL does not end (state D) is not waited for.
_AGENT_WINDS_UP_S = 0.3
_GIVE_UP_S = 0.3
# An agent whose ranks have all ended has nothing to do but to say so; on a loaded host that can take it seconds.
_AGENT_AFTER_RANKS_S = 5.0
_UNFINISHED_S = 2.0
"""How long ranks that are to end may take before people are told."""
_STILL_UNFINISHED_S = 10.0
"""And told again."""
_GRACE_OF_HUNG_S = 5.0
"""A rank that hangs mostly cannot hear SIGTERM either."""


_GRACE, _AGENT, _GIVE_UP = Timer(TimerKind.GRACE), Timer(TimerKind.AGENT), Timer(TimerKind.GIVE_UP)
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
    """We were told to stop: the agent has the signal and hands it to the ranks."""
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
    """The rank's own report that its program failed."""
    failed: bool = False
    """It ended, and not well."""
    known: bool = False
    """Its exit code was read."""


@final
@dataclass
class AttemptMachine:
    """One attempt. `grace_s`: seconds between being asked to end and SIGKILL."""

    grace_s: float
    restarts: int | None = 0
    """How often the agent starts its ranks again after a failure; null: it decides together with other nodes' agents,
    which may end and start ranks for reasons that cannot be seen here."""
    agent_signals: frozenset[int] = STOP_SIGNALS
    """Signals that the agent takes and hands to the ranks itself."""
    agent_needed: AgentNeeded = AgentNeeded.TO_ITS_END
    _state: _State = _State.RUNNING
    _ranks: dict[Rank, _Member] = field(default_factory=dict)
    _agent_alive: bool = False
    stop_signal: int | None = None
    _ended_by_peer: bool = False
    """Another node had our ranks asked to end."""
    _grace_over: bool = False
    _why: str = ""
    """For what ranks are to end."""
    _left_s: dict[tuple[Rank | None, int | None], float] = field(default_factory=dict)
    """By rank and start, as in `Timer`: seconds from the next time that people are told to the kill."""

    def on(self, event: Event) -> list[Action]:
        """What to do about an event."""
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
                return self._on_timer(event)
            case AllRanksEnded():
                return self._on_all_ranks_ended()
            case HangTimedOut():
                return self._on_hang(event)
            case PeerFailed():
                return self._on_peer_failed(event)
            case _:
                return _nothing(event)

    @property
    def _anyone_alive(self) -> bool:
        return bool(self._living())

    def _on_rank_failed(self, event: RankFailed) -> list[Action]:
        # A rank can hang in its own teardown (atexit, NCCL's drain): then its agent never sees it die.
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
        # An unread code alone must not end a job: the agent knows it and will act.
        member.failed = member.program_failed is not None if event.code is None else event.code != 0
        if self._state is _State.RUNNING and event.code == 0 and member.program_failed and self._anyone_alive:
            return [TellFailed(member.program_failed)]
        if self._state is _State.RUNNING and member.failed:
            self._why = f"rank {event.rank} ended with {in_words(event.code)}"
            if self.restarts is None or event.restart < self.restarts:
                return self._bound(Timer(TimerKind.SURVIVORS, restart=event.restart))
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
                return []  # those of other nodes have the grace, too
            ends_agent = self._ends_agent and self._all_known
            return [SetTimer(_AGENT, _AGENT_AFTER_RANKS_S), *([_END_AGENT] if ends_agent else [])]
        if self._state is _State.RUNNING and self._all_known and not self._any_failed:
            return _WHEN_ENDED_WELL[self.agent_needed]
        return []

    @property
    def _ends_agent(self) -> bool:
        """Whether the agent of a job that does not go well need not be waited for once its ranks have ended."""
        return self.agent_needed in (AgentNeeded.FOR_ITS_RANKS, AgentNeeded.FOR_OTHER_AGENTS)

    @property
    def _any_failed(self) -> bool:
        return any(member.failed for member in self._ranks.values())

    @property
    def _all_known(self) -> bool:
        """All ranks of the last start have ended, and how is known."""
        latest = max((member.restart for member in self._ranks.values()), default=0)
        ranks = [member for member in self._ranks.values() if member.restart == latest]
        complete = bool(ranks) and len(ranks) >= ranks[0].of and not any(member.alive for member in ranks)
        return complete and all(member.known for member in ranks)

    def _on_signal(self, signum: int) -> list[Action]:
        if signum == Signals.SIGTSTP:
            return [SuspendSelf()]
        if signum in NOTICE_SIGNALS:
            target = Target.AGENT if signum in self.agent_signals else Target.RANKS
            return [SendSignal(target, signum, "forwarded", only_if_handled=True)]
        if signum not in STOP_SIGNALS or self._state is _State.DONE:
            return []
        first = self.stop_signal is None
        self.stop_signal = self.stop_signal or signum
        if first and self._ended_by_peer and self._state is _State.STOPPING:
            return []  # the same stop, by way of a node that had it earlier: the ranks were asked, and have the grace
        if self._state is not _State.RUNNING:
            why = "second stop signal" if not first else "stop signal while the job was shutting down"
            return self._kill(why)
        self._state, self._why = _State.STOPPING, "stopping"
        # The agent's handler hands the signal to each rank once; a rank must not get it twice.
        if signum in self.agent_signals:
            orders: list[Action] = [SendSignal(Target.AGENT, signum, "forwarded")]
        else:
            orders = [SendSignal(Target.RANKS, signum, "forwarded")]
        return [*orders, *self._bound(_GRACE), *self._when_all_ended()]

    def _on_hang(self, event: HangTimedOut) -> list[Action]:
        if self._state is not _State.RUNNING:
            return []
        self.grace_s = min(self.grace_s, _GRACE_OF_HUNG_S)
        # The ranks before the agent: the agent would wait for ranks that cannot hear it.
        return self._end_ranks(f"no progress for {event.after_s:.0f} s (--hang-timeout)")

    def _on_peer_failed(self, event: PeerFailed) -> list[Action]:
        if self._state is not _State.RUNNING:
            return []
        reason = f"node {event.node_rank}: {event.said}"
        self._ended_by_peer = True
        # Without ranks the agent still waits for the other nodes' agents.
        return self._end_ranks(reason) if self._ranks else self._kill(reason)

    def _end_ranks(self, reason: str) -> list[Action]:
        self._state, self._why = _State.STOPPING, reason
        orders: list[Action] = [SendSignal(Target.RANKS, Signals.SIGTERM, reason)]
        return [*orders, *self._bound(_GRACE), *self._when_all_ended()]

    def _bound(self, timer: Timer) -> list[Action]:
        """A deadline for ranks that are to end: after the grace. Before it, people are told of those that have not."""
        self._left_s[timer.rank, timer.restart] = self.grace_s
        return [*self._told_after(timer.rank, timer.restart, _UNFINISHED_S), SetTimer(timer, self.grace_s)]

    def _told_after(self, rank: Rank | None, restart: int | None, after_s: float) -> list[Action]:
        self._left_s[rank, restart] -= after_s
        told = SetTimer(Timer(TimerKind.UNFINISHED, rank, restart), after_s)
        return [told] if self._left_s[rank, restart] > 0 else []

    @property
    def is_running(self) -> bool:
        """Whether nothing has failed and nobody has told the job to stop."""
        return self._state is _State.RUNNING

    def _on_timer(self, event: TimerFired) -> list[Action]:
        if self._state is _State.DONE:
            return []
        match event.kind:
            case TimerKind.GRACE | TimerKind.AGENT if self._state is _State.RUNNING:
                return []
            case TimerKind.GRACE:
                self._grace_over = True
                if self._anyone_alive or not self._ranks:
                    return self._kill(f"still running {self.grace_s:g} s after the stop request")
                return [SetTimer(_AGENT, _AGENT_WINDS_UP_S)]
            case TimerKind.AGENT if self._anyone_alive and not self._grace_over:
                return []  # a rank has said hello since: it has the rest of the grace
            case TimerKind.AGENT:
                return self._kill("no rank is running, but the agent has not exited")
            case TimerKind.GIVE_UP:
                return self._finish()
            case TimerKind.UNFINISHED:
                return self._tell_unfinished(event)
            case TimerKind.TEARDOWN:
                return self._kill_unfinished(event)
            case TimerKind.SURVIVORS:
                return self._kill_survivors(event.restart)
            case _:
                assert_never(event.kind)

    def _kill(self, reason: str) -> list[Action]:
        if self._state is _State.KILLING:
            return []
        self._state = _State.KILLING
        return [SendSignal(Target.JOB, Signals.SIGKILL, reason), SetTimer(_GIVE_UP, _GIVE_UP_S)]

    def _unfinished(self, event: TimerFired) -> _Member | None:
        """The rank whose deadline it was, if it is still there."""
        member = None if event.rank is None else self._ranks.get(event.rank)
        return member if member is not None and member.alive and member.restart == event.restart else None

    def _tell_unfinished(self, event: TimerFired) -> list[Action]:
        why: str | RankFailed | None = self._why
        ranks = self._living(event.restart)
        if event.rank is not None:
            member = self._unfinished(event)
            ranks, why = (event.rank,), None if member is None else member.program_failed
        if not why or not ranks or self._state is _State.KILLING:
            return []
        told = TellUnfinished(why, ranks, self._left_s.get((event.rank, event.restart), 0), self.stop_signal)
        return [told, *(self._told_after(None, event.restart, _STILL_UNFINISHED_S) if event.rank is None else ())]

    def _living(self, restart: int | None = None) -> tuple[Rank, ...]:
        """The ranks that have not ended, of one start or all."""
        return tuple(rank for rank, each in self._ranks.items() if each.alive and restart in (None, each.restart))

    def _kill_unfinished(self, event: TimerFired) -> list[Action]:
        if event.rank is None or self._unfinished(event) is None:
            return []
        reason = f"its program failed {self.grace_s:g} s ago but the process has not exited"
        return [SendSignal(Target.RANKS, Signals.SIGKILL, reason, ranks=(event.rank,))]

    def _kill_survivors(self, restart: int | None) -> list[Action]:
        left = self._living(restart)
        if not left:
            return []
        reason = f"still running {self.grace_s:g} s after another rank failed; the agent will restart it"
        return [SendSignal(Target.RANKS, Signals.SIGKILL, reason, ranks=left)]

    def _finish(self) -> list[Action]:
        if self._state is _State.DONE:
            return []
        self._state = _State.DONE
        return [FinishAttempt()]


def _nothing(_event: Kept) -> list[Action]:
    """What to do about an event that decides nothing; its type makes a decisive one without an arm above an error."""
    return []
