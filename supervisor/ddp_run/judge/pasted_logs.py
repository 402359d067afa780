"""Computes the verdict for logs of any launcher from their text. Nothing in a log is run or trusted. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence import scan
from ddp_run.evidence.pasted import transcript, wrapped
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
from ddp_run.judge import catalogue, cut_log, diagnose, lost_peers
from ddp_run.judge.text_certainty import as_sure_as_the_text
from ddp_run.judge.text_signs import LogEnd
from ddp_run.judge.verdict import Verdict

_CLASS = re.compile(r"(?:Error|Exception|Exit|Interrupt)$")
"""A whole name of an exception's class: of a wrapped line, only a piece may be read."""


def explain_text(text: str) -> Verdict:
    """Return the verdict for pasted logs."""
    return explain_logs([Log(scan.read_text(text, "log", wanted_words()).text)])


def explain_logs(logs: Sequence[Log]) -> Verdict:
    """Return the verdict for parsed logs: the strict reading's, else the one from a cut or wrapped log."""
    logs = [wrapped.without_indentation(log) for log in logs]
    found = _read(logs)
    if not _is_vague(found) or found.confidence == "certain":
        return found
    for joined in wrapped.joined(logs):
        again = _read(joined)
        if not _is_vague(again) and not _hides(again, found):
            return replace(again, confidence="likely", notes=(*again.notes, wrapped.NOTE))
    return found


def _hides(joined: Verdict, found: Verdict) -> bool:
    """Whether joining lines that were not wrapped hid the exception that they show: another class is raised, or the
    job was told to end."""
    shown, left = _raised(found), _raised(joined)
    rule = catalogue.rule_named(joined.cause)
    told = rule is not None and rule.end == "told"  # what ended the job if nothing failed before
    return shown is not None and (told or (left is not None and _CLASS.search(shown) is not None and left != shown))


def _is_vague(verdict: Verdict) -> bool:
    rule = catalogue.rule_named(verdict.cause)
    return rule is None or rule.general or rule.consequence


def _raised(verdict: Verdict) -> str | None:
    """Return the class of the exception that it rests on."""
    exception = verdict.first_failure.exception if verdict.first_failure is not None else None
    return None if exception is None else exception.type


def _read(logs: Sequence[Log]) -> Verdict:
    spoken = SpokenText.of_logs(logs)
    evidence, end = transcript.read(spoken, catalogue.follows_another), LogEnd(spoken)
    found = cut_log.read(end, diagnose.judge(evidence))
    if lost_peers.only_lost(found) and not diagnose.failed_by_itself(evidence):
        found = lost_peers.without_the_first(found, len(logs))
    return as_sure_as_the_text(found, end).without_secrets()


def wanted_words() -> frozenset[str]:
    """Return all words that a rule or parser may need from a large log."""
    return frozenset({*catalogue.sign_words(), *transcript.WORDS})
