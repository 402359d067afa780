"""Judges one attempt, whatever its logs, its files or a rule do: judging never fails, and its time is limited.

The journal's events are what ddp-run observed; logs add the reason. If the logs cannot be read in time, the verdict
relies on the events alone.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ddp_run.evidence.gather import NO_FILES, gather
from ddp_run.judge.diagnose import LOST, judge
from ddp_run.judge.retry import ended
from ddp_run.judge.verdict import FirstFailure, Retry, Verdict
from ddp_run.record.attempt_events import ended_before_retry, last_restart, of_attempt
from ddp_run.record.events import Event, PeerFailed, RankExited, RankFailed, RankStarted, RunStarted, SignalReceived
from ddp_run.record.time_spent import time_spent
from ddp_run.values.signals import STOP_SIGNALS, in_words, shell_code, signal_name
from ddp_run.values.words import node_name

LIMIT_S = 10.0
"""Judging normally takes milliseconds. The limit guards against hostile logs and unresponsive file systems."""
_MOST_RESTARTS = 3
"""The number of restarts in one attempt that are reported one by one."""


class _TooLong(BaseException):
    """Judging took too long. Not an Exception, so that the handler for broken rules lets it pass."""


def judged(folder: Path, events: Sequence[Event], attempt: int, *, limit_s: float | None = None) -> Verdict:
    """Return the verdict for one attempt within `limit_s` seconds; if its files fail or take too long, a note says so.

    With a limit, call this in the main thread and do not use SIGALRM elsewhere.
    """
    try:
        with _limit(limit_s):
            return _with_restarts(judge(gather(folder, events, attempt)), folder, events, attempt)
    except _TooLong:
        why = f"took more than {limit_s:g} s"
    except Exception as error:
        why = _brief(error)
    verdict = judged_by_events(folder, events, attempt)
    note = f"the logs could not be analysed ({why}); this verdict is based on what ddp-run itself observed"
    return replace(verdict, notes=(*verdict.notes, note))


def judged_by_events(folder: Path, events: Sequence[Event], attempt: int) -> Verdict:
    """Return the verdict from the journal's events alone, without reading any file."""
    try:
        verdict = judge(replace(gather(NO_FILES, events, attempt), folder=str(folder)))
        return _with_restarts(verdict, NO_FILES, events, attempt)
    except Exception as error:
        return _first_end(events, attempt, _brief(error))


def restarted(folder: Path, events: Sequence[Event], attempt: int, restart: int, *, rank_files: bool = True) -> str:
    """Return a line about the attempt's `restart`th restart (from 1) by the agent: why, and how many it may make.

    `rank_files` is the same as in `gather`.
    """
    part = of_attempt(events, attempt)
    most = part.run.restarts if part.run is not None and part.run.nodes == 1 else 0
    which = f"{restart} of {most}" if restart <= most else f"restart {restart}"
    before, after = (_nodes_in(part.events, number) for number in (restart - 1, restart))
    if before and after and after > before:  # torch ends the ranks for that; how they end means nothing
        return f"the job has {after} nodes now, {before} before; torch's agent restarted all ranks ({which})"
    fewer = f" on {after} nodes, {before} before" if before and after and after < before else ""
    ended = judge(gather(folder, events, attempt, restart - 1, rank_files=rank_files))
    why = ended.title or "no rank of this node failed on its own"
    return f"{why}; torch's agent restarted all ranks{fewer} ({which})"


def _nodes_in(events: Sequence[Event], restart: int) -> int | None:
    """How many nodes the job had in this start of the ranks; None if it's unknown."""
    sizes = (each.group_world_size for each in events if isinstance(each, RankStarted) and each.restart == restart)
    return next(sizes, None)


def _with_restarts(verdict: Verdict, folder: Path, events: Sequence[Event], attempt: int) -> Verdict:
    made = last_restart(of_attempt(events, attempt).events)
    told = [restarted(folder, events, attempt, number) for number in range(1, min(made, _MOST_RESTARTS) + 1)]
    more = (f"and {made - _MOST_RESTARTS} more restarts",) if made > _MOST_RESTARTS else ()
    return replace(verdict, restarts=made, notes=(*told, *more, *verdict.notes))


def final(verdict: Verdict, events: Sequence[Event]) -> Verdict:
    """Return the run's verdict: the last attempt's, unless something ended the run before the next attempt."""
    by = ended_before_retry(events)
    if by is None:
        return verdict
    before = f"; before that, {verdict.title}" if verdict.title else ""
    if isinstance(by, PeerFailed):
        title = f"{node_name(by.node_rank, by.host)} ended the job before the next attempt: {by.said}{before}"
        return Verdict("failed", LOST, title=title)
    stopped = _stopped(verdict, by.signum, before)
    of_several = any(isinstance(event, RunStarted) and event.nodes > 1 for event in events)
    # all nodes report the earlier failure; the nodes' verdict on that attempt knows which of them it was
    return replace(stopped, first_failure=None, evidence=(), collateral=()) if of_several else stopped


def with_time(verdict: Verdict, events: Sequence[Event]) -> Verdict:
    """Return the verdict with where the run's time went, if that can be told."""
    try:
        return replace(verdict, time=time_spent(events))
    except Exception as error:
        return replace(verdict, notes=(*verdict.notes, f"where the time went is unknown ({_brief(error)})"))


def as_spare(events: Sequence[Event]) -> Verdict:
    """Return the own verdict of a node that waits (--spare-nodes); `events`: since it does."""
    signals = (event.signum for event in events if isinstance(event, SignalReceived))
    signum = next((signum for signum in signals if signum in STOP_SIGNALS), None)
    if signum is None:
        return Verdict("failed", LOST, title="this node waited to take part, and never did")
    return Verdict("interrupted", 128 + signum, title=f"stopped by {in_words(-signum)} while it waited")


def _stopped(verdict: Verdict, signum: int, before: str) -> Verdict:
    """Return the run's verdict if a signal arrived instead of another attempt; `verdict` is the last attempt's."""
    name = in_words(-signum)
    title = f"stopped by {name} before the next attempt{before}"
    stopped = replace(verdict, outcome="interrupted", exit_code=128 + signum, title=title, advice=())
    return replace(stopped, retry=Retry(helps=False, reason=f"the job was stopped by {name}"))


def final_reason(reason: str, events: Sequence[Event]) -> str:
    """Return why there is no further attempt: `reason`, unless something ended the run after that decision."""
    by = ended_before_retry(events)
    return reason if by is None else ended(by).reason


def _first_end(events: Sequence[Event], attempt: int, why: str) -> Verdict:
    """Return a minimal verdict: the first rank that failed and its exit code."""
    ends = [
        event
        for event in of_attempt(events, attempt).events
        if isinstance(event, RankFailed) or (isinstance(event, RankExited) and event.code)
    ]
    note = (f"the attempt could not be analysed ({why})",)
    if not ends:
        return Verdict("failed", 1, notes=note)
    first = min(ends, key=lambda event: event.at)
    exited = next((e for e in ends if isinstance(e, RankExited) and e.rank == first.rank), None)
    code = first.code if exited is None else exited.code
    failure = FirstFailure(first.rank, exit_code=code, signal=signal_name(code), at=first.at)
    return Verdict("failed", shell_code(code) or 1, first_failure=failure, notes=note)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


@contextmanager
def _limit(seconds: float | None) -> Iterator[None]:
    """Raise _TooLong after that many seconds, even inside an interruptible read or a regular expression.

    Source: Modules/_sre/sre_lib.h checks for signals every 4096 steps.
    """
    if seconds is None:
        yield
        return

    def raise_too_long(_signum: int, _frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, raise_too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
