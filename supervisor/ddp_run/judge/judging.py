"""One attempt's verdict, whatever its logs, its files or a rule do: judging never fails, and ends within a known time.

The journal's events are what ddp-run itself saw; logs add why. Where they cannot be read, or not in time, the verdict
rests on the events alone.
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
from ddp_run.record.events import Event, PeerFailed, RankExited, RankFailed, RunStarted
from ddp_run.values.signals import in_words, shell_code, signal_name
from ddp_run.values.words import node_name

LIMIT_S = 10.0
"""Reading and judging take milliseconds; this catches a hostile log, or a file system that does not answer."""
_MOST_RESTARTS = 3
"""Of an attempt, that are told of one by one."""


class _TooLong(BaseException):
    """Judging took too long. No Exception: what guards against a broken rule must let it pass."""


def judged(folder: Path, events: Sequence[Event], attempt: int, *, limit_s: float | None = None) -> Verdict:
    """The verdict for one attempt, of `limit_s` seconds at most; where its files end that, a note says so.

    With a limit, to be called in the main thread, and with SIGALRM not in use.
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
    """The verdict by the journal's events alone, without a look at any file."""
    try:
        verdict = judge(replace(gather(NO_FILES, events, attempt), folder=str(folder)))
        return _with_restarts(verdict, NO_FILES, events, attempt)
    except Exception as error:
        return _first_end(events, attempt, _brief(error))


def restarted(folder: Path, events: Sequence[Event], attempt: int, restart: int, *, rank_files: bool = True) -> str:
    """A line on the `restart`th time, from 1, that an attempt's agent started the ranks again: why, and how often it
    may. `rank_files` as in `gather`."""
    run = of_attempt(events, attempt).run
    most = run.restarts if run is not None and run.nodes == 1 else 0
    which = f"{restart} of {most}" if restart <= most else f"restart {restart}"
    ended = judge(gather(folder, events, attempt, restart - 1, rank_files=rank_files))
    return f"{ended.title or 'no rank of this node failed on its own'}; torch's agent restarted all ranks ({which})"


def _with_restarts(verdict: Verdict, folder: Path, events: Sequence[Event], attempt: int) -> Verdict:
    made = last_restart(of_attempt(events, attempt).events)
    told = [restarted(folder, events, attempt, number) for number in range(1, min(made, _MOST_RESTARTS) + 1)]
    more = (f"and {made - _MOST_RESTARTS} more restarts",) if made > _MOST_RESTARTS else ()
    return replace(verdict, restarts=made, notes=(*told, *more, *verdict.notes))


def final(verdict: Verdict, events: Sequence[Event]) -> Verdict:
    """The run's verdict from its last attempt's: another one where something ended the run before the next attempt."""
    by = ended_before_retry(events)
    if by is None:
        return verdict
    before = f"; before that, {verdict.title}" if verdict.title else ""
    if isinstance(by, PeerFailed):
        title = f"{node_name(by.node_rank, by.host)} ended the job before the next attempt: {by.said}{before}"
        return Verdict("failed", LOST, title=title)
    stopped = _stopped(verdict, by.signum, before)
    of_several = any(isinstance(event, RunStarted) and event.nodes > 1 for event in events)
    # every node tells of the same failure before; which of them, is known to the nodes' verdict on that attempt
    return replace(stopped, first_failure=None, evidence=(), collateral=()) if of_several else stopped


def _stopped(verdict: Verdict, signum: int, before: str) -> Verdict:
    """The run's verdict where a signal came in place of another attempt; `verdict` is the last attempt's."""
    name = in_words(-signum)
    title = f"stopped by {name} before the next attempt{before}"
    stopped = replace(verdict, outcome="interrupted", exit_code=128 + signum, title=title, advice=())
    return replace(stopped, retry=Retry(helps=False, reason=f"the job was stopped by {name}"))


def final_reason(reason: str, events: Sequence[Event]) -> str:
    """Why there is no other attempt: `reason`, as decided after the last, unless something ended the run since."""
    by = ended_before_retry(events)
    return reason if by is None else ended(by).reason


def _first_end(events: Sequence[Event], attempt: int, why: str) -> Verdict:
    """The first rank that failed, and its code: the least that is owed."""
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
    """Raises _TooLong after so many seconds: within a read that can be interrupted, and within a regular expression.

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
