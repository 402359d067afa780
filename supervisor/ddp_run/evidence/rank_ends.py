"""Determines how an attempt's ranks ended, from the kernel, the ranks themselves and the agent. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_run.evidence import childfailed
from ddp_run.evidence.model import AgentEnd, SummaryEntry
from ddp_run.record.attempt_events import AttemptEvents
from ddp_run.record.events import (
    MonotonicNs,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    RankUnwinds,
    SignalSent,
    Target,
)

_AGENT_KILLS_AFTER_NS = 25_000_000_000
"""The agent sends SIGKILL 30 s after SIGTERM (its own default, whatever --shutdown-timeout says)."""
_ENDED = (-signal.SIGTERM, -signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class RankEnds:
    """How the ranks of the last restart ended, if observed."""

    failed: Mapping[Rank, RankFailed]
    finished: Mapping[Rank, RankFinished]
    exited: Mapping[Rank, RankExited]
    summary: Mapping[Rank, SummaryEntry]
    sent: tuple[SignalSent, ...]
    agent: AgentEnd
    agent_sent: Mapping[int, tuple[int, ...]]
    first_death: MonotonicNs | None

    @classmethod
    def of(cls, part: AttemptEvents, agent: AgentEnd, restart: int) -> RankEnds:
        """Collect this restart's events and the agent's messages."""
        failed = {e.rank: e for e in part.of(RankFailed) if e.restart == restart}
        exited = {e.rank: e for e in part.of(RankExited) if e.restart == restart}
        failed |= {e.rank: e for e in _ended_on_the_way_out(part, restart, exited) if e.rank not in failed}
        summary = {entry.rank: entry for entry in agent.summary}
        dead = [e.at for e in exited.values() if e.code or (e.code is None and e.rank in {*summary, *failed})]
        return cls(
            failed=failed,
            finished={e.rank: e for e in part.of(RankFinished) if e.restart == restart},
            exited=exited,
            summary=summary,
            sent=tuple(part.of(SignalSent)),
            agent=agent,
            agent_sent=childfailed.signals_sent(agent.log.lines),
            first_death=min(dead, default=None),
        )

    def code(self, start: RankStarted) -> int | None:
        """Return its exit code: the kernel's, else its own report, else the agent's.

        A rank that had already failed and was killed by our signal during cleanup keeps the code of its failure.
        """
        exited, failed = self.exited.get(start.rank), self.failed.get(start.rank)
        if exited is not None and exited.code is not None:
            overtaken = failed is not None and -exited.code in self._sent_before(start, exited.at)
            return failed.code if failed is not None and overtaken else exited.code
        if failed is not None:
            return failed.code
        entry = self.summary.get(start.rank)
        return entry.code if entry is not None and entry.pid in (None, start.pid) else None

    def left(self, start: RankStarted) -> bool:
        """Whether it exited with 0: observed, or nobody read the code and nothing indicates a failure."""
        exited = self.exited.get(start.rank)
        if exited is None or start.rank in self.failed:
            return False
        code = self.code(start)
        if code is not None:
            return code == 0
        return self.agent.code == 0 or (
            bool(self.summary) and (self.first_death is None or exited.at < self.first_death)
        )

    def left_at(self, start: RankStarted) -> MonotonicNs:
        """Return when a rank that `left` did so: its connections close at the end of its program."""
        finished = self.finished.get(start.rank)
        return self.exited[start.rank].at if finished is None else finished.at

    def died(self, start: RankStarted) -> bool:
        """Whether it failed: it said so, it ended with a code other than 0, or the agent says so."""
        known = start.rank in self.failed or start.rank in self.exited or self.code(start) is not None
        return known and not self.left(start)

    def signals(self, start: RankStarted) -> tuple[int, ...]:
        """Return the signals sent to it, by ddp-run or by the agent, before it failed."""
        failed, exited = self.failed.get(start.rank), self.exited.get(start.rank)
        stamps = [event.at for event in (failed, exited) if event is not None]
        return self._sent_before(start, min(stamps, default=None))

    def _sent_before(self, start: RankStarted, at: MonotonicNs | None) -> tuple[int, ...]:
        ours = [e.signum for e in self.sent if start.pid in e.pids and (at is None or e.at <= at)]
        return tuple(dict.fromkeys([*ours, *self._agents(start, at)]))

    def _agents(self, start: RankStarted, at: MonotonicNs | None) -> tuple[int, ...]:
        """Return the agent's signals: from its log, else inferred from a rank that SIGTERM ended.

        Source: torch/distributed/elastic/multiprocessing/api.py, `_close`: SIGTERM, 30 s later SIGKILL.
        """
        named = self.agent_sent.get(start.pid, ())
        failed = self.failed.get(start.rank)
        before_its_end = failed is None or at is None or at > failed.at
        if before_its_end and -(self._end(start) or 0) in named:  # that signal ended it, whenever its death was seen
            return named
        told_at = min((e.at for e in self.sent if e.target in (Target.AGENT, Target.JOB)), default=None)
        causes = [stamp for stamp in (self.first_death, told_at) if stamp is not None]
        if at is None or not causes or at <= min(causes):
            return ()
        if self.agent_sent:
            return named
        exited = self.exited.get(start.rank)
        if exited is not None and exited.code not in (None, -signal.SIGTERM, -signal.SIGKILL):
            return ()
        late = at - min(causes) > _AGENT_KILLS_AFTER_NS
        return (signal.SIGTERM, signal.SIGKILL) if late else (signal.SIGTERM,)

    def _end(self, start: RankStarted) -> int | None:
        """Return how its process ended: the kernel's report, else the agent's."""
        exited, entry = self.exited.get(start.rank), self.summary.get(start.rank)
        if exited is not None and exited.code is not None:
            return exited.code
        return entry.code if entry is not None and entry.pid in (None, start.pid) else None


def _ended_on_the_way_out(part: AttemptEvents, restart: int, exited: Mapping[Rank, RankExited]) -> Iterator[RankFailed]:
    """Yield the failures of ranks that destroyed their process group as an exception left them, and were ended by a
    signal before they could report it: their peers lose them first, and the agent then ends them all."""
    later: tuple[RankPhase | RankFinished, ...] = (*part.of(RankPhase), *part.of(RankFinished))
    went_on = {e.rank: e.at for e in later if e.restart == restart}
    for each in part.of(RankUnwinds):
        end = exited.get(each.rank) if each.restart == restart else None
        if end is not None and end.code in _ENDED and went_on.get(each.rank, each.at) <= each.at:
            yield RankFailed(each.at, each.rank, restart, each.code, each.exception)
