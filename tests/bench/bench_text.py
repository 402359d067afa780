"""CPU time of the answer for a pasted text, in process: reading, rules and verdict, without loading the catalogue.

Run: python tests/bench/bench_text.py [--rounds 5]

The median of the rounds, in seconds of this process' CPU (`time.process_time`), and the least.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from ddp_run.judge.pasted_logs import explain_text

TRACEBACK = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in step\n    loss.backward()\n'
DICE = random.Random(1)


def steps(before: str, lines: int) -> str:
    """The log of a job that trained for a while; `{rank}` and `{second}` in what stands before each line."""
    said = (f"step {k} loss={DICE.random():.4f} lr=1.0e-4 tokens/s={DICE.randrange(90000)}" for k in range(lines))
    return "\n".join(before.format(rank=k % 8, second=k % 60) + line for k, line in enumerate(said))


CASES = {
    "60,000 plain lines": f"{steps('', 60_000)}\n{TRACEBACK}ValueError: y\n",
    "60,000 of a logger": f"{steps('2026-11-21 08:15:{second:02} - INFO - ', 60_000)}\n{TRACEBACK}ValueError: y\n",
    "60,000 of eight ranks": f"{steps('[rank{rank}]: ', 60_000)}\n{TRACEBACK}ValueError: y\n",
    "4,096 ranks in five lines": "[rank0-4095]: ValueError: y\n" * 5,
    "20,480 ranks in five lines": "\n".join(f"[rank{k}-{k + 4095}]: ValueError: y" for k in range(0, 20_480, 4096)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    explain_text("ValueError: y")
    for name, text in CASES.items():
        took = []
        for _ in range(rounds):
            began = time.process_time()
            explain_text(text)
            took.append(time.process_time() - began)
        print(f"{name:28} {statistics.median(took):5.2f} s CPU, at least {min(took):.2f}")


if __name__ == "__main__":
    main()
