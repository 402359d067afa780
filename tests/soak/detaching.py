"""A rank that trains with gloo and DataLoader workers, and has a child that detaches itself: the job of `kills.py`.

    detaching.py --mark WORD [--fail-once]

The child of each fourth rank is a daemon with its environment, one without, one that also left the folder, and one
whose main thread has exited, without its environment too. All have an open file in the folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

DAEMON = """
import ctypes, os, sys, threading, time
_, mark, kind = sys.argv
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
if kind == "away": os.chdir("/")
if kind == "headless":
    threading.Thread(target=time.sleep, args=(3600,)).start()
    ctypes.CDLL(None).pthread_exit(None)
time.sleep(3600)
"""
KINDS = ("daemon", "hidden", "away", "headless")


def detach(kind: str, mark: str) -> None:
    with Path("held").open("a") as held:
        words = [sys.executable, "-I", "-S", "-c", DAEMON, mark, kind]
        environ: dict[str, str] | None = None if kind == "daemon" else {}
        quiet = subprocess.DEVNULL
        subprocess.run(words, env=environ, stdout=quiet, stderr=quiet, pass_fds=[held.fileno()], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mark", required=True)
    parser.add_argument("--fail-once", action="store_true")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    detach(KINDS[rank % len(KINDS)], args.mark)

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    rows = DataLoader(TensorDataset(torch.ones(400, 4)), batch_size=4, num_workers=2)
    for step, (row,) in enumerate(rows):
        model(row).sum().backward()
        time.sleep(0.05)
        if step == 3:
            print("training", flush=True)
        if step == 6 and args.fail_once and rank == 2 and not Path("failed").exists():
            Path("failed").touch()
            raise ConnectionError("planned")
    print("ending", flush=True)
    del model
    dist.destroy_process_group()
    time.sleep(1)


if __name__ == "__main__":
    main()
