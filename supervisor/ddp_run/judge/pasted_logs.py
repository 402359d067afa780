"""Computes the verdict for logs of any launcher from their text. Nothing in a log is run or trusted. Pure.

The end of a live rank is known from its stamps and exit code. A pasted text is only an excerpt, possibly by several
programs. An answer that fits the words may still not explain why the job ended. On posted logs that no rule had seen
before, one in four certain answers was wrong if the text also showed another cause, and one in a hundred if it did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence import exception_chain, exception_frames, launcher_exceptions, scan
from ddp_run.evidence.pasted import deaths, margin, transcript, wrapped
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge import cut_log, diagnose, lost_peers, told_before
from ddp_run.judge.catalogue import follows_another, rule_named, sign_words
from ddp_run.judge.order import explains
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.text_signs import LogEnd, TextSign, not_there, shows
from ddp_run.judge.verdict import FirstFailure, Layer, Rule, Verdict
from ddp_run.record.events import ExceptionInfo, Rank


def explain_text(text: str) -> Verdict:
    """Return the verdict for pasted logs."""
    return explain_logs([Log(scan.read_text(text, "log", wanted_words()).text)])


def explain_logs(logs: Sequence[Log]) -> Verdict:
    """Return the verdict for parsed logs: the strict reading's, else the one from a cut or wrapped log."""
    logs = [margin.without_margin(log) for log in logs]
    found = _read(logs)
    if not _is_vague(found) or found.confidence == "certain":
        return found
    for joined in wrapped.joined(logs):
        again = _read(joined)
        if _says_more(again, found) and not _hides(again, found) and not _revives(again, found, logs):
            return replace(again, confidence="likely", notes=(*again.notes, wrapped.NOTE))
    return found


def _hides(joined: Verdict, found: Verdict) -> bool:
    """Whether joining lines that were not wrapped hid the exception that they show: only the bare name of its class, or
    words of the program's own class are left, or a request to end."""
    shown, left = _raised(found), _raised(joined)
    rule = rule_named(joined.cause)
    told = rule is not None and rule.end == "told"  # what ended the job if nothing failed before
    if shown is None:
        return False
    if told:
        return True
    return exception_frames.is_own(shown) if left is None else shown.type.endswith(f".{left.type}")


def _revives(joined: Verdict, found: Verdict, logs: Sequence[Log]) -> bool:
    """Whether joining lines only hid that the program went on after what the joined ones show."""
    shown = max((quote.line or 0 for quote in joined.evidence), default=0)
    return found.cause is None and LogEnd(SpokenText.of_logs(logs)).went_on_after(shown)


def _says_more(joined: Verdict, found: Verdict) -> bool:
    more, rule = rule_named(joined.cause), rule_named(found.cause)
    if more is None or _is_vague(joined) or (more.end == "waited" and _raised(found) is not None):
        return False
    return rule is None or rule.end != "crashed" or explains(more, rule)


def _is_vague(verdict: Verdict) -> bool:
    rule = rule_named(verdict.cause)
    if rule is None or rule.general or rule.consequence:
        return True
    return rule.end == "crashed" and verdict.confidence == "likely"


def _raised(verdict: Verdict) -> ExceptionInfo | None:
    """Return the exception that it rests on."""
    return verdict.first_failure.exception if verdict.first_failure is not None else None


def _read(logs: Sequence[Log]) -> Verdict:
    spoken = SpokenText.of_logs(logs)
    evidence, end = transcript.read(spoken, shows), LogEnd(spoken)
    found = cut_log.read(end, diagnose.judge(evidence))
    if lost_peers.only_lost(found) and not diagnose.failed_by_itself(evidence):
        found = lost_peers.without_the_first(found, len(logs))
    found = _of_no_rank(as_sure_as_the_text(_of_who_says_it(found, end), end))
    return _with_its_line(told_before.with_the_answer(found, end), spoken).without_secrets()


def _of_who_says_it(verdict: Verdict, end: LogEnd) -> Verdict:
    """Name the rank that wrote what a verdict rests on, if that has none, or only the local rank that an agent logs."""
    rule, first = rule_named(verdict.cause), verdict.first_failure
    if rule is None or rule.consequence or rule.general or first is None:
        return verdict
    only_local = first.host is None and first.local_rank is not None and first.rank == Rank(first.local_rank)
    if first.rank is not None and not only_local:
        return verdict
    lines = {quote.line for quote in verdict.evidence}
    same = [sign for sign in end.signs if sign.rank is not None and sign.finding.rule is rule]
    told = {sign.rank: sign for sign in same if end.spoken.numbers[sign.index] in lines}
    if len(told) != 1:
        return verdict
    [(rank, sign)] = told.items()
    if rank is None or (first.rank is not None and rank < first.rank):
        return verdict  # another rank's words: a local rank isn't above the rank
    return replace(verdict, title=sign.finding.cause, first_failure=replace(first, rank=rank))


def _with_its_line(verdict: Verdict, spoken: SpokenText) -> Verdict:
    """Cite the line that shows the exception, or tells how the rank ended, if the rule found none in its own text."""
    first = verdict.first_failure
    if verdict.evidence or first is None:
        return verdict
    raised = first.exception
    shown = line_of(spoken.text(range(len(spoken.lines))), raised) if raised is not None else ()
    told = deaths.told_on(spoken, first.rank, first.pid, first.exit_code)
    return replace(verdict, evidence=shown or (() if told is None else (spoken.text([told]).quote(0),)))


def _of_no_rank(verdict: Verdict) -> Verdict:
    """Take the rank out of a verdict that rests on ranks which met in different operations: none failed first."""
    rule, first = rule_named(verdict.cause), verdict.first_failure
    if rule is None or rule.end != "met" or first is None or first.rank is None:
        return verdict
    left = None if first.exception is None else FirstFailure(None, exception=first.exception)
    return replace(verdict, first_failure=left)


def wanted_words() -> frozenset[str]:
    """Return all words that a rule or parser may need from a large log."""
    return frozenset({*sign_words(), *transcript.WORDS, told_before.LAST_LINE})


# -------------------------------------------------------------------------------- how certain


def as_sure_as_the_text(verdict: Verdict, end: LogEnd) -> Verdict:
    """Reduce certain to likely if the text shows another cause, or a process that went on after the line."""
    rule = rule_named(verdict.cause)
    if verdict.confidence != "certain" or rule is None:
        return verdict
    first = verdict.first_failure
    exception = first.exception if first is not None else None
    lines = [quote.line or 0 for quote in verdict.evidence]
    begun, told = min(lines, default=0), max(lines, default=0)
    doubtful = (
        any(_speaks_of_another(sign, rule, exception, begun) for sign in end.signs)
        or (exception is not None and not (exception.file or exception.traceback))  # only the program's own words
        or end.of_another_service(told)
        or end.left_with_0_after(told)
        or rule.end == "waited"  # it can't know why the others didn't come
        or (exception is not None and not_there(rule, exception))
    )
    ended_it = exception is not None and exception_frames.begins_at_module(exception)
    if not doubtful and told and not ended_it:
        silent = first is None or first.exit_code is None or exception is not None  # nothing else shows an end
        doubtful = end.went_on_after(told) if silent else end.ran_again_after(told)
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
        return not launcher_exceptions.starts_a_launcher(sign.exception) and not follows_another(sign.exception)
    return not other.general or _is_another(sign.exception, exception)


def _is_another(one: ExceptionInfo | None, of: ExceptionInfo | None) -> bool:
    """Whether the exceptions are unrelated."""
    if one is None or of is None or launcher_exceptions.starts_a_launcher(one):
        return False
    return all(one.type != each.type for each in exception_chain.chain(of))
