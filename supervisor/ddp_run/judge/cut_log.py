"""A tolerant reading of incomplete logs, for when the strict one finds no failure or no cause. Pure.

People paste the piece that looks like the failure. It may start or end inside a traceback, contain the warning but not
the exception, show one rank of eight, or not show how anything ended. This module treats the text after the last sign
of progress as a rank's last words. Its answer is at most "likely", and whatever the log does not show stays None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ddp_run.evidence.launcher_exceptions import starts_a_launcher, tells_of_a_program
from ddp_run.evidence.model import AgentEnd, Death, Evidence
from ddp_run.judge.catalogue import NAMELESS, rule_named
from ddp_run.judge.diagnose import judge
from ddp_run.judge.order import strongest
from ddp_run.judge.text_signs import LogEnd, TextSign
from ddp_run.judge.verdict import OF_THE_NETWORK, Confidence, FirstFailure, Layer, Rule, Verdict
from ddp_run.record.events import ExceptionInfo, Rank

NOTE = "the log is incomplete: it does not show how the job ended; this is the strongest sign in it"
WORDLESS = "the rank that aborted first printed no reason; this one is from another rank"
FOLLOWED = "another exception came last, but an earlier one explains more and no progress followed it"
HOST = "the ranks only waited; this may be why another one didn't come"
MISSED = "the rank that the others waited for had printed this before"
PROBABLY_MISSED = "nothing names the rank that raised this; most likely it is the one that the others waited for"
CRASHED = "the log does not show which rank crashed; the ranks that lost a peer lost it to that crash"
_ENDED = re.compile(
    r"\brank[ :]{1,10}(?P<rank>\d{1,7})\b[^\n]{0,60}?(?:\n[^\n]{0,40}?)?\bexitcode[ :]{1,10}(?P<code>-?\d{1,3})\b"
    r"|\bfailed \(exitcode: (?P<wrapped>-?\d{1,3})\) {0,9}\n {0,20}local_rank: \d{1,7}\b"
)
_ABORTED = "native-abort"
_RAYS = "ray-actor-died"
"""Ray's driver prints this for every worker that ended. The reason, if logged at all, is further up."""
_GIVES_UP = re.compile(r"(?i:sigquit)[^\n]{1,80}It usually means (?:the|one) child failed")
"""SGLang's server, which then kills itself and its children."""


def read(end: LogEnd, strict: Verdict) -> Verdict:
    """Return the strict reading's verdict. If that has no cause, use the best sign in the text."""
    if not _lacks_a_cause(strict):
        rule = rule_named(strict.cause)
        if rule is not None and rule.end == "waited":
            return _with_what_the_missing_said(end, strict)
        return _with_what_stands_above(end, strict) if _may_follow(rule) else strict
    if strict.outcome is None:
        strict = _shortened(end) or strict
        if not _lacks_a_cause(strict):
            return strict
    signs = end.signs
    first = strict.first_failure
    if strict.cause != _ABORTED and first is not None and first.signal is not None and not _ends_itself(end):
        # a server kills its processes with SIGKILL after one of them raises; the others then miss a peer
        signs = tuple(filter(_may_lead_to_a_kill, signs))
    found = _strongest(signs)
    if found is None or found.finding.rule is NAMELESS:
        silent = first is None or first.signal is None or strict.cause == _ABORTED
        found = (_strongest(end.symptoms()) if silent else None) or found
    if found is None or (strict.outcome is not None and found.finding.rule.consequence):
        return strict
    if strict.cause == _ABORTED and found.exception is not None and starts_a_launcher(found.exception):
        return strict
    if strict.cause in (None, "unknown", _ABORTED):
        return _with(strict, found, WORDLESS if strict.cause == _ABORTED else NOTE)
    if found.finding.rule.general:
        return strict
    return _with(replace(strict, first_failure=None, collateral=()), found)  # a victim did not fail first


def _may_lead_to_a_kill(sign: TextSign) -> bool:
    """Whether a supervisor that restarts or kills all processes may have killed the rest because of this one."""
    rule = sign.finding.rule
    missing = rule.name == "file-not-found"  # a shell's next command misses what the killed one didn't write
    return rule.name == "segfault" or not (sign.exception is None or rule.general or missing)


def _may_follow(rule: Rule | None) -> bool:
    """Whether an earlier failure of the same rank often leads to this."""
    return rule is not None and (rule.consequence or rule.general or rule.end in ("told", "after"))


def _ends_itself(end: LogEnd) -> bool:
    """Whether a server says that it stops all its processes because one of them failed."""
    return any("usually means" in line and _GIVES_UP.search(line) for line in end.spoken.lines)


def _strongest(signs: Iterable[TextSign]) -> TextSign | None:
    """Return the sign that explains the most: a cause wins over its consequences, wherever they appear."""
    told = sorted(signs, key=lambda sign: sign.index)
    causes = [sign for sign in told if not sign.finding.rule.consequence] or told
    best = strongest(sign.finding for sign in causes)
    return next((sign for sign in causes if sign.finding is best), None)


def _with_what_the_missing_said(end: LogEnd, strict: Verdict) -> Verdict:
    """Use what a rank printed that others then waited for in vain, if no progress of any rank came after it."""
    missing = strict.first_failure.rank if strict.first_failure is not None else None
    told = min((quote.line for quote in strict.evidence if quote.line is not None), default=0)
    if missing is None or missing in end.writers_of(told):  # it waited itself
        return _with_a_lost_host(end, strict, missing)
    before = [
        sign
        for sign in end.signs
        if end.spoken.numbers[sign.index] < told
        and not (sign.finding.rule.consequence or sign.finding.rule.end == "waited")
    ]
    said = _strongest(sign for sign in before if sign.rank == missing)
    if said is not None:
        return _with(strict, said, MISSED)
    nobodys = _strongest(sign for sign in before if sign.rank is None and sign.exception is not None)
    return strict if nobodys is None else _with(strict, replace(nobodys, rank=missing), PROBABLY_MISSED)


def _with_a_lost_host(end: LogEnd, strict: Verdict, waited: Rank | None) -> Verdict:
    """Use what is reported of a host, if ranks only waited, and name none that didn't come."""
    told = [
        sign
        for sign in end.signs
        if sign.finding.rule.host is not None
        and sign.finding.rule.layer is Layer.REPORTED
        and sign.finding.rule.end != "waited"
        and sign.rank in (None, waited)
    ]
    found = _strongest(told)
    return strict if found is None else _with(replace(strict, first_failure=None), found, HOST)


def _with_what_stands_above(end: LogEnd, strict: Verdict) -> Verdict:
    """Use the cause of an earlier exception that explains more, if no progress came after it: the last one followed
    from it.

    A clean-up, a summary or a retry in the same program raises again, or a user presses Ctrl-C on a hung job. A line
    that would explain more (a warning, another process' message) may be unrelated. In that case the last exception
    stays, but is not certain.
    """
    first = strict.first_failure.rank if strict.first_failure is not None else None
    signs = end.signs
    crashes = [sign for sign in signs if sign.finding.rule.end == "crashed" and sign.finding.confidence == "certain"]
    crash = _strongest(crashes)
    rule = rule_named(strict.cause)
    followed = rule is not None and rule.consequence and strict.cause != _RAYS
    if followed and crash is not None:
        return _with(replace(strict, first_failure=None), crash, CRASHED)
    exception = strict.first_failure.exception if strict.first_failure is not None else None
    raised_at = [sign.index for sign in signs if sign.exception is not None]
    same = [sign.index for sign in signs if sign.exception is not None and _say_the_same(sign.exception, exception)]
    last = max(same or raised_at, default=end.place_of(strict.evidence) if followed else -1)
    causes = [
        sign
        for sign in signs
        if sign.index < last
        and not _may_follow(sign.finding.rule)
        and not (strict.outcome == "interrupted" and sign.finding.rule.code.startswith(OF_THE_NETWORK))
        and (sign.rank is None or first is None or sign.rank == first or followed)
    ]
    only_tells = exception is not None and tells_of_a_program(exception)
    believed = _strongest(sign for sign in causes if sign.exception is not None or only_tells or followed)
    if believed is not None:
        elsewhere = followed and believed.rank != first
        return _with(replace(strict, first_failure=None) if elsewhere else strict, believed, FOLLOWED)
    return replace(strict, confidence="likely") if causes and strict.confidence == "certain" else strict


def _say_the_same(one: ExceptionInfo, other: ExceptionInfo | None) -> bool:
    first = (one.message.partition("\n")[0].strip(), one.type)
    return other is not None and first == (other.message.partition("\n")[0].strip(), other.type)


def _shortened(end: LogEnd) -> Verdict | None:
    """Return the verdict for a piece of torch's summary in any layout: `rank 1 exitcode: -6 (SIGABRT)`."""
    text = end.spoken.text(range(end.over, len(end.spoken.lines)))
    whole = "\n".join(end.spoken.lines[end.over :])
    hit = _ENDED.search(whole)
    code = int(hit["code"] or hit["wrapped"]) if hit is not None else 0
    if hit is None or not code:
        return None
    if end.went_on_after(text.number(whole.count("\n", 0, hit.end())) or 0):
        return None
    rank = None if hit["rank"] is None else Rank(int(hit["rank"]))
    death = Death(rank, code=code, stderr=text)
    verdict = judge(Evidence(deaths=(death,), agent=AgentEnd(log=text), logs_only=True))
    return replace(verdict, confidence="likely") if verdict.confidence == "certain" else verdict


def _lacks_a_cause(strict: Verdict) -> bool:
    if strict.outcome is None or strict.cause == _RAYS:
        return True
    if strict.cause == _ABORTED and strict.confidence != "certain":  # watchdogs print why they abort
        return True
    first = strict.first_failure
    silent = first is None or first.rank is None or first.exit_code is None or first.exit_code > 0
    return strict.outcome == "failed" and strict.cause in (None, "unknown") and silent


def _with(strict: Verdict, found: TextSign, note: str = NOTE) -> Verdict:
    finding = found.finding
    first = strict.first_failure
    rank = None if finding.rule.consequence else found.rank  # a rank that lost a peer did not fail first
    if finding.of_the_job:
        first = None
    elif finding.culprit is not None:
        first = FirstFailure(finding.culprit)
    elif first is None and (rank is not None or found.exception is not None):
        first = FirstFailure(rank, exception=found.exception)
    elif first is not None and first.exception is None and rank in (None, first.rank):
        first = replace(first, exception=found.exception)
    confidence: Confidence = "unknown" if finding.rule is NAMELESS else "likely"
    verdict = strict.with_finding(replace(finding, confidence=confidence))
    return replace(verdict, first_failure=first, notes=(*strict.notes, note))
