"""How certain a cause from a pasted log can be, as nobody watched the ranks. Pure.

The end of a live rank is known from its stamps and exit code. A pasted text is only an excerpt, possibly by several
programs. An answer that fits the words may still not explain why the job ended. On posted logs that no rule had seen
before, one in four certain answers was wrong if the text also showed another cause, and one in a hundred if it did not.
"""

from __future__ import annotations

from dataclasses import replace

from ddp_run.evidence import exception_chain
from ddp_run.evidence.pasted import raised
from ddp_run.judge.catalogue import follows_another, rule_named
from ddp_run.judge.order import explains
from ddp_run.judge.text_signs import LogEnd, TextSign
from ddp_run.judge.verdict import Layer, Rule, Verdict
from ddp_run.record.events import ExceptionInfo


def as_sure_as_the_text(verdict: Verdict, end: LogEnd) -> Verdict:
    """Reduce certain to likely if the text shows another cause, or a process that went on after the line."""
    rule = rule_named(verdict.cause)
    if verdict.confidence != "certain" or rule is None:
        return verdict
    first = verdict.first_failure
    exception = first.exception if first is not None else None
    lines = [quote.line or 0 for quote in verdict.evidence]
    doubtful = any(_speaks_of_another(sign, rule, exception, min(lines, default=0)) for sign in end.signs)
    told = max(lines, default=0)
    if not doubtful and exception is None and (first is None or first.exit_code is None) and told:
        doubtful = end.went_on_after(told)  # nothing else shows an end
    return replace(verdict, confidence="likely") if doubtful else verdict


def _speaks_of_another(sign: TextSign, rule: Rule, exception: ExceptionInfo | None, line: int) -> bool:
    """Whether it indicates another cause, or another program's failure. Consequences do not count.

    The cause, which shows on `line`, explains how things ended, and what else shows from there on.
    """
    other = sign.finding.rule
    if other.consequence or other.name == rule.name:
        return False
    behind = any((quote.line or 0) >= line for quote in sign.finding.evidence)
    if not other.general and explains(rule, other) and (other.layer is Layer.ENDED or behind):
        return False
    if exception is None and sign.exception is not None:
        return not raised.starts_a_launcher(sign.exception) and not follows_another(sign.exception)
    return not other.general or _is_another(sign.exception, exception)


def _is_another(one: ExceptionInfo | None, of: ExceptionInfo | None) -> bool:
    """Whether the exceptions are unrelated."""
    if one is None or of is None or raised.starts_a_launcher(one):
        return False
    return all(one.type != each.type for each in exception_chain.chain(of))
