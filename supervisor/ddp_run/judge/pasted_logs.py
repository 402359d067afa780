"""The verdict for logs of any launcher, by their text. Nothing in a log is ever run or believed: it is text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_run.evidence import scan
from ddp_run.evidence.pasted import transcript, wrapped
from ddp_run.evidence.pasted.spoken_text import Log
from ddp_run.judge import catalogue, cut_log, diagnose, lost_peers
from ddp_run.judge.text_certainty import as_sure_as_the_text
from ddp_run.judge.verdict import Verdict

_BY_OTHERS = ("preempted-sigterm", "node-failed", "user-interrupt")
"""What ended a job, if nothing in it had failed before."""
_VAGUE = (None, *catalogue.GENERAL, "peer-died")


def explain_text(text: str) -> Verdict:
    """The verdict for a pasted log."""
    return explain_logs([Log(scan.read_text(text, "log", wanted_words()).text)])


def explain_logs(logs: Sequence[Log]) -> Verdict:
    """The verdict for logs that are read already: the strict reading's, else what a cut or wrapped log still shows."""
    logs = [wrapped.without_indentation(log) for log in logs]
    found = _read(logs)
    if found.cause not in _VAGUE or found.confidence == "certain":
        return found
    for joined in wrapped.joined(logs):
        again = _read(joined)
        if again.cause not in _VAGUE and not (again.cause in _BY_OTHERS and _raised(found)):
            return replace(again, confidence="likely", notes=(*again.notes, wrapped.NOTE))
    return found


def _raised(verdict: Verdict) -> bool:
    """Whether it rests on an exception: where lines are joined that were whole, one may be hidden."""
    return verdict.first_failure is not None and verdict.first_failure.exception is not None


def _read(logs: Sequence[Log]) -> Verdict:
    evidence = transcript.read(logs, catalogue.follows_another)
    found = cut_log.read(logs, diagnose.judge(evidence))
    if found.cause in lost_peers.CAUSES and not diagnose.failed_by_itself(evidence):
        found = lost_peers.without_the_first(found, len(logs))
    return as_sure_as_the_text(found, logs).without_secrets()


def wanted_words() -> frozenset[str]:
    """What any rule or reader may want of a large log."""
    return frozenset({*catalogue.sign_words(), *transcript.WORDS})
