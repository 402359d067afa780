"""Gloo collective or monitored barrier timed out.

## What happened
A rank waited for another one until the timeout (30 minutes by default), because that one did not join: busy elsewhere,
hung, gone, or in another collective. The rank that prints the timeout *waited*; the missing rank caused it.
## How to recognise it
`[Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms` names the missing rank. `Timed out waiting 30000ms for
recv operation to complete` from `gloo/transport/tcp/unbound_buffer.cc` names no rank. The other ranks then print
`Connection closed by peer` or `successfully reached monitoredBarrier, but received errors`: they are victims, too.
## What to do
Check what the missing rank was doing: its log, and `py-spy dump --pid PID` while the next run hangs. Common causes: a
collective inside an `if` on the rank, different numbers of batches, one rank that saves or evaluates for a long time.
To make Gloo name it, call `torch.distributed.monitored_barrier(wait_all_ranks=True)` before that point. If the work is
just slow, raise the timeout: `init_process_group(timeout=timedelta(minutes=60))`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Sign, ended_by, like
from ddp_run.judge.verdict import Finding, Layer, Retry, Rule, named
from ddp_run.judge.waiting import dump_stacks, silent
from ddp_run.record.events import Rank
from ddp_run.values.words import named_ranks

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP504",
    layer=Layer.REPORTED,
    retry=Retry(helps=True, reason="the rank may have been slow or stuck only once"),
    unlike="together",
    end="waited",
)
_MISSING = like(
    r"(?:\[Rank (?P<who>\d+)\]: )?Ranks? (?P<missing>\d{1,9}(?:,? \d{1,9})*) failed to pass"
    r" monitoredBarrier in (?P<ms>\d{1,20})"
)
_TRANSFER = "another rank in a Gloo collective and timed out"
SIGNS = (
    _MISSING,
    like(
        r"timed out in monitoredBarrier after (?P<ms>\d{1,20})",
        cause="{who} waited {time}in a monitored barrier that not all ranks reached",
    ),
    like(
        r"Timed out waiting (?P<ms>\d{1,20})ms for (?P<call>recv|send) operation to complete",
        cause=f"{{who}} waited {{time}}in {{call}} for {_TRANSFER}",
    ),
    Sign("Application timeout caused pair closure", cause=f"{{who}} waited for {_TRANSFER}"),
)
_OPERATION = re.compile(
    r"running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+), ?)?OpType=(?P<op>\w+)"
)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match a Gloo timeout. In a monitored barrier the text names the missing rank."""
    hit = ended_by(death, (_MISSING,)) or ended_by(death, SIGNS)
    if hit is None:
        return None
    operation = _OPERATION.search(hit.message)
    before = f" before {operation['op']}" if operation else ""
    waited = f"{int(hit['ms']) / 1000:.4g} s " if hit["ms"] else ""
    missing = [Rank(int(number)) for number in re.findall(r"\d+", hit["missing"] or "")]
    if missing:
        who = f"rank {hit['who']}" if hit["who"] else death.who
        cause = f"{named_ranks(missing)} did not reach the barrier{before} that {who} waited {waited}for"
        finding = hit.finding(RULE, death, cause, _advice(missing[0], attempt))
        return replace(finding, culprit=missing[0])
    cause = hit.says(death, time=waited)
    suspect = attempt.once(_mute)
    if suspect is not None and suspect != death.rank:
        cause += f"; likely for rank {suspect}, the only one that printed no timeout"
        return replace(hit.finding(RULE, death, cause, _advice(suspect, attempt), confidence="likely"), culprit=suspect)
    return hit.finding(RULE, death, cause, _advice(None, attempt))


def _mute(attempt: Evidence) -> Rank | None:
    return silent(attempt, SIGNS)


def _advice(missing: Rank | None, attempt: Evidence) -> tuple[str, ...]:
    whose = f"rank {missing}" if missing is not None else "each rank"
    return (
        f"{dump_stacks(attempt)}   # while the next run hangs: where is {whose}?",
        "export TORCH_DISTRIBUTED_DEBUG=INFO   # more detail in torch's own messages",
        "grep -rnE 'get_rank\\(\\)|RANK' --include='*.py' .   # a collective inside an if on the rank?",
    )
