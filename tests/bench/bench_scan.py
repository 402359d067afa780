"""Time and memory of reading a log of 1 GB, with the words of the whole catalogue, by each engine.

Run: python tests/bench/bench_scan.py [--megabytes 1024] [--rounds 3] [--log FILE] [--no-explain]

Each measurement is a process of its own on a log in the page cache: medians of wall and CPU seconds (grep's own
included), the highest memory of the Python process. `explain` is what follows: the text through the rules to a verdict.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ddp_run.judge.catalogue import catalogue

MEASURE = """
import json, re, resource, sys, time
from pathlib import Path
from ddp_run.evidence import scan
from ddp_run.evidence.pasted import transcript
from ddp_run.judge import catalogue, diagnose, text_signs
from ddp_run.evidence.pasted.spoken_text import Log, SpokenText
words = sorted({sign.words for cause in catalogue.catalogue() for sign in cause.signs})
wall, cpu = time.monotonic(), time.process_time()
excerpt = scan.read_log(Path(sys.argv[1]), "log", words, [sys.argv[2]] if sys.argv[2] != "none" else [])
if sys.argv[3] == "explain":
    verdict = diagnose.judge(transcript.read(SpokenText.of_logs([Log(excerpt.text)]), text_signs.shows))
wall, cpu = time.monotonic() - wall, time.process_time() - cpu
children = resource.getrusage(resource.RUSAGE_CHILDREN)
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(json.dumps([wall, cpu + children.ru_utime + children.ru_stime, peak / 1024, len(excerpt.text.lines)]))
"""
TRACEBACK = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/user/train.py", line 88, in train_step
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB
"""


def part(seed: int) -> bytes:
    """20,000 lines of a job of 8 ranks: steps, progress bars, warnings, NCCL's INFO, a logger's lines."""
    dice = random.Random(seed)
    lines = []
    for index in range(20_000):
        kind = dice.random()
        rank, loss = dice.randrange(8), dice.random()
        if kind < 0.5:
            lines.append(f"[rank{rank}]: step {index} loss={loss:.4f} lr=1.0e-4 tokens/s={dice.randrange(90000)}")
        elif kind < 0.7:
            lines.append(f"  {index % 100}%|████▌     | {index}/20000 [00:{index % 60:02}<12:13, 3.4it/s]")
        elif kind < 0.8:
            lines.append(
                f"/usr/lib/python3.11/site-packages/torch/utils/checkpoint.py:{dice.randrange(900)}: UserWarning: "
                "None of the inputs have requires_grad=True. Gradients will be None"
            )
        elif kind < 0.9:
            lines.append(f"node-{rank}:3{rank}:41 [{rank}] NCCL INFO Channel {index % 32:02}/0 : 0[0] -> 1[1] via P2P")
        else:
            lines.append(f"2026-11-21 08:15:{index % 60:02} - trainer - INFO - error rate {loss:.4f}, failed 0")
    return ("\n".join(lines) + "\n").encode()


def write(path: Path, megabytes: int) -> None:
    """A log of that size with one out-of-memory error at its middle."""
    block = part(1)
    count = max(2, (megabytes << 20) // len(block))
    with path.open("wb") as log:
        for number in range(count):
            log.write(block)
            if number == count // 2:
                log.write(TRACEBACK.encode())


def measure(log: Path, engine: str, what: str, rounds: int) -> None:
    command = [sys.executable, "-c", MEASURE, str(log), engine, what]
    runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(rounds)]
    wall, cpu, peak, lines = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"{what:8} {engine:10} {wall:6.2f} s wall {cpu:6.2f} s CPU {peak:5.0f} MiB {lines:8.0f} lines read")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--log", type=Path, help="this one in place of a made one")
    parser.add_argument("--no-explain", action="store_true")
    options = parser.parse_args()
    words = {sign.words for cause in catalogue() for sign in cause.signs}
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "log"
        if options.log is None:
            write(log, options.megabytes)
        print(f"{log.stat().st_size / 1e6:.0f} MB, {len(words)} words of {len(catalogue())} causes")
        for what in ["scan"] if options.no_explain else ["scan", "explain"]:
            for engine in ("hyperscan", "grep", "none"):
                measure(log, engine, what, options.rounds)


if __name__ == "__main__":
    main()
