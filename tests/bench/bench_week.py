"""A week's journal: its size, and how long `explain` and `watch` take to read it.

    python tests/bench/bench_week.py [--ranks N] [--days D]

Samples as often as ddp-run takes them in a steady job, which fails at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ddp_run.record import journal
from ddp_run.record.events import (
    SAMPLE_S,
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    Event,
    GpuSampled,
    LocalRank,
    MemorySampled,
    MonotonicNs,
    Next,
    ProgressSampled,
    Rank,
    RankExited,
    RankFailed,
    RankPhase,
    RankStarted,
    RunEnded,
    RunStarted,
)

STEADY_S = 300.0
"""Between two samples of memory, and of GPUs, if neither changes much."""
RUN = "20261121-081500-0000"
COMMANDS = (("explain",), ("explain", "--json"), ("watch", "--once"), ("runs",))


def at(seconds: float) -> MonotonicNs:
    return MonotonicNs(round((1000 + seconds) * 1e9))


def events(ranks: int, seconds: int) -> Iterator[Event]:
    """Of one node with all ranks."""
    every = tuple(map(Rank, range(ranks)))
    yield RunStarted(at(0), time.time_ns(), RUN, "host", 0, 1, ("ddp-run", "t.py"), 0, "by-cause", 30.0, 0, "1")
    yield AttemptStarted(at(1), 0, ("python",), None)
    yield AgentStarted(at(1), 100)
    for rank in every:
        yield RankStarted(at(5), rank, LocalRank(rank), 0, 200 + rank, ranks, ranks, f"attempt_0/rank_{rank}", True)
    for phase in ("init", "after-init", "training"):
        yield from (RankPhase(at(20), rank, 0, phase) for rank in every)
    every_s = {"memory": STEADY_S, "gpus": STEADY_S, "progress": SAMPLE_S}
    due = dict.fromkeys(every_s, 60.0)
    while (moment := min(due.values())) < seconds:
        kind = min(due, key=lambda each: due[each])
        due[kind] += every_s[kind]
        match kind:
            case "memory":
                sizes = tuple(8_000_000_000 + 4096 * int(moment) + rank for rank in every)
                yield MemorySampled(at(moment), every, sizes, (0,) * ranks, 10**11, 10**12, None, None, 10**10, 10**11)
            case "gpus":
                yield gpu_sample(moment, every)
            case _:
                steps = (int(moment * 3),) * ranks
                yield ProgressSampled(at(moment), every, ("training",) * ranks, steps, steps)
    yield RankFailed(at(seconds), every[-1], 0, 1, None)
    yield from (RankExited(at(seconds + 1), rank, 0, 1) for rank in reversed(every))
    yield AttemptEnded(at(seconds + 2), 0, "failed", None, 1, Next.STOP, "no retries requested (--max-retries)")
    yield RunEnded(at(seconds + 2), 1)


def gpu_sample(moment: float, every: tuple[Rank, ...]) -> GpuSampled:
    """Eight GPUs, a process on each."""
    eight = tuple(range(8))
    sizes = tuple(70_000_000_000 + int(moment) for _ in eight)
    names = tuple(f"GPU-{each:08x}-0000-0000-0000-000000000000" for each in eight)
    cards = (eight, names, sizes, (10**9,) * 8, (80 * 10**9,) * 8, (97,) * 8)
    processes = (tuple(200 + each for each in eight), eight, sizes, ("python",) * 8, tuple(map(Rank, eight)), True)
    return GpuSampled(at(moment), *cards, *processes, every[:8], tuple((each,) for each in eight[: len(every)]))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--days", type=float, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top, "ddp-run-logs", RUN)
        folder.mkdir(parents=True)
        with (folder / "events.jsonl").open("w") as file:
            for event in events(given.ranks, round(given.days * 86400)):
                file.write(journal.encode(event, "2026-11-21T08:15:00.000000Z") + "\n")
        (folder / "plan.json").write_text(json.dumps({"script": "t.py", "script_args": []}))
        size = (folder / "events.jsonl").stat().st_size
        print(f"{given.days:g} days of {given.ranks} ranks: {size / 1e6:.0f} MB, on {os.cpu_count()} cores\n")
        print("| command | seconds |\n| --- | --- |")
        for words in COMMANDS:
            run = [] if words[0] == "runs" else [str(folder)]
            began = time.monotonic()
            command = [sys.executable, "-m", "ddp_run", *words, *run]
            subprocess.run(command, cwd=top, check=False, stdout=subprocess.DEVNULL)
            print(f"| `ddp-run {' '.join(words)}` | {time.monotonic() - began:.2f} |", flush=True)


if __name__ == "__main__":
    main()
