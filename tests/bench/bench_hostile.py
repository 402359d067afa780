"""Time and memory of `ddp-run explain` on 10 MB of whatever somebody may hand to it.

Run: python tests/bench/bench_hostile.py [--megabytes 10] [--only KIND]

Each is one process of the real command, the file in the page cache: wall and CPU seconds, and its highest memory.
A log of 10 MB should take 5 s and 150 MiB at most, whatever its bytes are.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ddp_run.judge.catalogue import catalogue

DDP_RUN = Path(sys.executable).parent / "ddp-run"
WORDS = sorted({sign.words.replace("\n", " ") for cause in catalogue() for sign in cause.signs})
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/home/me/train.py", line {0}, in step\n    loss.backward()\n'
    "RuntimeError: {1}\n"
)


def random_bytes(size: int) -> bytes:
    return random.Random(1).randbytes(size)


def _repeated(line: Callable[[int], str]) -> Callable[[int], bytes]:
    def made(size: int) -> bytes:
        parts, length, number = [], 0, 0
        while length < size:
            parts.append(line(number).encode())
            length += len(parts[-1])
            number += 1
        return b"".join(parts)[:size]

    return made


KINDS: dict[str, Callable[[int], bytes]] = {
    "random bytes": random_bytes,
    "zeros": lambda size: b"\0" * size,
    "newlines": lambda size: b"\n" * size,
    "one line of a's": lambda size: b"a" * size,
    "one line of blanks": lambda size: b" " * size,
    "one line of digits": lambda size: b"1" * size,
    "escape sequences": lambda size: (b"\x1b[31m\x1b]0;x\x07\xc2\x9b" * size)[:size],
    "steps of 8 ranks": _repeated(lambda k: f"[rank{k % 8}]: step {k} loss=0.{k % 9973:04} lr=1.0e-4\n"),
    "short lines": _repeated(lambda k: f"{k}\n"),
    "lines of every word": _repeated(lambda k: f"{WORDS[k % len(WORDS)]} {k}\n"),
    "long lines of words": _repeated(lambda k: " ".join(WORDS[k % 500 : k % 500 + 40]) + "\n"),
    "tracebacks": _repeated(lambda k: TRACEBACK.format(k, WORDS[k % len(WORDS)])),
    "tracebacks of 500 ranks": _repeated(
        lambda k: "".join(f"[rank{k % 500}]: {line}\n" for line in TRACEBACK.format(k, k).splitlines())
    ),
    "exceptions without a traceback": _repeated(lambda k: f"ValueError: {k}\n"),
    "ranges of ranks": _repeated(lambda k: f"[rank{k % 4000}-4095]: {WORDS[k % len(WORDS)]}\n"),
    "carriage returns": _repeated(lambda k: f"\r{k % 100}%|##  | {WORDS[k % len(WORDS)]}"),
    "records of JSON": _repeated(
        lambda k: '{"log":"' + WORDS[k % len(WORDS)].replace('"', "") + '","stream":"stderr"}\n'
    ),
}


def measure(log: Path) -> tuple[float, float, float, int]:
    """Wall and CPU seconds, MiB, exit code."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(DDP_RUN), "explain", str(log)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _pid, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--only")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        options.write.write_bytes(KINDS[options.only](int(options.megabytes * 1e6)))
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for name in KINDS:
            if options.only in (None, name):
                # A child's highest memory begins with that of who started it: the log is made elsewhere.
                words = ("--megabytes", str(options.megabytes), "--only", name, "--write", str(log))
                subprocess.run([sys.executable, __file__, *words], check=True)
                wall, cpu, peak, code = measure(log)
                print(f"{name:32} {wall:6.2f} s wall {cpu:6.2f} s CPU {peak:5.0f} MiB, code {code}", flush=True)


if __name__ == "__main__":
    main()
