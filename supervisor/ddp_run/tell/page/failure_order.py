"""The order in which ranks failed, the times between, and how sure they are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddp_run.judge.of_nodes import report_of
from ddp_run.judge.verdict import Verdict
from ddp_run.record.attempt_events import attempts_made, last_restart, of_attempt
from ddp_run.record.events import ExceptionInfo, NodeReported, Rank, RankExited, RankFailed, RankFinished
from ddp_run.tell.page.timeline import Journal, some_ranks
from ddp_run.values.lines import neutral
from ddp_run.values.signals import in_words
from ddp_run.values.words import node_name

_MOST_ROWS: Final = 60


@dataclass(frozen=True, slots=True)
class Failure:
    """Ranks that failed one after another in the same way; `after_s`: the first and last, since the first of all."""

    who: str
    after_s: tuple[float, float]
    what: str
    role: str
    sure: str
    first: bool = False


_End = tuple[Rank | None, Failure]
"""How one rank failed; None for one of another node."""


def failures(parts: Sequence[Journal], verdict: Verdict) -> tuple[Failure, ...]:
    """How ranks failed in the last attempt, by time; on node 0 also when other nodes' ranks began to."""
    ends = (each for part in parts for each in _ends(part, verdict, alone=len(parts) == 1))
    found = sorted(ends, key=lambda end: end[1].after_s)
    rows: list[Failure] = []
    ranks: list[int] = []
    for rank, end in found:
        after = end.after_s[0] - found[0][1].after_s[0]
        row, last = replace(end, after_s=(after, after)), rows[-1] if rows else end
        alike = (row.what, row.role, row.sure) == (last.what, last.role, last.sure)
        if ranks and rank is not None and alike and not row.first and not last.first:
            ranks.append(rank)
            rows[-1] = replace(last, who=some_ranks(ranks), after_s=(last.after_s[0], after))
        else:
            rows.append(row)
            ranks = [] if rank is None else [rank]
    return tuple(rows[:_MOST_ROWS])


def _ends(part: Journal, verdict: Verdict, *, alone: bool) -> Iterator[_End]:
    """How ranks failed; their times are since the job's start."""
    made = attempts_made(part.events)
    events = of_attempt(part.events, made[-1]).events if made else ()
    last = last_restart(events)
    named = verdict.first_failure.rank if verdict.first_failure is not None else None
    reasons = {each.rank: each.reason for each in verdict.collateral}
    seen: set[Rank] = set()
    ends = [e for e in events if isinstance(e, RankFailed | RankFinished | RankExited) and e.restart == last]
    for event in sorted(ends, key=lambda e: e.at):
        code, first = 0 if isinstance(event, RankFinished) else event.code, event.rank == named
        if event.rank in seen or not (code or first):
            continue
        seen.add(event.rank)
        what = "ended" if code is None else in_words(code)
        sure = "exact: stamped inside the rank"
        if isinstance(event, RankFailed):
            what = _raised(event.exception) or what
        elif isinstance(event, RankExited):
            sure = "milliseconds late: the kernel's report of its end"
        role = part_of(verdict) if first else neutral(reasons.get(event.rank, ""))
        sure = "; ".join(filter(None, (sure, part.clock)))
        at = part.seconds(event.at)
        yield event.rank, Failure(f"rank {event.rank}", (at, at), what, role, sure, first)
    for told in (e for e in events if isinstance(e, NodeReported) and alone):
        yield from _reported(part, told, verdict, named)


def _reported(part: Journal, event: NodeReported, verdict: Verdict, named: Rank | None) -> Iterator[_End]:
    """The first failure of another node's ranks, as that node said."""
    try:
        report = report_of(event)
    except (ValueError, RecursionError):
        return
    failed = report.verdict.first_failure if report.verdict is not None else None
    if failed is None or failed.at is None:
        return
    node = neutral(node_name(event.node_rank, event.host))
    who = node if failed.rank is None else f"rank {failed.rank} on {node}"
    what = _raised(failed.exception) or ("" if failed.exit_code is None else in_words(failed.exit_code))
    sure = f"stamped on that node; the clocks agree to ± {event.error_ns / 1e6:.1f} ms"
    first = failed.rank is not None and failed.rank == named
    role = part_of(verdict) if first else "failed on that node first"
    at = part.seconds(failed.at - event.offset_ns)
    yield None, Failure(who, (at, at), what, role, sure, first)


def _raised(exception: ExceptionInfo | None) -> str:
    return "" if exception is None else neutral(f"{exception.type}{exception.where}")


def part_of(verdict: Verdict) -> str:
    """What the rank has to do with the end that the verdict names."""
    return "first failure" if verdict.outcome == "failed" else "named by the verdict"
