"""What the bootstrap adds to the start of a rank: `python tests/bench/bench_bootstrap.py [RUNS]`.

Pairs of `python -u nop.py` and the same as a rank, in turn, with a live inbox; prints the medians and the median of
the paired differences, in milliseconds of wall time from fork to reaped.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ddp_run.plan.launch_plan import RANK_PROGRAM


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ddp-run-bench-") as name:
        folder = Path(name)
        program = folder / "nop.py"
        program.write_text("")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
            inbox.bind(str(folder / "events.sock"))
            inbox.setblocking(False)
            environ = _environment(folder)
            pairs = []
            for _ in range(runs + 2):
                plain = _wall_ms(["-u", str(program)], dict(os.environ))
                rank = _wall_ms(["-u", str(RANK_PROGRAM), "script", str(program)], environ)
                pairs.append((plain, rank))
                assert [b"started" in message for message in _messages(inbox)] == [True, False]
    _print(pairs[2:])


def _messages(inbox: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(inbox.recv(1 << 16))
        except BlockingIOError:
            return found


def _environment(folder: Path) -> dict[str, str]:
    boot = {"socket": str(folder / "events.sock"), "folder": str(folder), "relative": "rank_0", "local_rank": 0}
    return {
        **os.environ,
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "DDP_RUN_BOOT": json.dumps({**boot, "agent": os.getpid(), "restore": {}, "nccl_debug_file": None, "watch": {}}),
    }


def _wall_ms(words: list[str], environ: dict[str, str]) -> float:
    start = time.perf_counter_ns()
    pid = os.posix_spawn(sys.executable, [sys.executable, *words], environ)
    _, status = os.waitpid(pid, 0)
    taken = time.perf_counter_ns() - start
    assert status == 0
    return taken / 1e6


def _print(pairs: list[tuple[float, float]]) -> None:
    plain, rank = zip(*pairs, strict=True)
    added = [b - a for a, b in pairs]
    quarter, middle, three = statistics.quantiles(added, n=4)
    print(f"plain python {statistics.median(plain):.1f} ms, rank {statistics.median(rank):.1f} ms ({len(pairs)} pairs)")
    print(f"added per rank start: median {middle:.1f} ms, quartiles {quarter:.1f} to {three:.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
