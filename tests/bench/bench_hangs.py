"""How soon a hang is told of: `python tests/bench/bench_hangs.py [KIND…]`, for kinds of tests/faults/stall.py.

Prints for each the seconds from the ranks' last progress to the line that says so, and the seconds promised. Exits with
1 where one took longer. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.executable).parent
STALL = Path(__file__).parents[1] / "faults" / "stall.py"
PROMISED_S = 20.0
PROMISED_SOON_S = 8.0
SOON = ("branch", "batches", "order", "stop", "leave", "subgroups")
"""Waiting longer would not change these."""
OTHERS = ("spin", "lock", "queue", "c-sleep", "gil", "gil-lock", "worker", "no-init", "recv", "handle", "poll")


def seconds_to_tell(kind: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = ["--nproc-per-node", "3", "--hang-timeout", "1", str(STALL), "--kind", kind]
        subprocess.run(
            [BIN / "ddp-run", *words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=300,
        )
        lines = Path(folder, "ddp-run-logs", "latest", "events.jsonl").read_text().splitlines()
        seen = next(event for event in map(json.loads, lines) if event["event"] == "StallSeen")
        return float(seen["at"] - seen["since"]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=[*SOON, *OTHERS])
    late = False
    for kind in parser.parse_args().kinds:
        took, promised = seconds_to_tell(kind), PROMISED_SOON_S if kind in SOON else PROMISED_S
        late |= took > promised
        print(f"{kind:10} told of after {took:5.1f} s, promised within {promised:.0f} s", flush=True)
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
