"""Computes the verdict of a multi-node job from every node's report of its own attempt. Pure.

A node sees only its own ranks. When another node fails, it sees only that a peer is gone. So a cause outranks a
consequence on any node; next comes a lost node, then the order of failures on a common clock.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, field, replace

from ddp_run.evidence.model import Death, Quote
from ddp_run.judge import known_differences
from ddp_run.judge.catalogue import NAMELESS, rule_named
from ddp_run.judge.diagnose import LEAVING_NS, LOST
from ddp_run.judge.first_end import finished_first
from ddp_run.judge.verdict import Collateral, Finding, FirstFailure, Verdict
from ddp_run.record.attempt_events import last_restart, of_attempt
from ddp_run.record.events import (
    Event,
    MonotonicNs,
    NodeReported,
    NodesReplaced,
    Rank,
    RankExited,
    RankFinished,
    VerdictAgreed,
)
from ddp_run.values import typed_fields
from ddp_run.values.typed_fields import frozen
from ddp_run.values.words import node_name

_NODE_FAILED = "node-failed"
_ALONE = "this verdict covers one node only: the first failure may be on another node (see ddp-run's verdict there)"
_CLOSE_NS = 20_000_000
"""Ends this close to each other have no known order (`ddp_run.judge.first_end`), in addition to the clock error."""


@frozen
class Ends:
    """When the ranks of a node ended, by its own clock. `finished`: the ranks that exited with 0."""

    finished: tuple[Rank, ...] = ()
    finished_at: tuple[MonotonicNs, ...] = ()
    failed_at: MonotonicNs | None = None
    """When the first of its ranks failed, for any reason."""


@frozen
class NodeReport:
    """One node's report. `offset_ns` is its CLOCK_MONOTONIC minus ours, accurate to `error_ns`."""

    node_rank: int | None
    host: str
    folder: str
    verdict: Verdict | None
    """None if it sent none."""
    lost: str | None = None
    """Why there is none: "was lost: …", "did not join …"."""
    offset_ns: int = 0
    error_ns: int = 0
    here: bool = False
    """It is this node's own report."""
    ends: Ends = field(default_factory=Ends)
    first: bool = False
    """It was the first node to report its failure."""


def of_nodes(reports: Sequence[NodeReport]) -> Verdict:
    """Return one verdict for the whole job."""
    told = [report for report in reports if report.verdict is not None]
    for report in told:
        if report.verdict is not None and report.verdict.outcome == "refused":  # node 0's: it refused to start the job
            return report.verdict
    own = sorted((report for report in told if _is_own(report)), key=_when)
    if own:
        return _failed(own, reports)
    early = _finished_early(told)
    if early is not None:
        return _named(early, reports)
    lost = [report for report in reports if report.lost is not None]
    if lost:
        return _lost(lost, reports)
    stopped = [report for report in told if report.verdict is not None and report.verdict.outcome == "interrupted"]
    failed = [report for report in told if report.verdict is not None and report.verdict.outcome != "succeeded"]
    chosen = min(stopped or failed or told, key=lambda report: not report.first)
    verdict = _named(chosen, reports)
    if not verdict.title:
        return verdict
    first = verdict.first_failure
    if first is None and verdict.outcome == "failed" and not _lost_a_peer(chosen):  # the node's agent, for example
        first = FirstFailure(None, node_rank=chosen.node_rank, host=chosen.host or None)
    return replace(verdict, title=f"{verdict.title}, on {_node(chosen)}", first_failure=first)


def alone(verdict: Verdict) -> Verdict:
    """Return the verdict of a node without reports from others: the peer its ranks lost may be on another node."""
    if verdict.first_failure is not None or not _has_lost_a_peer(verdict):
        return verdict
    return replace(verdict, notes=(*verdict.notes, _ALONE))


def ends_of(events: Sequence[Event], attempt: int) -> Ends:
    """Return how this node's ranks ended in the last start of an attempt.

    A rank may still be killed after its program has finished.
    """
    finished: dict[Rank, MonotonicNs] = {}
    failed: list[MonotonicNs] = []
    made = of_attempt(events, attempt).events
    last = last_restart(made)
    for event in made:
        if not isinstance(event, RankFinished | RankExited) or event.restart != last:
            continue
        if isinstance(event, RankFinished) or event.code == 0:
            finished.setdefault(event.rank, event.at)
        elif event.rank not in finished:
            failed.append(event.at)
    return Ends(tuple(finished), tuple(finished.values()), min(failed, default=None))


def _finished_early(told: Sequence[NodeReport]) -> NodeReport | None:
    """Return the node whose rank exited with 0 before other nodes' ranks lost it; its verdict then says so."""
    left = [(at - report.offset_ns, rank, report) for report in told for rank, at in _finished(report)]
    lost = [report for report in told if _lost_a_peer(report)]
    if not left or not lost:
        return None
    at, rank, leaver = min(left, key=lambda each: each[:2])
    if any(at > report.ends.failed_at - report.offset_ns + LEAVING_NS for report in lost if report.ends.failed_at):
        return None
    seen = lost[0].verdict
    assert seen is not None
    rule = rule_named(seen.cause) or NAMELESS
    evidence = seen.evidence if lost[0].here else tuple(_abroad(quote, lost[0]) for quote in seen.evidence)
    waiting = [Death(rank=each.rank) for report in lost if report.verdict for each in report.verdict.collateral]
    shown = Finding(rule, "", evidence)
    first = FirstFailure(rank, exit_code=0, at=MonotonicNs(at + leaver.offset_ns))
    finding = finished_first(rank, shown, waiting or [Death(None)])
    verdict = Verdict("failed", 1, first_failure=first).with_finding(finding)
    return replace(leaver, verdict=verdict, here=True)  # its quotes already name their place


def _finished(report: NodeReport) -> zip[tuple[Rank, MonotonicNs]]:
    return zip(report.ends.finished, report.ends.finished_at, strict=True)


def _lost_a_peer(report: NodeReport) -> bool:
    return report.verdict is not None and _has_lost_a_peer(report.verdict)


def _has_lost_a_peer(verdict: Verdict) -> bool:
    rule = rule_named(verdict.cause)
    return rule is not None and rule.consequence and verdict.outcome == "failed"


def by_clock_of(verdict: Verdict, offset_ns: int) -> Verdict:
    """Convert the verdict's stamp to the clock of a node that is `offset_ns` ahead of ours."""
    first = verdict.first_failure
    if first is None or first.at is None:
        return verdict
    return replace(verdict, first_failure=replace(first, at=MonotonicNs(first.at + offset_ns)))


def _is_own(report: NodeReport) -> bool:
    """Whether the node saw the reason: its failure was not caused by another node."""
    verdict = report.verdict
    if verdict is None or verdict.outcome not in ("failed", "hung"):
        return False
    rule = rule_named(verdict.cause or "unknown") or NAMELESS
    return verdict.exit_code != LOST and not (rule.consequence and verdict.exit_code != 1)


def _when(report: NodeReport) -> tuple[bool, bool, int, int]:
    first = report.verdict.first_failure if report.verdict is not None else None
    at = first.at if first is not None else None
    number = -1 if report.node_rank is None else report.node_rank
    return _is_elsewhere(report), at is None, (at or 0) - report.offset_ns, number


def _is_elsewhere(report: NodeReport) -> bool:
    """Whether the rank that it names, which hangs, is on another node, which knows more about it."""
    verdict = report.verdict
    first = verdict.first_failure if verdict is not None and verdict.outcome == "hung" else None
    return first is not None and first.rank is not None and first.host is None


def _failed(own: Sequence[NodeReport], reports: Sequence[NodeReport]) -> Verdict:
    first = own[0]
    verdict = _named(first, reports)
    near = [other for other in own[1:] if _apart_ns(first, other) <= _CLOSE_NS + first.error_ns + other.error_ns]
    rivals = [other for other in near if other.verdict is not None and other.verdict.cause != verdict.cause]
    if not rivals:
        return verdict
    other = rivals[0]
    apart, error = _apart_ns(first, other) / 1e6, (first.error_ns + other.error_ns) / 1e6
    title = other.verdict.title if other.verdict is not None else None
    clocks = f"(clock error up to {error:.0f} ms)"
    note = f"{_node(other)} failed {apart:.0f} ms later {clocks} and may have been first: {title}"
    confidence = "likely" if verdict.confidence == "certain" else verdict.confidence
    return replace(verdict, confidence=confidence, notes=(*verdict.notes, note))


def _apart_ns(first: NodeReport, other: NodeReport) -> int:
    _, unknown, one, _rank = _when(first)
    _, also_unknown, two, _rank = _when(other)
    return 0 if unknown or also_unknown else abs(two - one)


def _lost(lost: Sequence[NodeReport], reports: Sequence[NodeReport]) -> Verdict:
    """Return the verdict if no rank failed on its own and a node is gone."""
    rule = rule_named(_NODE_FAILED) or NAMELESS
    first = lost[0]
    others = f", and {len(lost) - 1} more," if len(lost) > 1 else ""
    cause = f"{_node(first)}{others} {first.lost}"
    host = shlex.quote(first.host)
    advice = (f"ping {host}; ssh {host} uptime", f"ssh {host} 'dmesg -T | tail -50'") if first.host else ()
    failure = FirstFailure(None, node_rank=first.node_rank, host=first.host or None)
    verdict = Verdict("failed", LOST, first_failure=failure)
    finding = Finding(rule, cause, (), advice)
    return replace(verdict.with_finding(finding), collateral=_followers(first, reports))


def _named(chosen: NodeReport, reports: Sequence[NodeReport]) -> Verdict:
    """Return that node's verdict as the job's: with the host of its files, and the followers on other nodes."""
    verdict = chosen.verdict
    assert verdict is not None
    first = verdict.first_failure
    if first is not None and _is_elsewhere(chosen):
        there = next((report for report in reports if first.rank in _followed(report)), None)
        if there is not None:
            first = replace(first, host=there.host, node_rank=there.node_rank)
    elif first is not None:
        at = None if first.at is None else MonotonicNs(first.at - chosen.offset_ns)
        first = replace(first, host=first.host or chosen.host, node_rank=chosen.node_rank, at=at)
    evidence = verdict.evidence if chosen.here else tuple(_abroad(quote, chosen) for quote in verdict.evidence)
    followers = (*verdict.collateral, *_followers(chosen, reports))
    gone = tuple(each for each in followers if first is None or first.rank is None or each.rank != first.rank)
    silent = [report for report in reports if report.lost is not None]
    notes = tuple(f"no verdict from {_node(report)}: it {report.lost}" for report in silent)
    return replace(verdict, first_failure=first, evidence=evidence, collateral=gone, notes=(*verdict.notes, *notes))


def _followed(report: NodeReport) -> frozenset[Rank | None]:
    """The ranks that ended on the node after another one."""
    return frozenset(each.rank for each in report.verdict.collateral) if report.verdict is not None else frozenset()


def _abroad(quote: Quote, report: NodeReport) -> Quote:
    """Return the quote as a line of a file on another node: `host:/folder/file`."""
    return replace(quote, source=f"{report.host}:{report.folder}/{quote.source}") if "/" in quote.source else quote


def _followers(chosen: NodeReport, reports: Sequence[NodeReport]) -> tuple[Collateral, ...]:
    """Return the ranks of the other nodes that ended: all of them followed."""
    found: list[Collateral] = []
    for report in reports:
        if (report.host, report.folder) == (chosen.host, chosen.folder) or report.verdict is None:
            continue
        first = report.verdict.first_failure
        if first is not None and first.rank is not None:
            said = "failed later" if _is_own(report) else "lost its peer"
            found.append(Collateral(first.rank, first.exit_code, first.signal, f"{said}, on {_node(report)}"))
        found += [replace(each, reason=f"{each.reason}, on {_node(report)}") for each in report.verdict.collateral]
    return tuple(found)


def _node(report: NodeReport) -> str:
    return node_name(report.node_rank, report.host)


# ------------------------------------------------------------------------------------------------ events


def reported(at: MonotonicNs, report: NodeReport) -> NodeReported:
    """Return the event that stores another node's report."""
    verdict = None if report.verdict is None else _as_text(report.verdict)
    return NodeReported(
        *(at, report.node_rank, report.host, report.folder),
        *(verdict, report.lost, report.offset_ns, report.error_ns),
        *(report.ends.finished, report.ends.finished_at, report.ends.failed_at, report.first),
    )


def agreed(at: MonotonicNs, verdict: Verdict, host: str, folder: str) -> VerdictAgreed:
    """Return the event that stores node 0's verdict."""
    return VerdictAgreed(at, host, folder, _as_text(verdict))


def again(verdict: Verdict, own: NodeReport, events: Sequence[Event]) -> Verdict:
    """Return the job's verdict as agreed live, from this node's own; its own if the others' reports are damaged."""
    try:
        for event in reversed(events):
            if isinstance(event, VerdictAgreed):
                return typed_fields.read(Verdict, json.loads(event.verdict))
        others = [report_of(event) for event in events if isinstance(event, NodeReported)]
    except (ValueError, RecursionError):
        note = "the other nodes' reports are damaged: this verdict covers this node only"
        return replace(verdict, notes=(*verdict.notes, note))
    return of_nodes([own, *others]) if others else alone(verdict)


def noted(verdict: Verdict, events: Sequence[Event]) -> Verdict:
    """Add what node 0 knows besides the reports: known differences between nodes, and nodes that were left out."""
    verdict = known_differences.noted(verdict, events)
    said = [f"from attempt {each.attempt + 1} on: {each.said}" for each in events if isinstance(each, NodesReplaced)]
    new = [line for line in said if line not in verdict.notes]
    return replace(verdict, notes=(*verdict.notes, *new)).without_secrets() if new else verdict


def report_of(event: NodeReported) -> NodeReport:
    """Return the report that such an event stores. Raises ValueError or RecursionError if it is damaged."""
    verdict = None if event.verdict is None else typed_fields.read(Verdict, json.loads(event.verdict))
    return NodeReport(
        *(event.node_rank, event.host, event.folder, verdict),
        *(event.lost, event.offset_ns, event.error_ns),
        ends=Ends(event.finished, event.finished_at, event.failed_at),
        first=event.first,
    )


def _as_text(verdict: Verdict) -> str:
    return json.dumps(asdict(verdict), ensure_ascii=False)
