"""Reads the answer that ddp-run printed below a job's output, if a pasted log has it. Pure.

It knew more than the text shows: exit codes, stamps, what ranks of a hang were waiting for.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import cast

from ddp_run.judge.catalogue import rule_named
from ddp_run.judge.text_signs import LogEnd
from ddp_run.judge.verdict import ANSWER, Confidence, FirstFailure, Outcome, Verdict
from ddp_run.record.events import Rank

LAST_LINE = f"{ANSWER}outcome="
_ANSWER = re.compile(
    rf"^[>\s]{{0,8}}{LAST_LINE}(?P<outcome>failed|hung|interrupted) cause=(?P<cause>[a-z][\w\-]*) code=(?P<code>\w+) "
    r"rank=(?P<rank>-|\d{1,9}) node=(?P<node>\S+) exit=(?P<exit>\d{1,3}) "
)
_HEADLINE = re.compile(r"^[>\s]{0,8}(?:error|interrupted)\[(?P<code>\w+)\]: (?P<title>.+?)(?P<likely> \(likely\))?$")


def with_the_answer(found: Verdict, end: LogEnd) -> Verdict:
    """Return ddp-run's own answer with what the log shows of it; `found` if it isn't there, or isn't the end."""
    lines = end.spoken.lines
    said = [index for index, line in enumerate(lines) if LAST_LINE in line]
    hit = _ANSWER.match(lines[said[-1]]) if said else None
    if (
        hit is None
        or end.went_on_after(end.spoken.numbers[said[-1]])
        or any(each.index > said[-1] for each in end.signs)
    ):
        return found
    heads = ((index, _HEADLINE.match(lines[index])) for index in range(said[-1] - 1, -1, -1))
    at, head = next(((index, head) for index, head in heads if head and head["code"] == hit["code"]), (said[-1], None))
    unsure: Confidence = "likely" if head is None or head["likely"] else "certain"
    rank = None if hit["rank"] == "-" else Rank(int(hit["rank"]))
    first = found.first_failure
    if first is None or first.rank != rank:
        first = None if rank is None else FirstFailure(rank, host=hit["node"])
    told = replace(
        found,
        outcome=cast(Outcome, hit["outcome"]),
        exit_code=int(hit["exit"]),
        title=head["title"] if head is not None else found.title,
        confidence="unknown" if hit["cause"] == "unknown" else unsure,
        first_failure=first,
    )
    if found.cause == hit["cause"]:
        return told
    rule = rule_named(hit["cause"])
    return Verdict(
        told.outcome,
        told.exit_code,
        hit["cause"],
        hit["code"],
        told.title,
        told.confidence,
        first_failure=first,
        evidence=(end.spoken.text([at]).quote(0),),
        retry=rule.retry if rule is not None else None,
    )
