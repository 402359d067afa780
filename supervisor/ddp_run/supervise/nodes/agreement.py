"""What both sides of the agreement do: wait for missing nodes, hear this one's events, agree on an attempt's end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals

from ddp_run.judge.of_nodes import NodeReport, agreed, alone, ends_of, of_nodes, reported
from ddp_run.judge.retry import Decision
from ddp_run.judge.verdict import Verdict
from ddp_run.observe.picture import Gone, OtherNodes, Picture
from ddp_run.record.events import (
    AgentExited,
    Event,
    HangTimedOut,
    Noted,
    RankExited,
    RankFailed,
    RanksEnded,
    RankStarted,
    SignalReceived,
    SignalSent,
    Target,
)
from ddp_run.record.journal import now
from ddp_run.supervise.nodes.clocks import HostClocks, Standstill, read
from ddp_run.supervise.nodes.messages import Agreed, EndedWell, Failing, Leaving, Numbered, Paused, Report, Start, Word
from ddp_run.supervise.nodes.place import Ears, Place
from ddp_run.tell.selection import last_lines
from ddp_run.values.signals import STOP_SIGNALS, in_words

_SOON_S = 0.05
"""The least time between two looks at who is silent."""
PATIENCE_S = 30.0
"""Between two lines that say whose verdict is waited for."""
WAITING_S = 4.0
"""Before the ranks start: between two looks at who is missing. With the second that it takes to see it, 5 s."""
_FIND_OUT_S = 2.0
"""So long before a look at who is missing, more is asked about those nodes."""
_SAID_AGAIN_S = 60.0
"""What has not changed is said again less and less often, at most after this time."""
FIRST_WORD_S = 20.0
"""A node whose ranks have started, but which hasn't joined by then, runs no ddp-run (but torchrun, say)."""
VERDICTS_S = 4.0
"""How long, beyond the grace, the verdicts of all nodes are waited for once one has failed."""

Decide = Callable[[Verdict], Decision]
"""What follows from the job's verdict. Asked on node 0; the others get its answer."""


class Side(ABC):
    """This node's side: `Hub` on one node, `Member` on every other. With node ranks from the start, node 0 is the hub.

    Both take three steps, and their methods stand in this order. A node joins, or the others say that it is missing.
    It hears its own events and the other nodes. It gives its verdict, and waits for that of all.
    """

    others: OtherNodes
    """What all nodes see together."""

    def __init__(self, place: Place, ears: Ears) -> None:
        self._place, self._ears = place, ears
        self._node_rank = place.node_rank
        """This node's number; None before torch has given it."""
        self._began = time.monotonic()
        self._last_start: tuple[int | None, int] | None = None
        """This node's number and restart when its ranks last started, if torch numbers the nodes."""
        self._started = False
        """Ranks of this node have started: all nodes have met."""
        self._attempt = 0
        """The attempt that runs, or the next one once it is agreed."""
        self._is_ending = False
        """A node fails, so the attempt ends on all nodes."""
        self._all_well = False
        """The ranks of all nodes have ended well: no agent is needed any more."""
        self._agreed: Agreed | None = None
        """What was agreed last."""
        self._standstill, self._clocks = Standstill(), HostClocks()
        self._next_look_s = WAITING_S
        self._missing_said: tuple[str, str] | None = None
        self._say_again_s = 0.0

    @abstractmethod
    def close(self) -> None:
        """This node leaves."""

    # ------------------------------------------------------------------------------------- who is missing

    @abstractmethod
    def _missing(self) -> tuple[str, str]:
        """The nodes that have not joined, and what is known about that."""

    @abstractmethod
    def _find_out(self) -> None:
        """Start to find out what `_missing` will tell."""

    @abstractmethod
    def _give_up(self) -> None:
        """End the job: nodes did not join in time."""

    def _wait_for_missing(self, moment: float) -> None:
        """Say who is missing, more rarely while that stays the same; after the deadline, give up."""
        for_s = moment - self._began
        if for_s > self._place.join_s:
            self._give_up()
        elif for_s > self._next_look_s:
            self._next_look_s += WAITING_S
            whom, why = missing = self._missing()
            if missing != self._missing_said:
                self._ears.say(f"waiting for {whom} for {for_s:.0f} s{why}")
                self._missing_said, self._say_again_s = missing, 2 * for_s
            elif for_s >= self._say_again_s:
                self._ears.say(f"still waiting for {whom} after {for_s:.0f} s")
                self._say_again_s = for_s + min(for_s, _SAID_AGAIN_S)
        elif for_s > self._next_look_s - _FIND_OUT_S:
            self._find_out()

    # --------------------------------------------------------------------------------------- who hears whom

    def hear(self, event: Event) -> None:
        """A sink of this node's events: the others are told what they must know."""
        place = self._place
        if isinstance(event, RankStarted):
            self._started = True
            start = event.group_rank, event.restart
            if place.node_rank is None and event.group_rank is not None and start != self._last_start:
                self._node_rank, self._last_start = event.group_rank, start
                self._tell(Numbered(event.group_rank, event.group_world_size or place.nodes))
        word = self._word_of(event)
        if isinstance(word, Paused):  # while paused it hears nothing, so others aren't silent
            self._standstill = Standstill()
        if word is not None:
            self._tell(word)
        if isinstance(event, RanksEnded):
            self._share_end()

    def _word_of(self, event: Event) -> Word | None:
        """What the other nodes must know of an event; None for most.

        In an elastic job a node may leave. But an agent closes torch's rendezvous, unless it's killed or told to stop
        (torch 2.13, launcher/api.py, `launch_agent`).
        """
        attempt = self._attempt

        def leaves(said: str) -> Word:
            return Failing(attempt, said) if self._place.least is None else Leaving(said)

        match event:
            case SignalSent(target=Target.JOB, signum=Signals.SIGSTOP | Signals.SIGCONT as signum):
                return Paused(signum == Signals.SIGSTOP)
            case RanksEnded():
                return EndedWell(attempt)
            case RankFailed() | RankExited() if self._place.agent_restarts:
                return None
            case RankFailed(rank=rank, exception=raised):
                how = f"raised {raised.type}" if raised is not None else "failed"
                return Failing(attempt, f"rank {rank} {how}")
            case RankExited(rank=rank, code=code) if code != 0:
                return Failing(attempt, f"rank {rank} ended ({in_words(code)})")
            case AgentExited(code=code) if code != 0 and not self._all_well:
                said = f"torch's agent ended ({in_words(code)})"
                return leaves(said) if code < 0 else Failing(attempt, said)
            case HangTimedOut(after_s=after_s):
                return Failing(attempt, f"no progress for {after_s:.0f} s (--hang-timeout)")
            case SignalReceived(signum=signum) if signum in STOP_SIGNALS:
                return leaves(f"stopped by {in_words(-signum)}")
            case _:
                return None

    @abstractmethod
    def _tell(self, word: Word) -> None:
        """Tell the other nodes about this one."""

    def _beat(self) -> None:
        """Once a second: look at this host's own clocks, then at the others."""
        moment = time.monotonic()
        for line in self._clocks.look(read()):
            self._ears.emit(Noted(now(), line))
            self._ears.say(line)
        again_s = self._look(moment, self._standstill.look(moment))
        self._ears.loop.set_timer(max(again_s, _SOON_S), self._beat, lasting=True)

    @abstractmethod
    def _look(self, moment: float, stood_s: float) -> float:
        """See who is missing, silent or lost. Returns in how many seconds to look again.

        `stood_s`: for so long ddp-run stood still and heard nothing.
        """

    def _share_end(self) -> None:
        """All ranks of this node have ended with 0: that is what it shows from now on."""
        ends, at = ends_of(self._ears.events, self._attempt), now()
        left = tuple(
            Gone(rank, (at - left_at) / 1e9) for rank, left_at in zip(ends.finished, ends.finished_at, strict=True)
        )
        self.others.share(Picture(left=left, quiet_s=min((gone.for_s for gone in left), default=0.0)))

    # ------------------------------------------------------------------------------------ how all agree

    @property
    def is_left_out(self) -> bool:
        """A spare node has taken the place of this one."""
        return self._agreed is not None and self._agreed.left_out

    @abstractmethod
    def await_part(self) -> Start | tuple[Verdict, Decision]:
        """With spare nodes: wait until this node takes part. How the job ended, if it never does, or not again."""

    def agree(self, verdict: Verdict, attempt: int, decide: Decide) -> tuple[Verdict, Decision]:
        """The job's verdict on an attempt, from this node's own, and what follows.

        This node's own, and no retry, if the others can't be asked, or whatever goes wrong.
        """
        events = self._ears.events
        try:
            lines = last_lines(verdict, events, Path(self._place.folder))
            return self._agree(Report(attempt, verdict, lines, ends_of(events, attempt)), decide)
        except Exception as error:
            if self._agreed is not None and self._agreed.attempt == attempt:  # the other nodes go by it
                return self._agreed.verdict, self._agreed.decision
            note = f"no agreement with other nodes: {type(error).__name__}: {error}"
            return replace(verdict, notes=(*verdict.notes, note)), Decision(False, note)

    @abstractmethod
    def _agree(self, own: Report, decide: Decide) -> tuple[Verdict, Decision]:
        """Give this node's own report, and wait for what all agree on."""

    def _wait(self, for_whom: Callable[[], str], at_most_s: float) -> None:
        """Serve the loop until `for_whom` names nobody, or `at_most_s` after the job began to end.

        The first stop signal ends the job, and the wait with it; the second ends the wait at once.
        """
        deadline, stops, say_at = None, self._ears.stops(), time.monotonic() + PATIENCE_S
        while (names := for_whom()) and self._ears.stops() < stops + 2:
            moment = time.monotonic()
            if self._is_ending and deadline is None:
                deadline = moment + at_most_s
            if deadline is not None and moment >= deadline:
                return
            if moment >= say_at:
                say_at += PATIENCE_S
                self._ears.say(f"waiting for {names} to end")
            self._ears.serve(1.0 if deadline is None else min(1.0, deadline - moment))

    def _first_words_until(self) -> float:
        """On time.monotonic(): until when a job that ends now waits for nodes it has met but not heard from yet."""
        return min(time.monotonic() + VERDICTS_S, self._began + FIRST_WORD_S)

    def _verdict_of_all(self, own: Report, others: Sequence[NodeReport]) -> Verdict:
        """One verdict from this node's own and the reports of the others, which are recorded."""
        place = self._place
        for report in others:
            self._ears.emit(reported(now(), report))
        if not others:
            return alone(own.verdict)
        here = NodeReport(self._node_rank, place.host, place.folder, own.verdict, here=True, ends=own.ends)
        verdict = of_nodes(self._standstill.told_by([here, *others]))
        if self._standstill.has_cost_nodes:  # the reports alone would name another node
            self._ears.emit(agreed(now(), verdict, place.host, place.folder))
        return verdict

    def _begin_next(self) -> None:
        """Another attempt is agreed: what is said from now on is about that one."""
        self._attempt += 1
        self._is_ending = self._all_well = False
        self._node_rank, self._last_start = self._place.node_rank, None

    def where(self) -> tuple[str, str] | None:
        """Host and folder of the whole verdict if it is on another node."""
        return None
