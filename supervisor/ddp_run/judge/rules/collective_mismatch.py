"""Collectives do not match between ranks.

## What happened
At the same point, two ranks ran different operations, or the same one with tensors of different shapes or types.
## How to recognise it
`Detected mismatch between collectives on ranks. Rank 0 is running collective: …, but Rank 1 is running collective: …`
(with `TORCH_DISTRIBUTED_DEBUG=DETAIL`). Without it: Gloo's `op.preamble.length <= op.nbytes. 20 vs 16` and `Received
data size doesn't match expected size`, NCCL's `collective mismatch error, local size … remote size …` and `message
truncated : receiving … bytes instead of …`. An object collective (`broadcast_object_list`, `all_gather_object`) that
meets a different collective reads its data as a size: it tries to allocate exabytes or a `negative dimension`, or
unpickles data that is not a pickle. More often NCCL just hangs: see nccl-timeout-hang. If the watchdogs of two ranks
name the same `SeqNum=` with a different `OpType=`, it was a mismatch.
## What to do
Compare the two lines of user code in the ranks' tracebacks. Common causes: a collective inside an `if` on the rank or
on data, a last batch of a different size, parameters in a different order. Gather sizes first (`all_gather_object`, or
pad to the largest).
"""

from __future__ import annotations

import re

from ddp_run.evidence.model import Death, Evidence
from ddp_run.judge.signs import Hit, Sign, anywhere, ended_by, every, in_exception, like, meaning, quotes
from ddp_run.judge.verdict import Confidence, Finding, Layer, Retry, Rule, named
from ddp_run.record.events import Rank
from ddp_run.values.words import named_ranks

RULE = Rule(
    *named(__name__, __doc__),
    code="DDP505",
    layer=Layer.CHANGEABLE,
    retry=Retry(helps=False, reason="the ranks will call mismatched collectives again"),
    unlike="together",
    end="met",
)
_PRINT = (
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<{0}seq>\d+)(?:, ?)?)?OpType=(?P<{0}op>\w+)"
    r"(?:, ?TensorShape=\[(?P<{0}shape>[^\]]*)\])?"
)
_ADVICE = (
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL   # torch then compares every collective (not with Gloo and DDP together)",
    "grep -rnE 'drop_last|get_rank\\(\\)' --include='*.py' .   # shorter last batch, or an if on the rank?",
)
SYMPTOMS = (
    like(r"Detected mismatch between collectives on ranks\. Rank \d"),
    Sign("Collectives differ in the following aspects:"),
)
_DIFFERENT = "; ranks likely called different collectives"
_WRONG_SIZE = f"{{who}} received data of the wrong size from a peer{{: {{got}} bytes, expected {{wanted}}}}{_DIFFERENT}"
_DETECTED = like(
    r"(?s)Detected mismatch between collectives on ranks\.(?: Rank (?P<a>\d+) is running (?:inconsistent )?collective: "
    + _PRINT.format("a_")
    + r".*?, but Rank (?P<b>\d+) is running (?:inconsistent )?collective: "
    + _PRINT.format("b_")
    + r")?",
    cause="{who} and its peers called different collectives",
)
_GLOO = meaning(
    like(r"op\.preamble\.length <= op\.nbytes(?:\. (?P<got>\d+) vs (?P<wanted>\d+))?"),
    Sign("Received data size doesn't match expected size"),
    cause=_WRONG_SIZE,
    advice=_ADVICE,
    likely=True,
)
_NCCL = meaning(
    like(r"collective mismatch error, local size (?P<wanted>\d+) remote size (?P<got>\d+)"),
    like(r"message truncated : receiving (?P<got>\d+) bytes instead of (?P<wanted>\d+)"),
    cause=_WRONG_SIZE,
    advice=_ADVICE,
    likely=True,
)
_COMPARED = meaning(  # Horovod, MPI, DeepSpeed, torch's checkpoints, accelerate (ACCELERATE_DEBUG_MODE)
    like(r"Mismatched [\w ,/]{1,60}: (?:One|one) rank "),
    Sign("MPI_ERR_TRUNCATE: message truncated"),
    like(r"Detected a disagreement on list (?:length|contents) between rank0 and rank"),
    like(r"Rank \d{1,9} has different values for [^\n]{1,200}\. Other ranks: "),
    Sign(
        "Cannot apply desired operation due to shape mismatches",
        cause="{who} called a collective with a different shape than its peers",
    ),
    cause="{who} and its peers do not agree on a collective: {line}",
    advice=_ADVICE,
)
_GARBLED = meaning(
    like(r"DefaultCPUAllocator: [^\n]{0,40}memory: you tried to allocate (?P<got>\d{13,20}) bytes"),
    like(r"negative dimension (?P<got>-\d+)"),
    Sign("UnpicklingError", types=("UnpicklingError",)),
    Sign("EOFError", types=("EOFError",)),
    cause=f"{{who}} decoded a peer's data as an object{{where}}{_DIFFERENT}",
    advice=_ADVICE,
    likely=True,
)
"""Errors caused by reading a peer's data as the size, or the bytes, of an object."""
_OBJECTS = re.compile(
    r"distributed_c10d\.py\", line \d+, in (?:_tensor_to_object|(?:broadcast|recv|scatter|send)_object_list"
    r"|(?:all_)?gather_object)"
)
_WAITED = like(
    r"\[rank(?P<rank>\d{1,9})\]:.{0,200}?\[(?P<group>PG [^\]\n]{0,80}\(default_pg\) )?Rank (?P=rank)\] Watchdog caught "
    r"collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w{1,40}), "
    r"NumelIn=(?P<numel>\d{1,18})"
)
"""By NCCL's watchdog, in the group of the whole job, which numbers its collectives."""
_EQUALLY_LONG = ("ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
SIGNS = (_DETECTED, *_GLOO, *_NCCL, *_COMPARED, *_GARBLED)


def match(death: Death, attempt: Evidence) -> Finding | None:
    """Match torch's own comparison, or data of a different size than this rank expects."""
    hit = ended_by(death, (_DETECTED, *_GLOO, *_NCCL))
    if hit is None and (death.exception is None or "NCCL" in death.exception.message):
        hit = anywhere(death.nccl, _NCCL) or anywhere(death.stderr, _NCCL)
    if hit is not None and hit.sign is _DETECTED:
        return _detected(hit, death)
    hit = hit or _garbled(death) or ended_by(death, _COMPARED)
    if hit is None and anywhere(death.stderr, (_WAITED,)) is not None:
        return attempt.once(_waited_apart)
    return None if hit is None else hit.finding(RULE, death)


def _waited_apart(attempt: Evidence) -> Finding | None:
    """Find ranks that timed out in one collective of the whole job, by its number, and called it differently."""
    logs = [*(death.stderr for death in attempt.deaths), *([attempt.agent.log] if attempt.logs_only else [])]
    told: dict[tuple[str | None, str | None], dict[Rank, Hit]] = {}
    for hit in (hit for log in logs for hit in every(log, _WAITED)):
        told.setdefault((hit["seq"], hit["group"]), {}).setdefault(Rank(int(hit["rank"] or 0)), hit)
    for (number, group), hits in told.items():
        alike: dict[tuple[str | None, str | None], list[Rank]] = {}
        for rank, hit in hits.items():
            alike.setdefault(_called(hit), []).append(rank)
        fewest, most = min(alike.values(), key=len), max(reversed(alike.values()), key=len)
        if fewest is not most:
            one, other = hits[fewest[0]], hits[most[0]]
            both = (
                f"{named_ranks(sorted(ranks))} called {hit['op']} of {hit['numel']} elements"
                for ranks, hit in ((fewest, one), (most, other))
            )
            cause = f"{' while '.join(both)} (collective #{number})"
            sure: Confidence = "likely" if group is None else "certain"
            return one.finding(RULE, Death(None), cause, _ADVICE[1:], confidence=sure, also=quotes(other))
    return None


def _called(hit: Hit) -> tuple[str | None, str | None]:
    return hit["op"], hit["numel"] if hit["op"] in _EQUALLY_LONG else None


def _garbled(death: Death) -> Hit | None:
    """Find an object collective that read an impossible size or invalid bytes: it met a different collective."""
    hit = in_exception(death, _GARBLED)
    return hit if hit is not None and _OBJECTS.search(hit.traceback) else None


def _detected(hit: Hit, death: Death) -> Finding:
    if hit["a"] is None:
        return hit.finding(RULE, death, advice=_ADVICE)
    one, other = _told(hit, "a_"), _told(hit, "b_")
    both = f"rank {hit['a']} called {one} while rank {hit['b']} called {other}"
    if death.rank is not None and hit["a"] != str(death.rank):  # torch counts them within the group
        both = f"{death.who} called {one} while another rank of its group called {other}"
    number = f" (collective #{hit['a_seq']})" if hit["a_seq"] and hit["a_seq"] == hit["b_seq"] else ""
    return hit.finding(RULE, death, both + number, _ADVICE[1:])


def _told(hit: Hit, which: str) -> str:
    shape = hit[f"{which}shape"]
    return f"{hit[f'{which}op']}" + (f" of shape [{shape}]" if shape is not None else "")
