"""Two ranks of gloo; rank 1 raises after init_process_group, rank 0 waits for its end. Rank 0 tells of its signals."""

import os
import signal
import sys

import torch.distributed as dist

if os.environ["RANK"] == "0":
    with open("/proc/self/status") as status, open(sys.argv[1], "w") as file:
        file.write(status.read())
dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    raise ValueError("bad batch")
signal.pause()
