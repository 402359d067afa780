"""Which hosts failures speak against: of one verdict, and of all that is kept. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.verdict import Verdict
from ddp_run.record.host_failures import HostFailure

_LEAST_RUNS = 2
_LONGEST_TITLE = 300
_LATEST_S = 4e9
"""A stamp behind the year 2096 is none."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What is known of one host: runs by cause, when it last failed (seconds since the epoch), and how."""

    host: str
    causes: Counter[str]
    last_s: float
    last_title: str
    exclude: bool

    @property
    def runs(self) -> int:
        """How many failed there."""
        return self.causes.total()


def failure_of(verdict: Verdict, run_id: str, wall_s: float) -> HostFailure | None:
    """What is to be kept of a run; null where its cause says nothing of a host, or no host is known."""
    rule = rule_named(verdict.cause) if verdict.cause is not None else None
    first = verdict.first_failure
    if rule is None or rule.host is None or first is None or not first.host:
        return None
    if rule.name == "node-failed" and first.rank is not None:
        return None  # a rank's log tells of another node's end
    title = (verdict.title or rule.title)[:_LONGEST_TITLE]
    return HostFailure(first.host, wall_s, rule.name, verdict.confidence, run_id, title)


def records(failures: Iterable[HostFailure], since_s: float) -> list[HostRecord]:
    """The hosts with failures since then, those with the most first; a run counts once for a host."""
    by_host: dict[str, dict[str, HostFailure]] = {}
    for each in failures:
        if since_s <= each.wall_s <= _LATEST_S and re.fullmatch(r"[\w.\-]{1,255}", each.host, re.ASCII):
            by_host.setdefault(each.host, {})[each.run_id] = each
    found = [_record(host, list(runs.values())) for host, runs in by_host.items()]
    return sorted(found, key=lambda record: (-record.runs, -record.last_s, record.host))


def _record(host: str, failures: list[HostFailure]) -> HostRecord:
    causes = Counter(each.cause for each in failures)
    last = max(failures, key=lambda each: each.wall_s)
    at_once = any((rule := rule_named(cause)) is not None and rule.host == "once" for cause in causes)
    return HostRecord(host, causes, last.wall_s, last.title, at_once or len(failures) >= _LEAST_RUNS)
