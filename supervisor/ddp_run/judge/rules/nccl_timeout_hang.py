"""NCCL collective timed out.

## What happened
A rank waited in a collective until its timeout (10 minutes by default, 30 before torch 2.2), because at least one other
rank did not join: it was busy elsewhere, hung, dead, or in a different collective. The rank that prints the timeout
*waited*; it is usually not the culprit.
## How to recognise it
`Watchdog caught collective operation timeout: WorkNCCL(SeqNum=…, OpType=…, Timeout(ms)=…) ran for … milliseconds before
timing out`, then SIGABRT; with `TORCH_NCCL_BLOCKING_WAIT=1` the same text in an exception. `last enqueued` and `last
completed` are this rank's counts of collectives: a rank whose numbers are lower than the others', or that prints
nothing at all, is the one to check. `ProcessGroupNCCL's watchdog got stuck for … seconds` is different: a CUDA call or
the GIL blocked the watchdog itself.
## What to do
Find out what the missing rank was doing: its log, and `py-spy dump --pid PID` while the next run hangs. Common causes:
a collective inside an `if` on the rank, different numbers of batches, one rank that saves, evaluates or downloads for
longer than the timeout, an exception that only one rank caught. If the work is just slow, raise the timeout:
`init_process_group(timeout=timedelta(minutes=60))`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddp_run.evidence.model import Death, Evidence, LogText, Quote
from ddp_run.evidence.windows import LAST_WORDS
from ddp_run.judge.quoted_line import line_of
from ddp_run.judge.signs import Hit, Sign, ended_by, every, in_last_words, like, meaning, quotes
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.judge.waiting import dump_stacks, silent
from ddp_run.record.events import Rank
from ddp_run.values.words import named_ranks

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP503",
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="the rank may have been slow or stuck only once"),
    wins_over=(("nccl-network", "connections close after the watchdog has aborted a communicator"),),
    unlike="together",
    end="waited",
)
SYMPTOMS = (Sign("WorkNCCL::checkTimeout("),)
_WORK = (
    r"[Cc]aught collective operation timeout:(?: Work\w+\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, [^)]{0,200}?NumelIn=(?P<numel>\d+))?[^)]{0,300}?(?:Timeout\(ms\)=(?P<limit>\d{1,20}))?\)"
    r"(?: ran for (?P<ran>\d{1,20}) milliseconds)?|\s*$)"
)
_CAUGHT = like(_WORK)
_BY_ITSELF = re.compile(r"\bRank \d{1,9}\] [^\n]{0,80}[Cc]aught collective")
"""How the watchdog writes it; programs quote its words."""
_TIMED_OUT = (
    _CAUGHT,
    like(r"Timeout at NCCL work: (?P<seq>\d+), last enqueued NCCL work: (?P<enqueued>\d+)"),
    like(r"NCCL timeout in: (?P<where>\S+:\d+)"),
    Sign("hccl ", r"\bhccl \w{1,20} task timeout"),
    Sign("EI000", r"EI000[26]: [^\n]{0,160}\btimes out"),  # Ascend's collective library, by CANN's error codes
)
_STUCK = meaning(
    like(r"ProcessGroup\w{1,40}'s watchdog got stuck for (?P<seconds>\d+) seconds"),
    Sign("Heartbeat monitor timed out! Process will be terminated"),
    Sign("due to ProcessGroupNCCL watchdog hang"),
    cause="{who}: the NCCL watchdog got stuck{ for {seconds} s}: blocked by a CUDA or NCCL call or by the GIL",
    advice=(
        "py-spy dump --native --pid PID   # while the next run hangs: which call does not return?",
        "export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=3600   # if the call is just slow",
    ),
    likely=True,
)
_GONE = meaning(
    like(
        r"eceived a dump signal [^.]{0,200}?from\s{1,20}(?P<by>this local rank|rank \d+)",
        cause="{who} aborted after an NCCL collective timed out, reported by {by}",
    ),
    Sign(
        "Some NCCL operations have failed or timed out",
        cause="{who} was aborted by the NCCL watchdog: a collective failed or timed out",
    ),
    likely=True,
)
_REPORTS = (
    like(r"ranks \[(?P<ranks>\d{1,9}(?:, ?\d{1,9}){0,9999})\] are the lagging ranks that caused this timeout"),
    like(
        r"\[(?P<ranks>\d{1,9}(?:, ?\d{1,9}){0,9999})\] finished collective #(?P<done>\d+), but"
        r" didn't join collective #(?P<next>\d+)"
    ),
)
_PROGRESS = like(
    r"(?:\[rank(?P<global>\d{1,9})\]:.{0,200}?)?\[(?:(?P<group>PG [^\]]{0,200}?) )?Rank"
    r" (?P<rank>\d{1,9})\].{0,300}?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<count>-?\d{1,20})\b.{0,100}?"
    r"last completed (?:NCCL )?work: (?P<completed>[1-9]\d{0,17}\b)?",
)
_RAS = (
    like(r"(?:Rank (?P<rank>\d{1,9}) has|\d{1,9} ranks have) launched up to operation (?P<count>\d{1,20})\b"),
    like(r"Rank (?P<rank>\d{1,9}) has not launched any operations(?P<count>)"),
)
"""NCCL's own report about a communicator (the `ncclras` program, src/ras/client_support.cc)."""
SIGNS = (*_TIMED_OUT, *_STUCK, *_GONE, *_REPORTS, *_RAS, _PROGRESS)
_NO_TIMEOUT = re.compile(r"(?:CUDA|HIP) error|NCCL error|illegal memory access|ECC|unspecified launch failure")
_WHOLE_JOB = re.compile(r"default_pg|^PG 0$")
"""In this group, a rank's number equals its number in the job."""
_NONE_YET = 2**62
"""Some torch releases print the count -1, "none yet", as an unsigned number."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Who is likely missing, and why: a phrase after a comma."""

    who: str
    rank: Rank | None
    why: str
    quotes: tuple[Quote, ...] = ()
    """The lines that say so; none: only the rank's silence does."""


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match an NCCL watchdog that gave up on a collective, or that a monitor gave up on."""
    hit = ended_by(death, _TIMED_OUT)
    if hit is None and (death.exception is None or _raised_later(death)):
        hit = in_last_words(death, _TIMED_OUT)
    if hit is None:
        return _stuck(death, attempt)
    if hit.exception is None:
        hit = _first(death) or hit
    suspect = attempt.once(_suspect)
    cause = f"{death.who} waited {_what(hit)}, which never completed"
    if suspect is not None:
        own = suspect.rank is not None and suspect.rank == death.rank
        cause += f"; likely {'the lagging rank itself' if own else f'for {suspect.who}'}, {suspect.why}"
    finding = hit.finding(
        RULE,
        death,
        cause,
        _advice(suspect, attempt),
        confidence="certain" if hit.sign is _CAUGHT and (suspect is None or suspect.quotes) else "likely",
        also=suspect.quotes if suspect is not None else (),
    )
    return replace(finding, culprit=suspect.rank if suspect is not None else None)


def _raised_later(death: Death) -> bool:
    """Whether the rank raised after its own watchdog's message: the collective returns data that was never received."""
    first = _first(death)
    if first is None or first.quote is None or death.exception is None or not _BY_ITSELF.search(first.quote.text):
        return False
    return any((first.quote.line or 0) < (shown.line or 0) for shown in line_of(death.stderr, death.exception))


def _first(death: Death) -> Hit | None:
    """Return the watchdog's first message about it, which the abort repeats."""
    return next(iter(every(death.stderr.ending(LAST_WORDS), _CAUGHT)), None)


def _stuck(death: Death, attempt: Evidence) -> Finding | None:
    """Match other cases: the watchdog itself got stuck, another rank's did, or only the end is left in the log."""
    if death.exception is not None:
        return None
    hit = in_last_words(death, _STUCK)
    if hit is not None:
        return hit.finding(RULE, death)
    # torch calls every failure of a collective a timeout when it asks for a dump
    said = (death.stderr, attempt.agent.log) if attempt.logs_only else (death.stderr,)
    if any(_NO_TIMEOUT.search(line) for log in said for line in log.ending(LAST_WORDS).lines):
        return None
    hit = in_last_words(death, _GONE)
    return None if hit is None else hit.finding(RULE, death, None, _advice(None, attempt))


def _what(hit: Hit) -> str:
    if hit["where"] is not None:
        return f"in NCCL setup ({hit['where'].rpartition('/')[2]})"
    operation = hit["op"] or "a collective"
    number = f" #{hit['seq']}" if hit["seq"] else ""
    size = f" ({hit['numel']} elements)" if hit["numel"] else ""
    waited = hit["ran"] or hit["limit"]
    seconds = f"{int(waited) / 1000:.4g} s " if waited else ""
    return f"{seconds}in {operation}{number}{size}"


def _suspect(attempt: Evidence) -> _Suspect | None:
    """Return who is missing according to torch's report, else the one that lags behind, else the only silent one."""
    logs = [death.stderr for death in attempt.deaths]
    if attempt.logs_only or not logs:  # who is missing may not have been seen to end
        logs.append(attempt.agent.log)
    return _reported(logs) or _lagging(logs) or _mute(attempt)


def _reported(logs: Iterable[LogText]) -> _Suspect | None:
    hit = next((hit for log in logs for sign in _REPORTS for hit in every(log, sign)), None)
    if hit is None:
        return None
    ranks = [Rank(int(part)) for part in (hit["ranks"] or "").split(",")]
    rank = ranks[0] if len(ranks) == 1 else None
    return _Suspect(named_ranks(ranks), rank, "according to torch's desync report", quotes(hit))


def _lagging(logs: Sequence[LogText]) -> _Suspect | None:
    """Return the rank with the fewest collectives in one process group, if exactly one has fewer than all others."""
    groups: dict[str | None, dict[str | None, tuple[int, Hit]]] = {}
    for hit in (hit for sign in (*_RAS, _PROGRESS) for log in logs for hit in every(log, sign)):
        if hit["global"] is None and hit["group"] is not None and not _WHOLE_JOB.search(hit["group"]):
            continue
        count = int(hit["count"] or 0)
        counts = groups.setdefault(hit["group"] if hit.sign is _PROGRESS else "NCCL's", {})
        counts[hit["global"] or hit["rank"]] = (-1 if count > _NONE_YET else count, hit)
    for counts in groups.values():
        (fewest, last), *others = sorted(counts.values(), key=lambda each: each[0])
        rank = last["global"] or last["rank"]
        all_had_begun = max((int(hit["completed"] or -1) for _count, hit in others), default=-1)
        if rank is not None and others and others[0][0] > fewest >= all_had_begun:  # else of an earlier attempt
            most, ahead = others[-1]
            why = f"which started {fewest} collectives where others started up to {most}"
            return _Suspect(f"rank {rank}", Rank(int(rank)), why, quotes(last, ahead))
    return None


def _mute(attempt: Evidence) -> _Suspect | None:
    rank = silent(attempt, _TIMED_OUT)
    return None if rank is None else _Suspect(f"rank {rank}", rank, "the only one that printed no timeout")


def _advice(suspect: _Suspect | None, attempt: Evidence) -> tuple[str, ...]:
    whose = f" of rank {suspect.rank}" if suspect is not None and suspect.rank is not None else ""
    logs = [death.stderr for death in attempt.deaths if death.rank == suspect.rank] if suspect else []
    look = (
        (f"tail -n 50 {attempt.path(logs[0].source)}   # the last lines of the missing rank",)
        if logs and logs[0].lines and attempt.folder is not None
        else ()
    )
    return (
        *look,
        f"{dump_stacks(attempt)}   # while the next run hangs: where is the process{whose}?",
        "export TORCH_NCCL_DESYNC_DEBUG=1   # torch then names the lagging ranks",
        "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1   # writes /tmp/nccl_trace_rank_*",
    )
