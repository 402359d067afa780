"""Finds hosts that are suspected of making runs fail, from one verdict or from all records. Pure."""

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
"""Stamps after the year 2096 are ignored."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """The history of one host: runs by cause, the last failure (seconds since the epoch), and how that run ended."""

    host: str
    causes: Counter[str]
    last_s: float
    last_title: str
    exclude: bool

    @property
    def runs(self) -> int:
        """The number of runs that failed there."""
        return self.causes.total()


def failure_of(verdict: Verdict, run_id: str, wall_s: float) -> HostFailure | None:
    """Return the record to keep for a run; None if its cause does not point to a host, or the host is unknown."""
    rule = rule_named(verdict.cause)
    first = verdict.first_failure
    if rule is None or rule.host is None or first is None or not first.host:
        return None
    if rule.name == "node-failed" and first.rank is not None:
        return None  # a rank's log reports the failure of another node
    title = (verdict.title or rule.title)[:_LONGEST_TITLE]
    return HostFailure(first.host, wall_s, rule.name, verdict.confidence, run_id, title)


def records(failures: Iterable[HostFailure], since_s: float) -> list[HostRecord]:
    """Return the hosts with failures since then, worst first. Each run counts once per host."""
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
