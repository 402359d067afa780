"""saves.py SECONDS...: a rank per node, which on SIGTERM saves for so many seconds, each its own, and ends with 0.

Then it uses the store that the job's ranks met at. Imports nothing of ddp_run.
"""

from __future__ import annotations

import gc
import signal
import sys
import time

import torch.distributed as dist


def main() -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _frame: told.append(signum))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    print("ready", flush=True)
    while not told:
        time.sleep(0.05)
    time.sleep(float(sys.argv[1 + rank]))
    dist.distributed_c10d._get_default_store().add("saved", 1)  # unlike set, it waits for an answer
    print("saved", flush=True)
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
