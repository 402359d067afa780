"""The one order of findings: which of several that hold for one end explains it. Pure.

A finding of a deeper layer (`ddp_run.judge.verdict.Layer`) wins; within a layer the surer one, then the earlier in the
text. What layers cannot say is in the rules' `wins_over`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddp_run.judge.verdict import SUREST_FIRST, Finding, Rule

_NO_LINE = 1 << 62


def strongest(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that explains the end, of equal ones the first; None if there are none."""
    left = sorted(findings, key=_strength)
    best = left.pop(0) if left else None
    while best is not None:
        # each step leaves fewer, so causes that win over each other in a circle end it, too
        over = next((index for index, other in enumerate(left) if _wins_over(other.rule, best.rule)), None)
        if over is None:
            return best
        best = left.pop(over)
    return None


def explains(rule: Rule, other: Rule) -> bool:
    """Whether the first cause is behind the second if both show at one end."""
    return _wins_over(rule, other) or (rule.layer > other.layer and not _wins_over(other, rule))


def _wins_over(rule: Rule, other: Rule) -> bool:
    return any(name == other.name for name, _ in rule.wins_over)


def _strength(finding: Finding) -> tuple[int, int, int]:
    first = next((quote.line for quote in finding.evidence if quote.line is not None), _NO_LINE)
    return -finding.rule.layer, SUREST_FIRST.index(finding.confidence), first
