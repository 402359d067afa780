"""elastic.py STOP: sums with whoever is there, until the file STOP is; prints the size of the world at each start."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print(f"world {world}", flush=True)
while True:
    over = torch.tensor([float(Path(sys.argv[1]).exists())])
    dist.all_reduce(over)
    if over.item():
        break
    time.sleep(0.1)
del over
gc.collect()
dist.barrier()
dist.destroy_process_group()
print(f"done in world {world}", flush=True)
