"""Makes the folder of a run that never was: any number of ranks, and an end of one's choice. As ddp-run writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ddp_run.judge.of_nodes import NodeReport, reported
from ddp_run.judge.verdict import FirstFailure, Verdict
from ddp_run.record.events import (
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    Event,
    ExceptionInfo,
    GpuSampled,
    HangTimedOut,
    LocalRank,
    MemorySampled,
    MonotonicNs,
    Next,
    ProgressSampled,
    Rank,
    RankExited,
    RankFailed,
    RankFinished,
    RankPhase,
    RankStarted,
    RunEnded,
    RunStarted,
    StallSeen,
    StragglerSeen,
)
from ddp_run.record.journal import Journal

End = Literal["failure", "hang", "success"]
HOSTILE = 'loss </script><img src=x onerror="alert(1)"> \x1b[31mred\x1b[0m {{ 7 * 7 }} &amp; <b>'
SECRET = "ghp_" + "Ab1" * 12
_OUTCOME: dict[End, str] = {"failure": "failed", "hang": "hung", "success": "succeeded"}
_S = 1_000_000_000
_START = 1000 * _S
_GIB = 1 << 30
_MINUTES = 40
_LENGTH = (_MINUTES * 60 + 5) * _S


def made_run(
    folder: Path, *, ranks: int, end: End, attempts: int = 1, nodes: int = 1, node: int = 0, torn: bool = False
) -> Path:
    """A run of one node with so many ranks. Rank 1 is the culprit; it is on node 0. `torn`: the journal ends early."""
    folder.mkdir(parents=True)
    journal = Journal(folder / "events.jsonl")
    for event in _events(folder, ranks, end, attempts, nodes, node):
        journal.record(event)
    journal.close()
    options = {"nproc_per_node": {"value": str(ranks), "origin": "command line"}}
    options |= {f"option_{number}": {"value": "", "origin": "default"} for number in range(30)}
    plan = {
        "command": ["ddp-run", f"--nproc-per-node={ranks}", "train.py", "--lr", "0.1" if end == "success" else "0.3"],
        "script": "train.py",
        "script_args": ["--lr", "0.1" if end == "success" else "0.3"],
        "options": options,
        "environment": {"OMP_NUM_THREADS": {"value": "1", "origin": "ddp-run"}},
        "agent": ["python", "-m", "torch.distributed.run", "train.py"],
        "versions": {"ddp-run": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "host": f"node{node}",
        "node": None,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    answer = {"outcome": _OUTCOME[end], "exit_code": 0 if end == "success" else 1, "attempts": attempts, "cause": None}
    (folder / "verdict.json").write_text(json.dumps(answer))
    if torn:
        data = (folder / "events.jsonl").read_bytes()
        (folder / "events.jsonl").write_bytes(data[: len(data) * 2 // 3])
    return folder


def _events(folder: Path, ranks: int, end: End, attempts: int, nodes: int, node: int) -> Iterator[Event]:
    first = node * ranks
    yield RunStarted(
        *(MonotonicNs(_START + node * 7 * _S), 1_795_000_000 * _S, folder.name, f"node{node}", node, nodes),
        *(("train.py",), attempts - 1, "always", 30.0, 0, "0.1.0"),
    )
    at = _START
    for attempt in range(attempts):
        at = _START + node * 7 * _S + attempt * (_MINUTES + 1) * 60 * _S
        yield AttemptStarted(MonotonicNs(at), attempt, ("python", "-m", "torch.distributed.run"), 29500 + attempt)
        yield AgentStarted(MonotonicNs(at), 100 + attempt)
        yield from _of_attempt(folder, attempt, at, first, ranks, ranks * nodes, end)
        follows = Next.RETRY if attempt + 1 < attempts else Next.STOP
        outcome = {"failure": "failed", "hang": "hung", "success": "succeeded"}[end]
        yield AttemptEnded(
            MonotonicNs(at + _LENGTH),
            attempt,
            outcome,
            None,
            0 if end == "success" else 1,
            follows,
            "of the test's choice",
        )
    if nodes > 1 and not node:
        lost = FirstFailure(Rank(ranks), exit_code=1, node_rank=1, host="node1", at=MonotonicNs(at + _LENGTH))
        report = NodeReport(
            1, "node1", "/there", Verdict("failed", 1, "peer-died", first_failure=lost), error_ns=800_000
        )
        yield reported(MonotonicNs(at + _LENGTH), report)
    yield RunEnded(MonotonicNs(at + _LENGTH), 0 if end == "success" else 1)


def _of_attempt(folder: Path, attempt: int, at: int, first: int, ranks: int, world: int, end: End) -> Iterator[Event]:
    every = [Rank(first + local) for local in range(ranks)]
    for local, rank in enumerate(every):
        own = f"attempt_{attempt}/rank_{rank}"
        (folder / own).mkdir(parents=True)
        lines = [f"step {step} loss {1 / (step + rank + 1):.4f}" for step in range(200)]
        (folder / own / "stdout.log").write_text("\n".join([*lines, HOSTILE, f"token={SECRET}"]) + "\n")
        (folder / own / "stderr.log").write_text(_stderr(rank) if end == "failure" else "")
        if end == "hang":
            (folder / own / "live_stacks.txt").write_text(_stack(rank))
        hello = at + 3 * _S + local * 1_000_000
        yield RankStarted(
            MonotonicNs(hello), rank, LocalRank(local), 0, 1000 + rank, world, ranks, own, True, (), None, None
        )
        for phase, after_s in (("init", 4), ("after-init", 6), ("training", 20)):
            yield RankPhase(MonotonicNs(hello + after_s * _S), rank, 0, phase)
    for minute in range(_MINUTES):
        yield from _samples(at + minute * 60 * _S, every, minute, end)
    last = at + _MINUTES * 60 * _S
    culprit = Rank(1)
    if end == "hang":
        others = tuple(rank for rank in every if rank != culprit)
        said = "rank 1 has not entered all_reduce, the others wait for it"
        yield StallSeen(
            MonotonicNs(last - 580 * _S),
            "hang",
            True,
            said,
            (culprit,),
            others,
            MonotonicNs(last - 600 * _S),
            ("rank 1: sleeps",),
        )
        yield HangTimedOut(MonotonicNs(last), 600.0)
    for rank in every:
        yield from _end_of(rank, culprit, last, end)


def _end_of(rank: Rank, culprit: Rank, last: int, end: End) -> Iterator[Event]:
    if end == "success":
        yield RankFinished(MonotonicNs(last), rank, 0)
        yield RankExited(MonotonicNs(last + _S), rank, 0, 0)
    elif end == "failure" and (rank == culprit or rank % 3):
        message = "bad shard" if rank == culprit else "Connection closed by peer"
        kind = "OSError" if rank == culprit else "torch.distributed.DistBackendError"
        raised = ExceptionInfo(kind, f"{message} {HOSTILE}", "/home/me/train.py", 16, "load", _stderr(rank))
        at = last if rank == culprit else last + 300_000_000 + rank * 100_000
        yield RankFailed(MonotonicNs(at), rank, 0, 1, raised)
        yield RankExited(MonotonicNs(at + 400_000_000), rank, 0, 1)
    else:
        yield RankExited(MonotonicNs(last + 2 * _S), rank, 0, -15)


def _samples(at: int, ranks: list[Rank], minute: int, end: End) -> Iterator[Event]:
    now, many = MonotonicNs(at + 30 * _S), tuple(ranks)
    stuck = end == "hang" and minute >= _MINUTES - 10
    steps = tuple(max(0, 60 * min(minute, _MINUTES - 10 if stuck else minute) - (rank == 2)) for rank in ranks)
    yield ProgressSampled(
        now, many, ("training",) * len(ranks), steps, tuple(s + (r != 1) for s, r in zip(steps, ranks, strict=True))
    )
    own = tuple(_GIB + minute * (8 << 20) * (3 if rank == 1 else 1) for rank in ranks)
    free = 64 * _GIB - minute * _GIB // 2
    yield MemorySampled(now, many, own, (100 << 20,) * len(ranks), free, 128 * _GIB, None, None, free // 4, 16 * _GIB)
    gpus = tuple(range(min(8, len(ranks))))
    used = tuple(10 * _GIB + minute * (1 << 28) + gpu * _GIB for gpu in gpus)
    sizes = (
        used,
        tuple(80 * _GIB - each for each in used),
        (80 * _GIB,) * len(gpus),
        (None if stuck else 97,) * len(gpus),
    )
    yield GpuSampled(now, gpus, tuple(f"GPU-{gpu}" for gpu in gpus), *sizes, (), (), (), (), (), True, (), ())
    if minute == 20:
        yield StragglerSeen(now, Rank(2), 48, 50, 0.2, 1.0)


def _stderr(rank: int) -> str:
    raised = "OSError: bad shard" if rank == 1 else "torch.distributed.DistBackendError: Connection closed by peer"
    frame = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 16, in load\n    raise\n'
    return f"{frame}{raised} {HOSTILE}\n"


def _stack(rank: int) -> str:
    inner = '  File "/home/me/train.py", line 30 in evaluate\n' if rank == 1 else ""
    inner = inner or '  File "/usr/lib/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n'
    return f'Thread 0x00007f (most recent call first):\n{inner}  File "/home/me/train.py", line 40 in <module>\n'
