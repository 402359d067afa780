"""CPU of showing 100 MB of 100-byte lines of 2 ranks, beside `torchrun --tee 3`; paired medians.

Run: python tests/bench/bench_console.py [--megabytes 100] [--rounds 5] [--no-torchrun]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddp_run.tell.console import Console
from ddp_run.tell.tail import Tailer

LINE = b"step 12345 loss 0.123456 lr 3.0e-04 tokens/s 123456 mem 12345 MiB".ljust(99, b".") + b"\n"
PROGRAM = """
import sys
line = b"x" * 99 + b"\\n"
for _ in range(int(sys.argv[1]) // 100_000):
    sys.stdout.buffer.write(line * 1000)
"""


def ours(megabytes: int, folder: Path) -> float:
    """CPU seconds of tailing, prefixing and writing to a file."""
    files = [folder / f"rank_{rank}.log" for rank in range(2)]
    for file in files:
        with file.open("wb") as out:
            for _ in range(megabytes * 5):
                out.write(LINE * 1000)
    shown = os.open(folder / "shown", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    start = time.process_time()
    with Tailer() as tailer:
        console = Console(shown, shown, ranks=2)
        for rank, file in enumerate(files):
            tailer.add(rank, rank, "stdout", file)
        while chunks := tailer.read():
            console.feed(chunks, time.monotonic())
        console.finish(lambda: 60)
    spent = time.process_time() - start
    os.close(shown)
    assert (folder / "shown").stat().st_size == megabytes * 10_000 * (100 + len("[rank0]: "))
    for file in (*files, folder / "shown"):
        file.unlink()
    return spent


def torchrun(option: str, bytes_per_rank: int, folder: Path) -> float:
    """CPU seconds of a 2-rank job, ranks included, under torchrun with `option`."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", option]
    command += [f"--log-dir={folder / 'torchrun'}", str(program), str(bytes_per_rank)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "teed").open("wb") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchrun", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            mine.append(ours(options.megabytes, Path(name)))
            if options.torchrun:
                size = options.megabytes * 500_000
                files_only = torchrun("--redirects=3", size, Path(name))
                theirs.append(torchrun("--tee=3", size, Path(name)) - files_only)
    print(f"ours: {statistics.median(mine):.3f} CPU s for {options.megabytes} MB (rounds: {mine})")
    if theirs:
        ratio = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
        print(f"torchrun: {statistics.median(theirs):.3f} CPU s more with --tee 3 than with --redirects 3 ({theirs})")
        print(f"median of the paired ratios: {ratio:.3f}")


if __name__ == "__main__":
    main()
